"""Conversion of the options of ``mlfc compile`` to those of `build`, `ExportOptions` and `export_library`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.cli.options import Inputs, given_options
from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.support.platforms import parse_platform
from mlfc.support.progress import stage
from mlfc.support.text import byte_count
from mlfc.target.target import EVERY_CPU

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board

STATIC = ("a", "tar")
LIBRARIES = ("so", *STATIC)
EMITS = ("mlf", "c", "o", *LIBRARIES)
_BY_SUFFIX = {".so": "so", ".dylib": "so", ".dll": "so", ".wasm": "so", ".a": "a", ".o": "o"}
_SIZED = re.compile(r"([^=]*)(?:=([0-9]{1,15} ?[kKmMgG]?(?:i?[bB])?))?", re.ASCII)
_FORM = "Write NAME or NAME=BYTES, such as dtcm=65536 or dtcm=64k"
_IMPORTED = "has no effect on an archive, which is imported already"


def form_of(emit: str | None, output: Path | None) -> str:
    """Return the form to emit: `emit` if given, else the form implied by the output's suffix.

    Raises OptionError for an unknown form, and for an archive with the suffix of a library or an object.
    """
    if emit is not None and emit not in EMITS:
        raise OptionError(unknown("form", emit, EMITS), place="--emit")
    named = _BY_SUFFIX.get(output.suffix) if output else None
    if output is None or named is None or emit not in (None, "mlf"):
        return emit or "mlf"
    if emit is None and named in LIBRARIES:
        return named
    step = f"Name it {output.stem}.tar, or add --emit {named}{' for objects in a folder' if named == 'o' else ''}"
    raise OptionError(f"expected a file name of an archive, got '{output.name}'", place="-o", next_step=step)


@dataclass(frozen=True)
class LibraryOptions:
    """Options of libraries; None for those that the user did not set."""

    abi: str | None = None
    triple: str | None = None
    cc: str | None = None
    parallel: bool | None = None

    def arguments(self, emit: str, board: str | None) -> dict[str, Any]:
        """Return the options of `mlfc.library.export.export_library`.

        Raises OptionError if they are set without a library, and for libraries for boards.
        """
        if board is not None and emit in LIBRARIES:
            raise OptionError(
                f"a library requires an operating system; board '{board}' has none",
                place=f"--emit {emit}",
                next_step="Create objects with --emit o, an archive with --emit mlf, or firmware with mlfc project"
                " create",
            )
        abi = self.abi and tuple(self.abi.split(","))
        asked = given_options({"abi": abi, "target_triple": self.triple, "cc": self.cc})
        if asked and emit not in LIBRARIES:
            raise OptionError(
                "options --abi, --triple and --cc require a library",
                next_step=f"Use --emit {', '.join(LIBRARIES[:-1])} or {LIBRARIES[-1]}",
            )
        return asked

    def target(self, emit: str) -> str | None:
        """Return the default target of a library: every processor of its machine; None for other forms.

        Also None with the user's own compiler, whose machine is unknown: code then uses only common features.
        """
        if emit not in LIBRARIES or self.cc is not None:
            return None
        return EVERY_CPU if self.triple is None else f"{EVERY_CPU} -mtriple={parse_platform(self.triple).arch}"

    @property
    def suffix(self) -> str:
        """Suffix of shared libraries for the machine, by default this one."""
        return ".so" if self.triple is None else parse_platform(self.triple).suffix


def export_options(
    archived: Mapping[str, Any],
    forms: Sequence[str] | None,
    sharing: Mapping[str, Any],
    emit: str,
    archive: Path | None,
) -> ExportOptions:
    """Return the options of an export.

    `archived`: those of archives. `forms`: of parameters. `sharing`: those of several modules together.
    `archive`: the archive to recompile; its own options are the defaults.

    Raises OptionError for options of archives if the output is not an archive.
    """
    from mlfc.archive.write.options import ExportOptions
    from mlfc.archive.write.rebuild import recorded_options

    asked = {**archived, **({"params_form": forms} if forms else {})}
    wrong = [name for name in asked if emit != "mlf" and not (emit in STATIC and name == "system_lib")]
    if wrong:
        raise OptionError(
            f"this option requires --emit {', '.join(('mlf', *STATIC)) if wrong == ['system_lib'] else 'mlf'}",
            place=", ".join(f"--{name.replace('_', '-')}" for name in wrong),
            next_step=f"Remove it, or remove --emit {emit}",
        )
    if asked.pop("params_form", None) and forms:
        asked["params_forms"] = tuple(dict.fromkeys(("params", *forms)))
    recorded = recorded_options(archive) if archive else ExportOptions()
    return replace(recorded, **asked, **sharing)


@dataclass(frozen=True)
class PlacementOptions:
    """Options about memory; None for those that the user did not set.

    `pool`, `constants`, `load_constants`: ``NAME`` or ``NAME=BYTES``: of the workspace, of constants in sections, of
    constants that the caller loads.
    """

    workspace_io: bool | None = None
    external_workspace: bool | None = None
    pool: list[str] | None = None
    board_pools: bool = False  # distribute the workspace over the board's memories
    constants: list[str] | None = None
    load_constants: list[str] | None = None

    def arguments(self, board: Board | None = None) -> dict[str, Any]:
        """Return the options of `build` that the user set; raise OptionError or ProblemsError for all faults."""
        from mlfc.memory import ConstantPool, MemoryOptions, Pool
        from mlfc.micro.board.board import board_pools

        problems: list[MlfcError] = []
        wanted = [Pool(name, nbytes) for name, nbytes in _sized(self.pool, "--pool", problems)]
        if self.board_pools and board is None:
            cause = "option --board-pools requires --board"
            problems.append(OptionError(cause, place="--board-pools", next_step="Add --board NAME"))
        if self.board_pools and wanted:
            problems.append(
                OptionError(
                    "options --pool and --board-pools exclude each other",
                    place="--pool",
                    next_step="Remove one of them",
                )
            )
        memories = [ConstantPool(*sized) for sized in _sized(self.constants, "--constants", problems)]
        loaded = _sized(self.load_constants, "--load-constants", problems)
        memories += [ConstantPool(name, nbytes, external=True) for name, nbytes in loaded]
        try:
            MemoryOptions(pools=tuple(wanted), constants=tuple(memories))
        except ProblemsError as error:
            problems += error.problems
        except MlfcError as error:
            problems.append(error)
        if problems:
            raise problems[0] if len(problems) == 1 else ProblemsError(problems)
        pools = wanted or (board_pools(board) if self.board_pools and board is not None else None)
        plan = {"workspace_io": self.workspace_io, "external_workspace": self.external_workspace}
        return given_options({**plan, "pools": pools, "constants": memories or None})


def _sized(texts: Sequence[str] | None, flag: str, problems: list[MlfcError]) -> list[tuple[str, int | None]]:
    """Return names and sizes; add an OptionError to `problems` for each invalid text."""
    found = []
    for text in texts or ():
        match = _SIZED.fullmatch(text)
        if match is None:
            problems.append(OptionError(f"expected NAME or NAME=BYTES, got '{text}'", place=flag, next_step=_FORM))
        else:
            found.append((match[1], byte_count(match[2]) if match[2] else None))
    return found


def compile_archive(
    path: Path,
    inputs: Inputs,
    executor: Sequence[str] | None,
    specialize: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> list[Factory]:
    """Recompile every module of an archive; options that the user did not set keep their recorded values.

    `changes`: other options of `build`.
    """
    from mlfc.archive.write.rebuild import rebuild

    step = "Compile the model itself"
    if "numerics" in changes:
        raise OptionError(f"option --numerics {_IMPORTED}", next_step=step)
    replace(inputs, op=None).refuse(_IMPORTED, step)
    executors = parse_executors(executor or (), None)
    if set(executors) - {""}:
        raise OptionError("an archive needs the same executor for all modules", place="--executor")
    special = parse_extents(specialize, None)[""] if specialize else None
    with stage(f"compiling {path}"):
        return rebuild(path, executor=executors.get(""), specialize=special, operators=inputs.op, **changes)


def compile_files(
    named: Mapping[str, Path],
    inputs: Inputs,
    by_name: tuple[Sequence[str] | None, Sequence[str] | None],
    placing: Mapping[str, Any],
    common: Mapping[str, Any],
) -> list[Factory]:
    """Compile model files by module name.

    `by_name`: executors and specializations, which may name a module.
    `placing`: options of `build` about memory, which do not apply to modules for the graph executor beside others.
    `common`: others.
    """
    from mlfc.compiler import build_module
    from mlfc.frontend import import_for_run
    from mlfc.target.tuning_log import opened_log

    by_model = inputs.by_model(list(named))
    executors = parse_executors(by_name[0] or (), list(named))
    special = parse_extents(by_name[1] or (), list(named))
    if "tuned" in common:
        common = {**common, "tuned": opened_log(common["tuned"])}
    if len(named) > 1:
        common = {**common, "ram": None}
    factories = []
    for name, path in named.items():
        with stage(f"compiling {path}"):
            executor = executors.get(name) or executors.get("")
            is_placed = executor != "graph" or len(named) == 1
            own: dict[str, Any] = {"executor": executor, "module_name": name, "specialize": special[name]}
            options = by_model[name].options(**common, **own, **(placing if is_placed else {}))
            factories.append(build_module(*import_for_run(path, options, executor), options))
    return factories


def parse_extents(texts: Sequence[str], names: Sequence[str] | None) -> dict[str, list[dict[str, int]]]:
    """Return values of dynamic dimensions by module name, from texts like ``batch=8,width=224``.

    With several modules, the name is a prefix: ``kws:batch=8``; under the name ``""`` if `names` is None.
    """
    chosen: dict[str, list[dict[str, int]]] = {name: [] for name in names or ("",)}
    for text in texts:
        only, colon, rest = next(iter(chosen)), "", text
        if len(chosen) > 1:
            only, colon, rest = text.partition(":")
        values: dict[str, int] = {}
        for part in rest.split(","):
            name, _, value = part.partition("=")
            if not name or name in values or not re.fullmatch(r"[0-9]{1,10}", value):
                values.clear()
                break
            values[name] = int(value)
        if not values or only not in chosen or (len(chosen) > 1 and not colon):
            form = "MODEL:batch=8" if len(chosen) > 1 else "batch=8 or batch=8,width=224"
            raise OptionError(
                f"expected values of dynamic dimensions, got '{text}'", place="--specialize", next_step=f"Write {form}"
            )
        chosen[only].append(values)
    return chosen


def parse_executors(texts: Sequence[str], names: Sequence[str] | None) -> dict[str, str]:
    """Return executors by module name from texts like ``graph`` (under the name ``""``) and ``kws=graph``.

    Raises OptionError if a name is not in `names`, or is duplicated.
    """
    chosen: dict[str, str] = {}
    for text in texts:
        name, equals, executor = text.rpartition("=")
        if equals and not (re.fullmatch(r"\w+", name) if names is None else name in names):
            raise OptionError(
                f"expected NAME=EXECUTOR, got '{text}'",
                place="--executor",
                next_step=f"Write aot, graph, or NAME=graph with a name of: {', '.join(names or ())}",
            )
        if name in chosen:
            raise OptionError(f"the executor of {name or 'all modules'} is specified twice", place="--executor")
        chosen[name] = executor
    return chosen
