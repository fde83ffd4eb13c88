"""``mlforge compile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlforge.cli.compiling import BuildOptions, board_limits, compile_archive, compile_files, is_archive
from mlforge.cli.options import Board, Json, parse_models
from mlforge.cli.tables import print_json, print_table
from mlforge.errors import OptionError
from mlforge.support.progress import stage

if TYPE_CHECKING:
    from mlforge.archive.options import ExportOptions
    from mlforge.compiler import Factory

EMITS = ("mlf", "c", "o", "so")
EXAMPLES = (
    "mlforge compile kws.tflite",
    "mlforge compile resnet.onnx --shape input=1,3,224,224 -o resnet.tar",
    'mlforge compile kws.tflite --target "c -mcpu=cortex-m4" --ram 65536 --flash 262144',
    "mlforge compile kws.tflite --board mps2-an386",
    "mlforge compile kws=a.tflite ic=b.onnx --shape ic:input=1,3,32,32 --share-workspace -o both.tar",
    "mlforge compile kws.tflite --executor graph --test-vectors 3",
    'mlforge compile kws.tar --target "c -mcpu=cortex-m4" -o kws_m4.tar',
    "mlforge compile kws.tflite --emit c -o kws_code",
    "CC='arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb' mlforge compile kws.tflite --emit o -o kws_objects",
)
_ARCHIVE = "Archive"


def compile_models(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Model files; NAME=FILE names a module. Or one archive, which is compiled again from its own source.",
            metavar="MODEL",
        ),
    ],
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: <name>.tar.")] = None,
    target: Annotated[
        str | None, typer.Option(help="What the code is for: c, 'c -mcpu=cortex-m4', ... Default: c.")
    ] = None,
    board: Board = None,
    executor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]aot|graph",
            help="One C function that runs the model (aot, the default), or the graph executor; for one of several"
            " modules NAME=graph.",
        ),
    ] = None,
    module_name: Annotated[str | None, typer.Option(help="Default: from the file name.")] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=1,3,224,224",
            help="Fix the shape of an input; may be given again. With several models: MODEL:NAME=1,3,224,224.",
        ),
    ] = None,
    optimize: Annotated[str | None, typer.Option(help="speed (the default) or size.")] = None,
    numerics: Annotated[str | None, typer.Option(help="Whose integer rounding: litert (the default) or tflm.")] = None,
    external_workspace: Annotated[
        bool | None,
        typer.Option("--external-workspace/--static-workspace", help="The caller passes the workspace in."),
    ] = None,
    share_workspace: Annotated[
        bool | None,
        typer.Option(
            "--share-workspace/--own-workspace", help="One workspace for several modules that never run together."
        ),
    ] = None,
    share_weights: Annotated[
        bool | None, typer.Option("--share-weights/--own-weights", help="Keep equal constants of several modules once.")
    ] = None,
    emit: Annotated[
        str,
        typer.Option(help="mlf (archive), c (C files in a folder), o (objects and headers in a folder), so (library)."),
    ] = "mlf",
    ram: Annotated[int | None, typer.Option(help="Fail if workspace, inputs and outputs have more bytes.")] = None,
    flash: Annotated[
        int | None, typer.Option(help="Fail if the constants have more bytes; machine code comes on top.")
    ] = None,
    test_vectors: Annotated[
        int | None,
        typer.Option(
            help="So many random inputs with their outputs, for the demo to check. Default: none.",
            rich_help_panel=_ARCHIVE,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of these inputs. Default: 0.", rich_help_panel=_ARCHIVE)] = None,
    source_params: Annotated[
        bool | None,
        typer.Option(
            "--source-params/--no-source-params",
            help="Keep the model's own weights (default), so that the archive can be compiled again.",
            rich_help_panel=_ARCHIVE,
        ),
    ] = None,
    runtime: Annotated[
        bool | None,
        typer.Option("--runtime/--no-runtime", help="Carry the C runtime (default).", rich_help_panel=_ARCHIVE),
    ] = None,
    format_version: Annotated[
        int | None, typer.Option(help="7 (default), or 5 or 6 for older readers.", rich_help_panel=_ARCHIVE)
    ] = None,
    rfc: Annotated[
        bool | None,
        typer.Option("--rfc/--tvm", help="The layout of the format's first proposal.", rich_help_panel=_ARCHIVE),
    ] = None,
    params_form: Annotated[
        list[str] | None,
        typer.Option(help="Parameters also as json or bson; may be given again.", rich_help_panel=_ARCHIVE),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile models to an archive, C, objects or a shared library."""
    from mlforge.archive.budget import check_budget
    from mlforge.archive.options import ExportOptions
    from mlforge.archive.rebuild import recorded_options
    from mlforge.support.atomic import check_writable

    named = _named(models, module_name)
    archives = _archives(named, module_name)
    place = _output(output, named, emit, bool(archives), ".model-lib" if rfc else ".tar")
    if emit not in ("c", "o"):
        check_writable(place)
    asked: dict[str, Any] = {
        "source_params": source_params,
        "runtime": runtime,
        "test_vectors": test_vectors,
        "seed": seed,
        "format_version": format_version,
        "rfc": rfc,
        "params_forms": tuple(dict.fromkeys(("params", *params_form))) if params_form else None,
        "share_workspace": share_workspace,
        "share_weights": share_weights,
    }
    recorded = recorded_options(archives[0]) if archives else ExportOptions()
    export = replace(recorded, **{name: value for name, value in asked.items() if value is not None})
    if board is not None:
        target, ram, flash = board_limits(board, target, ram, flash)
    options = BuildOptions(target, optimize, numerics, executor or (), external_workspace, shape or ())
    factories = compile_archive(archives[0], options) if archives else compile_files(named, options)
    check_budget(factories, ram=ram, flash=flash, options=export)
    with stage(f"writing {place}"):
        _write(factories, place, emit, export)
    _report(factories, place, as_json)


