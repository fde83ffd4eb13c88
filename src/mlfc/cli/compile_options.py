"""The options of ``mlfc compile``, and what they ask of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mlfc.cli.build_file import read_options
from mlfc.errors import OptionError, unknown

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions

_PANEL = "Archive"
_MEMORY = "Memory"
_LIBRARY = "Library"
_CODE = "Code generation"
LIBRARIES = ("so", "a", "tar")
EMITS = ("mlf", "c", "o", *LIBRARIES)
_BY_SUFFIX = {".so": "so", ".dylib": "so", ".dll": "so", ".wasm": "so", ".a": "a", ".o": "o"}
_OF_ARCHIVES = (
    "source_params",
    "runtime",
    "test_vectors",
    "seed",
    "format_version",
    "rfc",
    "params_form",
    "system_lib",
)

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Options from a TOML file: ram = 65536; those given here win.",
        callback=read_options,
        is_eager=True,
    ),
]
TrustBoard: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-board",
        help="Let the board's .toml file name any compiler, emulator, option and flash tool.",
        rich_help_panel=_CODE,
    ),
]
LimitFactor: TypeAlias = Annotated[
    float,
    typer.Option(
        "--limit-factor",
        metavar="N",
        help="Multiply the limits on memory and work for compiling one model.",
        rich_help_panel=_CODE,
    ),
]
Models: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help="Model files; NAME=FILE names a module. Or one archive, which is compiled again from its own source.",
        metavar="MODEL",
    ),
]
Output: TypeAlias = Annotated[Path | None, typer.Option("--output", "-o", help="Default: <name>.tar.")]
TargetText: TypeAlias = Annotated[
    str | None, typer.Option("--target", help="What the code is for: c, 'c -mcpu=cortex-m4', opencl, ... Default: c.")
]
TargetHost: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target-host",
        help="The target of the host's code beside a device's. Default: c.",
        rich_help_panel=_CODE,
    ),
]
Executors: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--executor",
        metavar="[NAME=]aot|graph",
        help="One C function that runs the model (aot, the default), or the graph executor; for one of several"
        " modules NAME=graph.",
    ),
]
ModuleName: TypeAlias = Annotated[str | None, typer.Option("--module-name", help="Default: from the file name.")]
ModelShapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,224,224",
        help="Fix the shape of an input; may be given again. With several models: MODEL:NAME=1,3,224,224.",
    ),
]
Generators: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--byoc",
        metavar="NAME",
        help="An external code generator for the operators it supports: cmsis_nn, onnxruntime; repeatable.",
        rich_help_panel=_CODE,
    ),
]
OptimizeFor: TypeAlias = Annotated[str | None, typer.Option("--optimize", help="speed (the default) or size.")]
NumericsOf: TypeAlias = Annotated[
    str | None, typer.Option("--numerics", help="Whose integer rounding: litert (the default) or tflm.")
]
ExternalWorkspace: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--external-workspace/--static-workspace", help="The caller passes the workspace in.", rich_help_panel=_MEMORY
    ),
]
WorkspaceIo: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--workspace-io/--own-io",
        help="Inputs and outputs lie in the workspace; a run destroys the inputs.",
        rich_help_panel=_MEMORY,
    ),
]
Pools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pool",
        metavar="NAME[=BYTES]",
        help="A memory for the workspace; may be given again, the fastest first.",
        rich_help_panel=_MEMORY,
    ),
]
BoardPools: TypeAlias = Annotated[
    bool,
    typer.Option("--board-pools", help="Spread the workspace over the board's memories.", rich_help_panel=_MEMORY),
]
Constants: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--constants",
        metavar="NAME[=BYTES]",
        help="A memory for constants, by a section of its name; may be given again, the fastest first.",
        rich_help_panel=_MEMORY,
    ),
]
LoadConstants: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--load-constants",
        metavar="NAME[=BYTES]",
        help="A memory that the caller loads with constants, from a file beside the code; comes after --constants.",
        rich_help_panel=_MEMORY,
    ),
]
ShareWorkspace: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--share-workspace/--own-workspace",
        help="One workspace for several modules that never run together.",
        rich_help_panel=_MEMORY,
    ),
]
ShareWeights: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--share-weights/--own-weights",
        help="Keep equal constants of several modules once.",
        rich_help_panel=_MEMORY,
    ),
]
Emit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--emit",
        help="mlf (archive), c (C files in a folder), o (objects and headers in a folder); or a library with its"
        " header: so (shared: .so, .dll, .dylib or .wasm, as --triple asks), a (static), tar (of objects)."
        " Default: so or a where -o is named like one, else mlf.",
    ),
]
Abi: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--abi",
        metavar="classic,ffi",
        help="How others call a library's functions: TVM's packed functions, those of tvm-ffi, or both (default).",
        rich_help_panel=_LIBRARY,
    ),
]
Triple: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--triple",
        help="The machine that a library is for, as aarch64-linux-gnu; the ziglang wheel compiles. Default: this one.",
        rich_help_panel=_LIBRARY,
    ),
]
CompilerCommand: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cc",
        metavar="COMMAND",
        help="The C compiler of a library. Default: $CC, or what is on the PATH.",
        rich_help_panel=_LIBRARY,
    ),
]
Ram: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--ram",
        help="Tile layers by rows to keep workspace, inputs and outputs within it; fail if the workspace is "
        "larger, with --board if all that lies in RAM is.",
    ),
]
Flash: TypeAlias = Annotated[
    int | None,
    typer.Option("--flash", help="Fail if the constants, with --board the model's code too, have more bytes."),
]
TestVectors: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--test-vectors",
        help="So many random inputs with their outputs, for the demo to check. Default: none.",
        rich_help_panel=_PANEL,
    ),
]
VectorSeed: TypeAlias = Annotated[
    int | None, typer.Option("--seed", help="Of these inputs. Default: 0.", rich_help_panel=_PANEL)
]
SourceParams: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--source-params/--no-source-params",
        help="Keep the model's own weights (default), so that the archive can be compiled again.",
        rich_help_panel=_PANEL,
    ),
]
Runtime: TypeAlias = Annotated[
    bool | None,
    typer.Option("--runtime/--no-runtime", help="Carry the C runtime (default).", rich_help_panel=_PANEL),
]
SystemLib: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--system-lib/--no-system-lib",
        help="Put aot modules into the C runtime's table of functions too, for hosts that drive microTVM's projects.",
        rich_help_panel=_PANEL,
    ),
]
FormatVersion: TypeAlias = Annotated[
    int | None,
    typer.Option("--format-version", help="7 (default), or 5 or 6 for older readers.", rich_help_panel=_PANEL),
]
Rfc: TypeAlias = Annotated[
    bool | None,
    typer.Option("--rfc/--tvm", help="The layout of the format's first proposal.", rich_help_panel=_PANEL),
]
ParamsForm: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--params-form", help="Parameters also as json or bson; may be given again.", rich_help_panel=_PANEL),
]


def form_of(emit: str | None, output: Path | None) -> str:
    """Return the form to emit: the one that was asked for, else the one that the output's name says.

    Raises
    ------
    OptionError
        For a form that does not exist, and for an archive under the name of a library or an object.
    """
    if emit is not None and emit not in EMITS:
        raise OptionError(unknown("form", emit, EMITS), place="--emit")
    named = _BY_SUFFIX.get(output.suffix) if output else None
    if output is None or named is None or emit not in (None, "mlf"):
        return emit or "mlf"
    if emit is None and named in LIBRARIES:
        return named
    raise OptionError(
        f"expected a file name of an archive, got '{output.name}'",
        place="-o",
        next_step=f"Name it {output.stem}.tar, or add --emit {named}"
        + (" for objects in a folder" if named == "o" else ""),
    )


def library_options(
    emit: str, board: str | None, abi: str | None, triple: str | None, cc: str | None
) -> dict[str, Any]:
    """Return the options of `mlfc.library.export.export_library`.

    Raises
    ------
    OptionError
        Where they are given and no library is made, and for libraries for boards.
    """
    if board is not None and emit in LIBRARIES:
        raise OptionError(
            f"a library requires an operating system; board '{board}' has none",
            place=f"--emit {emit}",
            next_step="Make objects with --emit o, an archive with --emit mlf, or firmware with mlfc project create",
        )
    asked = {"abi": abi and tuple(abi.split(",")), "target_triple": triple, "cc": cc}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and emit not in LIBRARIES:
        raise OptionError(
            "options --abi, --triple and --cc require a library",
            next_step=f"Use --emit {', '.join(LIBRARIES[:-1])} or {LIBRARIES[-1]}",
        )
    return given


def export_options(asked: Mapping[str, Any], emit: str, archive: Path | None) -> ExportOptions:
    """Return the options of an export.

    Parameters
    ----------
    asked : mapping of str to value
        What the user said by the option's name, None where nothing was said.
    emit : str
    archive : path, optional
        What is compiled again: what was not said is as it was.

    Raises
    ------
    OptionError
        For options of archives where something else is made.
    """
    from mlfc.archive.write.options import ExportOptions
    from mlfc.archive.write.rebuild import recorded_options

    given = {name: value for name, value in asked.items() if value is not None}
    idle = [f"--{name.replace('_', '-')}" for name in _OF_ARCHIVES if name in given]
    if emit != "mlf" and idle:
        raise OptionError(
            "this option requires --emit mlf",
            place=", ".join(idle),
            next_step=f"Remove it, or remove --emit {emit}",
        )
    if "params_form" in given:
        given["params_forms"] = tuple(dict.fromkeys(("params", *given.pop("params_form"))))
    return replace(recorded_options(archive) if archive else ExportOptions(), **given)
