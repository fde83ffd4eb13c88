"""``mlfc compile``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.archive.write.options import ExportOptions
from mlfc.cli.compile_options import (
    LIBRARIES,
    LibraryOptions,
    PlacementOptions,
    export_options,
    form_of,
)
from mlfc.cli.compiling import board_asks, compile_archive, compile_files, is_archive
from mlfc.cli.matrix import compile_rows, refuse_scheduler
from mlfc.cli.memory import fitting_memory, print_memory
from mlfc.cli.options import BoardOptions, Fields, Inputs, parse_models
from mlfc.cli.tables import LEVELS_TITLE, device_line, print_json, print_table, tiling_line
from mlfc.errors import OptionError
from mlfc.options import CompileOptions
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.library.toolchain import Compiler
    from mlfc.micro.board.board import Board
    from mlfc.micro.memory.memory_table import MemoryTable
    from mlfc.support.module_info import ModuleInfo

_CODE = ("target_host", "optimize", "numerics", "byoc", "limit_factor", "tuned")
_ARCHIVED = ("test_vectors", "seed", "source_params", "runtime", "system_lib", "format_version", "rfc")
_SUFFIXES = {"a": ".a", "tar": ".tar"}
EXAMPLES = (
    "mlfc compile kws.tflite",
    "mlfc compile resnet.onnx --shape input=1,3,224,224 -o resnet.tar",
    'mlfc compile kws.tflite --target "c -mcpu=cortex-m4" --ram 65536 --flash 262144',
    "mlfc compile vad.onnx --shape input=1,512 --value sr=16000",
    "mlfc compile gru.onnx --state h_in=h_out --state-init zeros",
    "mlfc compile bert.onnx --specialize batch=1 --specialize batch=8",
    "mlfc compile kws.tflite --board mps2-an386",
    "mlfc compile kws.tflite --config build.toml --ram 32768",
    "mlfc compile kws.tflite --workspace-io --pool dtcm=65536 --pool sram",
    "mlfc compile kws=a.tflite ic=b.onnx --shape ic:input=1,3,32,32 --share-workspace -o both.tar",
    "mlfc compile kws.tflite --executor graph --test-vectors 3",
    "mlfc compile resnet18.onnx --target opencl --emit so",
    'mlfc compile kws.tflite --target "c -mcpu=cortex-m4" --numerics tflm --byoc cmsis_nn',
    "mlfc compile detector.onnx --byoc onnxruntime --emit so",
    'mlfc compile kws.tar --target "c -mcpu=cortex-m4" -o kws_m4.tar',
    "mlfc compile --matrix matrix.toml -o all",
    "mlfc compile --matrix matrix.toml --scheduler tcp://10.0.0.5:8786 -o all.tar",
    "mlfc compile kws.tflite --emit c -o kws_code",
    "mlfc compile kws.tflite -o kws.so",
    "mlfc compile resnet18.onnx --tuned tune.jsonl -o resnet18.so",
    "mlfc compile resnet.onnx --executor graph --emit so --triple aarch64-linux-gnu -o resnet_arm.so",
    "mlfc compile kws.tflite --emit o --board nucleo_l4r5zi -o kws_objects",
    "CC='arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb' mlfc compile kws.tflite --emit o -o kws_objects",
)


def compile_models(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model files; NAME=FILE names a module. Or one archive, which is compiled again from its own source.",
        ),
    ] = None,
    *,
    output: Path | None = None,
    matrix: Path | None = None,
    scheduler: str | None = None,
    target: str | None = None,
    board: BoardOptions,
    inputs: Inputs,
    executor: list[str] | None = None,
    code: Annotated[dict[str, Any], Fields(CompileOptions, _CODE, optional=True)],
    specialize: list[str] | None = None,
    module_name: str | None = None,
    emit: str | None = None,
    ram: int | None = None,
    flash: int | None = None,
    config: Path | None = None,
    as_json: bool = False,
    placement: PlacementOptions,
    sharing: Annotated[dict[str, Any], Fields(ExportOptions, ("share_workspace", "share_weights"), optional=True)],
    library: LibraryOptions,
    archived: Annotated[dict[str, Any], Fields(ExportOptions, _ARCHIVED, optional=True, panel="Archive")],
    params_form: list[str] | None = None,
) -> None:
    """Compile models to an archive, C, objects or a library.

    With several models, --shape, --value, --state and --specialize start with the name of one: MODEL:NAME=1,3,224,224.
    """
    from mlfc.support.atomic import check_writable

    if matrix is not None:
        compile_rows(matrix, output, scheduler, as_json, ctx)
        return
    refuse_scheduler(scheduler)
    if not models:
        raise OptionError("expected a model", place="MODEL", next_step="Name a file: mlfc compile model.onnx")
    del config  # its callback has made the file's options the defaults
    on_board = board.chosen(target)
    named = _named(models, module_name)
    archives = _archives(named, module_name)
    form = form_of(emit, output)
    export = export_options(archived, params_form, sharing, form, archives[0] if archives else None)
    linking = library.arguments(form, board.board)
    suffixes = {"mlf": ".model-lib" if archived.get("rfc") else ".tar", "so": library.suffix}
    place = _output(output, named, form, bool(archives), suffixes)
    if form not in ("c", "o"):
        check_writable(place)
    replaces = output is None and _is_earlier_output(place, form)
    placing = placement.arguments(on_board)
    chosen, limit = (target, ram) if on_board is None else board_asks(on_board, ram)
    if chosen is None and not archives:
        chosen = library.target(form)
    if ram is None and placing.get("pools"):
        limit = None  # pools have limits of their own
    choices = {"target": chosen, "ram": limit, "parallel": library.parallel}
    if archives:
        factories = compile_archive(archives[0], inputs, executor, specialize, {**code, **placing, **choices})
    else:
        factories = compile_files(named, inputs, (executor, specialize), placing, {**code, **choices})
    _check_host(code.get("target_host"), factories)
    table = fitting_memory(factories, on_board, ram, flash, export)
    with stage(f"writing {place}"):
        if form in LIBRARIES:
            _write_library(factories, place, form, export, linking)
        else:
            _write(factories, place, form, export, on_board)
    has_levels = any(factory.code.levels for factory in factories) and place.is_file()
    levels = _levels(place) if has_levels else {}
    replaces = replaces and not as_json
    _report(factories, f"{place}, in place of the earlier one" if replaces else f"{place}", table, levels, as_json)
    if ram is not None and on_board is None and not as_json:
        _print_lent(factories, ram)


def _print_lent(factories: Sequence[Factory], ram: int) -> None:
    """Say what comes on top of modules that keep within a budget: what their callers have to have."""
    lent = [item for item in factories if item.executor == "aot" and not item.memory_options.workspace_io]
    nbytes = sum(item.code.sizes.io for item in lent)
    total = sum(item.code.sizes.workspace for item in factories) + nbytes
    if lent and total > ram:
        typer.echo(
            f"inputs and outputs, {nbytes:,} bytes, are the caller's and come on top of --ram: {total:,} bytes in all; "
            "--workspace-io puts them into the workspace"
        )


def _named(models: Sequence[str], module_name: str | None) -> dict[str, Path]:
    from mlfc.support.c_names import module_name as checked_name

    named = parse_models(models)
    if module_name is None:
        return named
    if len(named) != 1:
        raise OptionError(
            "option --module-name requires a single model", next_step="Write NAME=FILE for each of several"
        )
    # the name that the code gets is the name of the file: "../x" names no folder
    return {checked_name(module_name): next(iter(named.values()))}


def _archives(named: Mapping[str, Path], module_name: str | None) -> list[Path]:
    archives = [path for path in named.values() if is_archive(path)]
    if archives and (len(named) > 1 or module_name is not None):
        raise OptionError(
            "an archive must be compiled alone, and keeps its module names",
            place=str(archives[0]),
            next_step="Remove the other files and --module-name",
        )
    return archives


def _output(
    output: Path | None, named: Mapping[str, Path], emit: str, from_archive: bool, suffixes: Mapping[str, str]
) -> Path:
    if output is not None:
        return output
    if from_archive and emit == "mlf":
        raise OptionError("the default output would replace the archive", next_step="Name another file with -o")
    if len(named) != 1:
        raise OptionError("several models require option -o", next_step="Name the output with -o")
    name = next(iter(named))
    return Path(f"{name}{ {'c': '_c', 'o': '_o', 'a': '.a', 'tar': '_lib.tar', **suffixes}[emit] }")


def _is_earlier_output(place: Path, form: str) -> bool:
    """Tell whether a file of the default name is to be replaced; raise OptionError if it is another program's."""
    from mlfc.archive.read.load import artifact_kind

    if not place.is_file():
        return False
    if form in ("mlf", "so") and artifact_kind(place) == "model":
        raise OptionError("exists, and mlfc did not make it", place=str(place), next_step="Name another file with -o")
    return True


