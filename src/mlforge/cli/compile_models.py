"""``mlforge compile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mlforge.cli import compile_options as options
from mlforge.cli.compiling import BuildOptions, board_asks, compile_archive, compile_files, is_archive
from mlforge.cli.memory import fitting_memory, print_memory
from mlforge.cli.options import Board, Json, parse_models
from mlforge.cli.placing import asked_placement
from mlforge.cli.stripes_line import stripes_line
from mlforge.cli.tables import print_json, print_table
from mlforge.errors import OptionError
from mlforge.support.progress import stage
from mlforge.support.text import printable

if TYPE_CHECKING:
    from mlforge.archive.options import ExportOptions
    from mlforge.compiler import Factory
    from mlforge.micro.memory_table import MemoryTable

EXAMPLES = (
    "mlforge compile kws.tflite",
    "mlforge compile resnet.onnx --shape input=1,3,224,224 -o resnet.tar",
    'mlforge compile kws.tflite --target "c -mcpu=cortex-m4" --ram 65536 --flash 262144',
    "mlforge compile kws.tflite --board mps2-an386",
    "mlforge compile kws.tflite --workspace-io --pool dtcm=65536 --pool sram",
    "mlforge compile kws=a.tflite ic=b.onnx --shape ic:input=1,3,32,32 --share-workspace -o both.tar",
    "mlforge compile kws.tflite --executor graph --test-vectors 3",
    'mlforge compile kws.tar --target "c -mcpu=cortex-m4" -o kws_m4.tar',
    "mlforge compile kws.tflite --emit c -o kws_code",
    "CC='arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb' mlforge compile kws.tflite --emit o -o kws_objects",
)


def compile_models(
    models: options.Models,
    *,
    output: options.Output = None,
    target: options.TargetText = None,
    board: Board = None,
    executor: options.Executors = None,
    module_name: options.ModuleName = None,
    shape: options.ModelShapes = None,
    optimize: options.OptimizeFor = None,
    numerics: options.NumericsOf = None,
    external_workspace: options.ExternalWorkspace = None,
    workspace_io: options.WorkspaceIo = None,
    pool: options.Pools = None,
    board_pools: options.BoardPools = False,
    constants: options.Constants = None,
    load_constants: options.LoadConstants = None,
    share_workspace: options.ShareWorkspace = None,
    share_weights: options.ShareWeights = None,
    emit: options.Emit = "mlf",
    ram: options.Ram = None,
    flash: options.Flash = None,
    test_vectors: options.TestVectors = None,
    seed: options.VectorSeed = None,
    source_params: options.SourceParams = None,
    runtime: options.Runtime = None,
    format_version: options.FormatVersion = None,
    rfc: options.Rfc = None,
    params_form: options.ParamsForm = None,
    as_json: Json = False,
) -> None:
    """Compile models to an archive, C, objects or a shared library."""
    from mlforge.support.atomic import check_writable

    named = _named(models, module_name)
    archives = _archives(named, module_name)
    asked = {
        "source_params": source_params,
        "runtime": runtime,
        "test_vectors": test_vectors,
        "seed": seed,
        "format_version": format_version,
        "rfc": rfc,
        "params_form": params_form,
        "share_workspace": share_workspace,
        "share_weights": share_weights,
    }
    export = options.export_options(asked, emit, archives[0] if archives else None)
    place = _output(output, named, emit, bool(archives), ".model-lib" if rfc else ".tar")
    if emit not in ("c", "o"):
        check_writable(place)
    memories = asked_placement(
        workspace_io, pool or (), constants or (), load_constants or (), (board or "") if board_pools else None
    )
    chosen, limit = (target, ram) if board is None else board_asks(board, target, ram)
    if ram is None and memories.get("pools"):
        limit = None  # pools have limits of their own
    wanted = BuildOptions(chosen, optimize, numerics, executor or (), external_workspace, shape or (), memories, limit)
    factories = compile_archive(archives[0], wanted) if archives else compile_files(named, wanted)
    table = fitting_memory(factories, board, ram, flash, export)
    with stage(f"writing {place}"):
        _write(factories, place, emit, export)
    _report(factories, place, table, as_json)
    if ram is not None and board is None and not as_json:
        _print_lent(factories, ram)


def _print_lent(factories: Sequence[Factory], ram: int) -> None:
    """Say what comes on top of modules that keep within a budget: what their callers have to have."""
    lent = [item for item in factories if item.executor == "aot" and not item.placement.workspace_io]
    nbytes = sum(item.code.sizes.io for item in lent)
    total = sum(item.code.sizes.workspace for item in factories) + nbytes
    if lent and total > ram:
        typer.echo(
            f"inputs and outputs, {nbytes:,} bytes, are the caller's and come on top of --ram: {total:,} bytes in all; "
            "--workspace-io puts them into the workspace"
        )


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


def _report(factories: Sequence[Factory], place: Path, table: MemoryTable | None, as_json: bool) -> None:
    from mlforge.archive.metadata import module_details

    details = {factory.module_name: module_details(factory) for factory in factories}
    if as_json:
        modules = {
            name: {key: item[key] for key in ("entry", "memory", "stripes") if key in item}
            for name, item in details.items()
        }
        print_json({"output": str(place), "modules": modules, **({"board": table.as_json()} if table else {})})
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
    for item in details.values():
        if "stripes" in item:
            typer.echo(printable(stripes_line(item["stripes"], len(item["operators"]))))
    print_table(f"{place}: bytes", ("module", "workspace", "lower bound", "constants", "inputs and outputs"), rows)
    if table is not None:
        print_memory(table)
