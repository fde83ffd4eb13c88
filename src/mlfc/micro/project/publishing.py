"""Packages of a model for publishing: libraries for build systems, without the project around them."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import OptionError, OutputError
from mlfc.micro.board.board import Board, boards, find_board
from mlfc.micro.project import arduino, cmsis_pack, esp_idf, zephyr
from mlfc.micro.project.generate import check_model
from mlfc.micro.project.model import project_source
from mlfc.micro.project.model_interface import interface_of, symbol
from mlfc.micro.project.options import GENERATE, checked_options, template_options
from mlfc.micro.project.template import MODEL_CODE, ProjectModel, ProjectTemplate
from mlfc.micro.render import render
from mlfc.support.atomic import check_writable, write_folder
from mlfc.support.content import Data, to_bytes
from mlfc.support.text import printable

LICENCE = "0BSD"
"""Licence of the generated code; a package also contains the model's weights, whose licence may differ."""
_TYPE = "standalone"
_LICENCE_FILE = "LICENSE"
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2}")
_SPDX = re.compile(r"[A-Za-z0-9.+-]{1,64}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&()*+,;=%-]{1,500}")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format


@dataclass(frozen=True)
class Details:
    """Metadata that publishers require of a package.

    Attributes
    ----------
    version : str
        ``1.2.3``.
    author : str
        Maintainer.
    url : str
        Home page; a CMSIS pack is downloaded from there.
    licence : str
        SPDX identifier.
    licence_text : str, optional
        Required for a licence other than that of generated code.
    """

    version: str
    author: str
    url: str
    licence: str = LICENCE
    licence_text: str | None = None

    def check(self) -> None:
        """Raise OptionError for metadata that publishers reject."""
        for value, form, name, example in (
            (self.version, _VERSION, "--version", "1.2.3"),
            (self.url, _URL, "--url", "https://example.org/kws"),
            (self.licence, _SPDX, "--license", "Apache-2.0"),
        ):
            if not form.fullmatch(value):
                raise OptionError(f"expected a value like {example}, got '{value[:100]}'", place=name)
        if self.licence != LICENCE and self.licence_text is None:
            raise OptionError(f"option --license {self.licence} requires --license-file", place="--license")


@dataclass(frozen=True)
class PackageForm:
    """A package format."""

    template: ProjectTemplate
    result: str  # path of the package, with {library}, {vendor}, {name} and {version}
    archive: str  # file to upload, with the same placeholders; empty if the folder itself is published
    has_model: bool  # whether it contains the generated code at the same path as projects
    leaves_out: str = r"(?!)"  # regular expression of project files that are not published

    def files(self, model: ProjectModel, board: Board, details: Details) -> dict[str, Data]:
        """Return the files of the package by relative path."""
        check_model(self.template, board, _TYPE, model)
        options = template_options(self.template, boards())
        values = {
            "board": board.name, "project_type": _TYPE, "version": details.version, "author": details.author,
            "url": details.url, "license": details.licence, "vendor": _vendor(details.author),
            "architectures": board.vendor.get("arduino", "::").split(":")[1],
        }  # fmt: skip
        known = {option.name for option in options}
        given = {name: value for name, value in values.items() if name in known and name != "board"}
        checked = {**checked_options(options, {**given, "board": "host"}, GENERATE), "board": board.name}
        made = dict(self.template.files(model, board, _TYPE, checked))
        if self.has_model:
            made |= {
                f"model/{path}": data for path, data in model.members.items() if f"model/{path}".startswith(MODEL_CODE)
            }
        made = {path: data for path, data in made.items() if not re.fullmatch(self.leaves_out, path)}
        text = details.licence_text
        made[_LICENCE_FILE] = render("published/LICENSE", author=details.author) if text is None else text.encode()
        buffers = interface_of(model).buffers
        made["README.md"] = render(
            "published/README.md",
            form=self.template.name,
            library=arduino.library_name(model.name),
            model=interface_of(model),
            name=model.name,
            symbol=symbol(model),
            # plain text for a table of Markdown
            tensors=[
                (item.array, re.sub(r"([\\\\|*_<`\[])", r"\\\1", printable(item.description))) for item in buffers
            ],
            vendor=_vendor(details.author),
            memory=model.details.memory,
            target=board.target,
            details=details,
        )
        return dict(sorted(made.items()))


