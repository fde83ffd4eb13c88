"""``mlfc compile``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.archive.write.options import ExportOptions
from mlfc.cli import compile_options
from mlfc.cli.memory import fitting_memory, print_memory
from mlfc.cli.options import BoardOptions, Fields, Inputs, parse_models
from mlfc.cli.tables import LEVELS_TITLE, device_line, print_json, print_table, tiling_line
from mlfc.errors import OptionError, ProblemsError
from mlfc.options import CompileOptions
from mlfc.support.progress import bar, stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.factory import Factory
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

_TAKEN = {"matrix", "scheduler", "output", "as_json"}


def compile_models(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model files; NAME=FILE names a module. Or one archive, which is recompiled from its own source.",
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
    placement: compile_options.PlacementOptions,
    sharing: Annotated[dict[str, Any], Fields(ExportOptions, ("share_workspace", "share_weights"), optional=True)],
    library: compile_options.LibraryOptions,
    archived: Annotated[dict[str, Any], Fields(ExportOptions, _ARCHIVED, optional=True, panel="Archive")],
    params_form: list[str] | None = None,
) -> None:
    """Compile models to an archive, C, objects or a library.

    With several models, --shape, --value, --state and --specialize start with a model's name: MODEL:NAME=1,3,224,224.
    """
    from mlfc.archive.describe.inspect_library import inspect_library

    if matrix is not None:
        compile_rows(matrix, output, scheduler, as_json, ctx)
        return
    if scheduler is not None:
        raise OptionError(
            "option --scheduler requires --matrix",
            place="--scheduler",
            next_step="Add --matrix FILE.toml, or leave it out",
        )
    if not models:
        raise OptionError("expected a model", place="MODEL", next_step="Pass a file: mlfc compile model.onnx")
    del config  # its callback has set the defaults from the file
    on_board = board.chosen(target)
    named, archives = _named(models, module_name)
    form = compile_options.form_of(emit, output)
    export = compile_options.export_options(archived, params_form, sharing, form, archives[0] if archives else None)
    linking = library.arguments(form, board.board)
    suffixes = {"mlf": ".model-lib" if archived.get("rfc") else ".tar", "so": library.suffix}
    place = output or _default_output(named, form, bool(archives), suffixes)
    replaces = form not in ("c", "o") and _replaces(place, is_default=output is None)
    placing = placement.arguments(on_board)
    chosen, limit = target if on_board is None else on_board.target, ram
    if on_board is not None and ram is None and on_board.memories:
        limit = max(0, on_board.ram.nbytes - on_board.stack_bytes)  # for workspace, inputs and outputs
    if chosen is None and not archives:
        chosen = library.target(form)
    if ram is None and placing.get("pools"):
        limit = None  # pools have separate limits
    choices = {"target": chosen, "ram": limit, "parallel": library.parallel}
    if archives:
        factories = compile_options.compile_archive(
            archives[0], inputs, executor, specialize, {**code, **placing, **choices}
        )
    else:
        factories = compile_options.compile_files(named, inputs, (executor, specialize), placing, {**code, **choices})
    if code.get("target_host") is not None and not any(factory.target_host for factory in factories):
        raise OptionError(
            f"option --target-host requires a device target, got '{factories[0].target}'",
            place="--target-host",
            next_step="Remove --target-host, or compile for a device: --target opencl",
        )
    table = fitting_memory(factories, on_board, ram, flash, export)
    if form in compile_options.LIBRARIES:  # with a bar
        _write_library(factories, place, form, export, linking, as_json)
    else:
        with stage(f"writing {place}"):
            _write(factories, place, form, export, on_board)
    levels: dict[str, int] = {}
    if any(factory.code.levels for factory in factories) and place.is_file():
        levels = inspect_library(place)["library"]["levels"]
    written = f"{place}, replacing the earlier one" if replaces and not as_json else f"{place}"
    _report(factories, written, table, levels, as_json)
    _print_use(factories, code, as_json)
    if ram is not None and on_board is None and not as_json:
        _print_lent(factories, ram)


def _print_lent(factories: Sequence[Factory], ram: int) -> None:
    """Print the memory that callers provide in addition to modules within a budget."""
    lent = [item for item in factories if item.executor == "aot" and not item.memory_options.workspace_io]
    nbytes = sum(item.code.sizes.io for item in lent)
    total = sum(item.code.sizes.workspace for item in factories) + nbytes
    if lent and total > ram:
        typer.echo(
            f"inputs and outputs, {nbytes:,} bytes, belong to the caller, not to --ram: {total:,} bytes in total; "
            "--workspace-io puts them into the workspace"
        )


def _named(models: Sequence[str], module_name: str | None) -> tuple[dict[str, Path], list[Path]]:
    """Return the files by module name, and the archives among them: either one or none."""
    from mlfc.archive.read.load import artifact_kind
    from mlfc.support.c_names import module_name as checked_name

    named = parse_models(models)
    if module_name is not None:
        if len(named) != 1:
            raise OptionError(
                "option --module-name requires a single model", next_step="Write NAME=FILE for each model"
            )
        if checked_name(module_name) != module_name.lower():
            raise OptionError(
                f"expected letters, digits and underscores, got '{module_name}'",
                place="--module-name",
                next_step=f"Use {checked_name(module_name)}",
            )
        named = {module_name.lower(): next(iter(named.values()))}
    archives = [path for path in named.values() if path.is_file() and artifact_kind(path) == "archive"]
    if archives and (len(named) > 1 or module_name is not None):
        raise OptionError(
            "an archive must be compiled alone, and keeps its module names",
            place=str(archives[0]),
            next_step="Remove the other files and --module-name",
        )
    return named, archives


def _default_output(named: Mapping[str, Path], emit: str, from_archive: bool, suffixes: Mapping[str, str]) -> Path:
    if from_archive and emit == "mlf":
        raise OptionError("the default output would replace the archive", next_step="Name another file with -o")
    if len(named) != 1:
        raise OptionError("several models require option -o", next_step="Name the output with -o")
    name = next(iter(named))
    return Path(f"{name}{ {'c': '_c', 'o': '_o', 'a': '.a', 'tar': '_lib.tar', **suffixes}[emit] }")


def _replaces(place: Path, *, is_default: bool) -> bool:
    """Return whether a default output replaces an earlier one; raise OutputError if the output cannot be written."""
    from mlfc.archive.read.load import artifact_kind
    from mlfc.support.atomic import check_writable, replaces_earlier

    if is_default:
        return replaces_earlier(place, lambda path: artifact_kind(path) != "model")
    check_writable(place)
    return False


def _write(factories: Sequence[Factory], place: Path, emit: str, options: ExportOptions, board: Board | None) -> None:
    from mlfc import archive
    from mlfc.library.toolchain import named_compiler
    from mlfc.micro.board.object_code import core_flags
    from mlfc.micro.board.programs import need
    from mlfc.support.atomic import write_folder

    if emit == "mlf":
        archive.export_model_library_format(factories, place, options=options)
    elif emit == "c":
        write_folder(place, archive.source_folder(factories, options))
    else:
        compiler = None  # that of the environment, which the user has chosen, or this machine's
        if board is not None and not os.environ.get("CC"):
            program = need(f"{board.toolchain.prefix}gcc", board.toolchain.packages)
            flags = core_flags(board, archive.code_files(factories))
            compiler = named_compiler(shlex.join((program, *flags)))
        write_folder(place, archive.object_files(factories, options, compiler))


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
    factories: Sequence[Factory],
    place: Path,
    emit: str,
    options: ExportOptions,
    linking: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Write a library of modules and, if C can call them through structs of pointers, its header."""
    from mlfc.factory import library_root
    from mlfc.library.export import export_library
    from mlfc.support.atomic import write_bytes
    from mlfc.support.content import to_bytes

    wanted = _SUFFIXES.get(emit)
    if (wanted is None and place.suffix in (*_SUFFIXES.values(), ".o")) or (wanted and place.suffix != wanted):
        raise OptionError(
            f"expected a file name for --emit {emit}, got '{place.name}'",
            place="-o",
            next_step=f"Name it {place.stem}{wanted or '.so'}",
        )
    count = max(len(item.unit.levels.levels) if item.unit.levels else 1 for item in factories)
    alone = f"for this processor alone, in about 1/{count} of the time: --target 'c -mcpu=native'"
    hints = [f"compiling for {count} processor levels; {alone}"] if count > 1 and not as_json else []
    root = library_root(
        factories, share_workspace=bool(options.share_workspace), share_weights=bool(options.share_weights)
    )
    with bar(f"compiling {place.name}") as show:

        def say(done: int, total: int, note: str) -> None:
            if hints:  # before the first
                typer.echo(hints.pop())
            show(done, total, note)

        export_library(root, place, system_lib=options.system_lib, **linking, progress=say)
    headers = [item.code.files[f"include/{item.code.header_name}"] for item in factories if item.code.header_name]
    if headers:
        write_bytes(place.with_suffix(".h"), b"\n".join(map(to_bytes, headers)))