def _check_host(target_host: str | None, factories: Sequence[Factory]) -> None:
    if target_host is not None and not any(factory.target_host for factory in factories):
        raise OptionError(
            f"option --target-host requires a device target, got '{factories[0].target}'",
            place="--target-host",
            next_step="Remove --target-host, or compile for a device: --target opencl",
        )


def _board_compiler(board: Board, factories: Sequence[Factory]) -> Compiler | None:
    """Return the compiler of a board's objects; None for that of the environment, which the user has chosen."""
    from mlfc.archive import code_files
    from mlfc.library.toolchain import named_compiler
    from mlfc.micro.board.object_code import core_flags
    from mlfc.micro.board.programs import need

    if os.environ.get("CC"):
        return None
    program = need(f"{board.toolchain.prefix}gcc", board.toolchain.packages)
    return named_compiler(shlex.join((program, *core_flags(board, code_files(factories)))))


def _write(factories: Sequence[Factory], place: Path, emit: str, options: ExportOptions, board: Board | None) -> None:
    from mlfc import archive
    from mlfc.support.atomic import write_folder

    if emit == "mlf":
        archive.export_model_library_format(factories, place, options=options)
    elif emit == "c":
        write_folder(place, archive.source_folder(factories, options))
    else:
        compiler = None if board is None else _board_compiler(board, factories)
        write_folder(place, archive.object_files(factories, options, compiler))