FORMS = {
    form.template.name: form
    for form in (
        PackageForm(arduino.TEMPLATE, "arduino/{library}", "{library}-{version}.zip", has_model=False),
        PackageForm(zephyr.TEMPLATE, "zephyr/{name}", "", has_model=True),
        PackageForm(esp_idf.TEMPLATE, "esp_idf/{name}", "", has_model=True),
        PackageForm(
            cmsis_pack.TEMPLATE, "cmsis_pack/{vendor}.{name}", "{vendor}.{name}.{version}.pack", has_model=True,
            leaves_out=r".*\.(csolution|cproject|clayer)\.yml|app/.*",
        ),
    )
}  # fmt: skip
"""Package formats by template name."""


def make_packages(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    board_name: str,
    details: Details,
    forms: Sequence[str] = (),
    *,
    module: str | None = None,
    trust_board: bool = False,
) -> dict[str, Path]:
    """Create packages of a model.

    Parameters
    ----------
    model : path
        An archive, or a model file that is compiled for the board.
    folder : path
        Output folder, with a folder for each form, and the archives to upload.
    board_name : str
        Board with the core that the code is compiled for.
    details : Details
    forms : sequence of str
        Names of `FORMS`; default: those for which the board has names.
    module : str, optional
        Module of an archive with several.
    trust_board : bool
        Whether a board's file may name any program.

    Returns
    -------
    dict of str to Path
        The package to publish, a folder or an archive, by form.

    Raises
    ------
    OutputError
        If one of the folders exists already, or cannot be written.
    OptionError
        For a form that does not exist or does not support the board, and details that publishers reject.
    MlfcError
        The errors of `generate_project`.
    """
    details.check()
    board = find_board(board_name, trust=trust_board)
    chosen = _chosen(forms, board)
    root = Path(folder)
    if not root.exists():
        check_writable(root)
    made: dict[str, Data] = {}
    published: dict[str, Path] = {}
    with project_source(model, board, _TYPE, module) as source:
        name = source.name
        words = {
            "library": arduino.library_name(name), "vendor": _vendor(details.author), "name": name,
            "version": details.version,
        }  # fmt: skip
        for form in chosen:
            files = form.files(source, board, details)
            place = form.result.format(**words)
            if (root / place).exists():  # files of an older version would be published too
                raise OutputError(
                    "exists already", place=str(root / place), next_step="Remove it, or name another folder"
                )
            made |= {f"{place}/{path}": data for path, data in files.items()}
            published[form.template.name] = root / place
            if form.archive:
                top = f"{words['library']}/" if form.template is arduino.TEMPLATE else ""
                made[form.archive.format(**words)] = _zip(files, top)
                published[form.template.name] = root / form.archive.format(**words)
        write_folder(root, made)
    return published


def _chosen(forms: Sequence[str], board: Board) -> list[PackageForm]:
    for name in forms:
        if name not in FORMS:
            raise OptionError(f"unknown form '{name}'; known: {', '.join(FORMS)}", place="--form")
        reason = FORMS[name].template.refuses(board)
        if reason is not None:
            raise OptionError(f"form {name} does not support board '{board.name}': {reason}", place="--form")
    fitting = [name for name, form in FORMS.items() if form.template.refuses(board) is None]
    chosen = list(dict.fromkeys(forms)) or fitting
    if not chosen:
        raise OptionError(f"board '{board.name}' has no name in any of these build systems", place="--board")
    return [FORMS[name] for name in chosen]


def _vendor(author: str) -> str:
    """Return the author as the vendor of a pack: letters, digits and hyphens."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", author).strip("-")[:32].rstrip("-")
    if len(words) < 2:
        raise OptionError(f"expected a name with letters or digits, got '{author[:100]}'", place="--author")
    return words


def _zip(files: Mapping[str, Data], top: str) -> bytes:
    """Return an uncompressed zip file, whose bytes do not depend on the compression library."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, data in files.items():
            info = zipfile.ZipInfo(top + path, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3
            archive.writestr(info, to_bytes(data))
    return made.getvalue()
