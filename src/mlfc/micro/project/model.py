"""The model of a project: a module of an archive, or a model file that is compiled for the board first."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlfc.archive.read.layout import CODE
from mlfc.archive.read.load import artifact_kind
from mlfc.archive.read.module_parts import ModuleParts, read_parts
from mlfc.archive.templates.documents import FOLDER as DEMO
from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.firmware.bare_metal import check_path, unbounded
from mlfc.micro.firmware.graph_source import graph_of_parts, require_code_alone
from mlfc.micro.firmware.runtime_firmware import aot_details, graph_details
from mlfc.micro.project.template import ProjectModel
from mlfc.options import ImportOptions
from mlfc.support.c_names import module_name
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface
from mlfc.support.plain_file import open_plain
from mlfc.support.tar import open_tar
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import model_title

_VECTORS = 3
# executors of project types that do not support all
_EXECUTORS = {"selftest": ("aot", "vm"), "standalone": ("aot", "graph", "vm")}


@contextmanager
def project_source(
    path: str | os.PathLike[str],
    board: Board,
    project_type: str,
    module: str | None = None,
    imports: ImportOptions | None = None,
) -> Iterator[ProjectModel]:
    """Yield the model of a project during the context.

    `path`: an archive, or a model file, which is compiled for the board, for the graph executor if a host drives the
    firmware, and with test vectors for a self-test.

    Raises the errors of importing, compiling and reading archives; OptionError for other files, and for archives
    without the contents that the project type requires.
    """
    kind = artifact_kind(path)
    if kind in ("library", "objects"):
        cause, step = "expected an archive or a model, got a shared library", "Give an archive or a model"
        raise OptionError(cause, place=str(path), next_step=step)
    if kind == "archive":
        yield _read(path, module, project_type)
        return
    if module is not None:
        raise OptionError(
            "option --module requires an archive; a model is a single module", place="module", next_step="Leave it out"
        )
    from mlfc.archive.write.export import export_model_library_format
    from mlfc.compiler import build
    from mlfc.frontend import read_model
    from mlfc.relay.dynamic import is_dynamic

    mod, params = read_model(Path(path), imports or ImportOptions())
    executor = "graph" if project_type == "host_driven" else "aot"
    if is_dynamic(mod) and "vm" in _EXECUTORS.get(project_type, ()):
        executor = "vm"
    name = module_name(model_title(path))
    factory = build(mod, board.target, params, executor=executor, module_name=name)
    vectors = _VECTORS if project_type == "selftest" else 0
    with TemporaryFolder() as folder:
        made = export_model_library_format(factory, Path(folder, "model.tar"), test_vectors=vectors)
        yield _read(made, None, project_type)


def _read(path: str | os.PathLike[str], module: str | None, project_type: str) -> ProjectModel:
    parts = read_parts(path, module)
    with open_tar(path) as tar:
        members: dict[str, Data] = {name: tar.view(name) for name in sorted(tar.sizes)}
    # code of external generators is stored next to the module's own
    members |= {f"{CODE}/{path}": data for path, data in parts.code.items() if path.startswith("external/")}
    name = parts.record.name
    vectors = {
        member.removeprefix(f"{DEMO}/"): members[member]
        for member in members
        if re.fullmatch(rf"{DEMO}/{re.escape(name)}_vectors\.[ch]", member)
    }
    _check_fits(parts, project_type, has_vectors=bool(vectors))
    for code in parts.code:
        check_path(code)
    with open_plain(path) as file:
        archive = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    graph = graph_of_parts(parts) if parts.executor == "graph" else None
    details, is_ours = details_of(parts), parts.record.details is not None
    executor = parts.executor or ""
    return ProjectModel(name.lower(), executor, parts.code, details, vectors, members, archive, graph, is_ours)


def details_of(parts: ModuleParts) -> ModuleInterface:
    """Return the description of a module: a `ModuleInfo` if mlfc compiled it.

    Raises ArchiveError or OptionError if the archive lacks information.
    """
    if parts.record.details is not None:
        return parts.record.details
    if parts.executor == "graph":
        return graph_details(graph_of_parts(parts), parts.record.main[0].outputs if parts.record.main else ())
    return aot_details(parts)


def _check_fits(parts: ModuleParts, project_type: str, *, has_vectors: bool) -> None:
    name, details = parts.record.name, parts.record.details
    if parts.executor == "vm":  # firmware runs it in a single array, without a host
        if details is None or details.vm is None or details.vm.work_bytes is None:
            raise unbounded(details, name, parts.place)
        require_code_alone(name, parts.imports)
        if "vm" not in _EXECUTORS.get(project_type, ()):
            raise OptionError(
                f"module '{name}' is for the virtual machine, which projects of the type {project_type} do not run",
                place=parts.place,
                next_step="Use --type standalone, or --type selftest on an archive with test vectors",
            )
    if project_type == "selftest" and not has_vectors:
        step = "Compile the model with --test-vectors 3"
        raise OptionError(f"module '{name}' has no test vectors", place=parts.place, next_step=step)
    wanted = _EXECUTORS.get(project_type, ("aot", "graph"))
    if parts.executor not in wanted:
        raise OptionError(
            f"module '{name}' is for the executor {parts.executor}; projects of the type {project_type} "
            f"take {wanted[0]}",
            place=parts.place,
            next_step=f"Compile it with --executor {wanted[0]}",
        )