def _levels(place: Path) -> dict[str, int]:
    """Return the bytes of a library's kernels for each level of processors."""
    from mlfc.archive.describe.inspect_library import inspect_library

    levels: dict[str, int] = inspect_library(place)["library"]["levels"]
    return levels


def _report(
    factories: Sequence[Factory], written: str, table: MemoryTable | None, levels: Mapping[str, int], as_json: bool
) -> None:
    from mlfc.archive.details import module_info

    details = {factory.module_name: module_info(factory) for factory in factories}
    if as_json:
        modules = {
            name: {key: value for key, value in item.to_json().items() if key in ("entry", "memory", "stripes")}
            for name, item in details.items()
        }
        told = {"output": written, "modules": modules, **({"levels": levels} if levels else {})}
        print_json({**told, **({"board": table.as_json()} if table else {})})
        return
    columns = {
        "workspace": [_bounded(item, item.memory.workspace_bytes) for item in details.values()],
        "lower bound": [_bounded(item, item.memory.workspace_lower_bound_bytes) for item in details.values()],
        "constants": [item.memory.constants_bytes for item in details.values()],
        "inputs and outputs": [_bounded(item, item.memory.io_bytes) for item in details.values()],
    }
    if any(item.states for item in details.values()):
        columns["state"] = [item.memory.state_bytes for item in details.values()]
    for factory, item in zip(factories, details.values(), strict=True):
        if item.tiling:
            typer.echo(printable(tiling_line(item.tiling.to_json(), len(item.operators))))
        on_device = device_line([call.to_json() for call in item.operators], factory.target.device)
        if on_device:
            typer.echo(printable(on_device))
    print_table(f"{written}: bytes", ("module", *columns), list(zip(details, *columns.values(), strict=True)))
    if levels:
        print_table(LEVELS_TITLE, ("level", "bytes"), list(levels.items()))
    if table is not None:
        print_memory(table)


def _write_library(
    factories: Sequence[Factory], place: Path, emit: str, options: ExportOptions, linking: Mapping[str, Any]
) -> None:
    """Write a library of modules and, if C can call them by structures of pointers, the header beside it."""
    from mlfc.factory import library_root
    from mlfc.library.export import export_library
    from mlfc.support.atomic import write_bytes

    wanted = _SUFFIXES.get(emit)
    if (wanted is None and place.suffix in (*_SUFFIXES.values(), ".o")) or (wanted and place.suffix != wanted):
        raise OptionError(
            f"expected a file name for --emit {emit}, got '{place.name}'",
            place="-o",
            next_step=f"Name it {place.stem}{wanted or '.so'}",
        )
    root = library_root(
        factories, share_workspace=bool(options.share_workspace), share_weights=bool(options.share_weights)
    )
    export_library(root, place, **linking)
    header = b"\n".join(_headers(factories))
    if header:
        write_bytes(place.with_suffix(".h"), header)


def _headers(factories: Sequence[Factory]) -> list[bytes]:
    from mlfc.support.content import to_bytes

    return [
        to_bytes(factory.code.files[f"include/{factory.code.header_name}"])
        for factory in factories
        if factory.code.header_name is not None
    ]


def _bounded(details: ModuleInfo, nbytes: int) -> int | None:
    """Return the bytes of a memory, None where open extents have no bound."""
    return None if details.vm is not None and details.vm.arena_bytes is None else nbytes