def _print_use(factories: Sequence[Factory], code: Mapping[str, Any], as_json: bool) -> None:
    """Print how much of the code external generators and the tuning log determine; warn of generators without use."""
    from mlfc.target.tuning_log import kernels_of

    calls = [call for factory in factories for call in factory.program.calls]
    names = dict.fromkeys(call.kernel.name for call in calls)
    nodes = sum(len(call.nodes) for call in calls)
    for generator in code.get("byoc", ()):
        own = sum(len(call.nodes) for call in calls if call.kernel.name.startswith(f"{generator}_"))
        if not own:
            typer.echo(f"warning: --byoc {generator}: no node is for it; mlfc compiled all {nodes}", err=True)
        elif not as_json:
            typer.echo(f"{generator}: {own} of {nodes} nodes")
    if as_json:
        return
    if code.get("tuned") is not None:
        used = {key for factory in factories for key in kernels_of(factory.target_host or factory.target)}
        typer.echo(printable(f"{code['tuned']}: values for {len(used)} of {len(names)} kernels"))


def _bounded(details: ModuleInfo, nbytes: int) -> int | str:
    """Return the bytes of a memory, or that dynamic dimensions have no bound."""
    return "no bound" if details.vm is not None and details.vm.arena_bytes is None else nbytes


def compile_rows(
    matrix: Path, output: Path | None, scheduler: str | None, as_json: bool, context: typer.Context
) -> None:
    """Compile the rows of a matrix file, print the results, and raise ProblemsError for the rows that failed."""
    from mlfc.matrix.compile_matrix import board_memory, compile_matrix, memory_of

    given = [
        max(param.opts, key=len) if param.param_type_name == "option" else "MODEL"
        for param in context.command.params
        if param.name not in _TAKEN
        and param.name is not None
        and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
        and context.params.get(param.name)
    ]
    if given:  # rows have their own options
        raise OptionError(
            f"option --matrix excludes {', '.join(given)}",
            place="--matrix",
            next_step="Move models and options to the matrix file",
        )
    if output is None:
        raise OptionError("option --matrix requires -o", place="-o", next_step="Add a folder or an archive: -o all.tar")
    made = compile_matrix(matrix, output, scheduler=scheduler, progress=True)
    if as_json:
        print_json({"output": str(output), "rows": list(made.entries)})
    else:
        rows = []
        for item in made.entries:
            nbytes = sum(one["bytes"] for one in item["files"]) if "files" in item else None
            rows.append((item["row"], item["status"], nbytes, *memory_of(item), *board_memory(item)))
        columns = ("row", "status", "bytes", "workspace", "constants", "inputs and outputs", "RAM", "flash")
        print_table(f"{output}: bytes", columns, rows)
    if made.problems:
        raise ProblemsError(made.problems, place=str(matrix))