def _named(models: Sequence[str], module_name: str | None) -> dict[str, Path]:
    from mlforge.support.c_names import module_name as checked_name

    named = parse_models(models)
    if module_name is None:
        return named
    if len(named) != 1:
        raise OptionError("--module-name names one model", next_step="Write NAME=FILE for each of several")
    # the name that the code gets is the name of the file: "../x" names no folder
    return {checked_name(module_name): next(iter(named.values()))}


def _archives(named: Mapping[str, Path], module_name: str | None) -> list[Path]:
    archives = [path for path in named.values() if is_archive(path)]
    if archives and (len(named) > 1 or module_name is not None):
        raise OptionError(
            "an archive is compiled alone and keeps its modules' names",
            place=str(archives[0]),
            next_step="Give no other file and no --module-name",
        )
    return archives


def _output(output: Path | None, named: Mapping[str, Path], emit: str, from_archive: bool, suffix: str) -> Path:
    if emit not in EMITS:
        raise OptionError(f"there is no form '{emit}' to emit", next_step=f"Use {', '.join(EMITS)}")
    if output is not None:
        return output
    if from_archive and emit == "mlf":
        raise OptionError("the default output would replace the archive", next_step="Name another file with -o")
    if len(named) != 1:
        raise OptionError("several models need a name for the output", next_step="Give one with -o")
    name = next(iter(named))
    return Path({"mlf": f"{name}{suffix}", "c": f"{name}_c", "o": f"{name}_o", "so": f"{name}.so"}[emit])


def _write(factories: Sequence[Factory], place: Path, emit: str, options: ExportOptions) -> None:
    from mlforge import archive
    from mlforge.support.atomic import write_folder

    if emit == "mlf":
        archive.export_model_library_format(factories, place, options=options)
    elif emit == "c":
        write_folder(place, archive.source_folder(factories, options))
    elif emit == "o":
        write_folder(place, archive.object_files(factories, options))
    else:
        archive.export_shared_library(factories, place, options)


def _report(factories: Sequence[Factory], place: Path, as_json: bool) -> None:
    from mlforge.archive.metadata import module_details

    details = {factory.module_name: module_details(factory) for factory in factories}
    if as_json:
        modules = {name: {"entry": item["entry"], "memory": item["memory"]} for name, item in details.items()}
        print_json({"output": str(place), "modules": modules})
        return
    rows = [
        (
            name,
            item["memory"]["workspace_bytes"],
            item["memory"]["workspace_lower_bound_bytes"],
            item["memory"]["constants_bytes"],
            item["memory"]["io_bytes"],
        )
        for name, item in details.items()
    ]
    print_table(f"{place}: bytes", ("module", "workspace", "lower bound", "constants", "inputs and outputs"), rows)
