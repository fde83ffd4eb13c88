"""``mlforge compile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlforge.cli.options import Json, Numerics, Optimize, Target, parse_models, shapes_by_model
from mlforge.cli.tables import print_json, print_table
from mlforge.errors import OptionError
from mlforge.support.progress import stage

if TYPE_CHECKING:
    from mlforge.compiler import Factory

EMITS = ("mlf", "c", "o", "so")
EXAMPLES = (
    "mlforge compile kws.tflite",
    "mlforge compile resnet.onnx --shape input=1,3,224,224 -o resnet.tar",
    'mlforge compile kws.tflite --target "c -mcpu=cortex-m4" --ram 65536 --flash 262144',
    "mlforge compile kws=a.tflite ic=b.onnx --shape ic:input=1,3,32,32 -o both.tar",
    "mlforge compile kws.tflite --emit c -o kws_code",
    "CC='arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb' mlforge compile kws.tflite --emit o -o kws_objects",
)


@dataclass(frozen=True)
class _Options:
    target: str
    executor: str
    optimize: str
    numerics: str


def compile_models(
    models: Annotated[list[str], typer.Argument(help="Model files; NAME=FILE names a module.", metavar="MODEL")],
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: <name>.tar.")] = None,
    target: Target = "c",
    executor: Annotated[str, typer.Option(help="aot.")] = "aot",
    module_name: Annotated[str | None, typer.Option(help="Default: from the file name.")] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=1,3,224,224",
            help="Fix the shape of an input; may be given again. With several models: MODEL:NAME=1,3,224,224.",
        ),
    ] = None,
    optimize: Optimize = "speed",
    numerics: Numerics = "litert",
    emit: Annotated[
        str,
        typer.Option(help="mlf (archive), c (C files in a folder), o (objects and headers in a folder), so (library)."),
    ] = "mlf",
    ram: Annotated[int | None, typer.Option(help="Fail if workspace, inputs and outputs have more bytes.")] = None,
    flash: Annotated[
        int | None, typer.Option(help="Fail if the constants have more bytes; machine code comes on top.")
    ] = None,
    include_source_params: Annotated[
        bool, typer.Option("--include-source-params", help="Keep the model's own weights in the archive.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile models to an archive, C, objects or a shared library."""
    from mlforge import archive
    from mlforge.archive.budget import check_budget
    from mlforge.support.atomic import check_writable, write_folder
    from mlforge.support.c_names import module_name as checked_name

    named = parse_models(models)
    if module_name is not None:
        if len(named) != 1:
            raise OptionError("--module-name names one model", next_step="Write NAME=FILE for each of several")
        # the name that the code gets is the name of the file: "../x" names no folder
        named = {checked_name(module_name): next(iter(named.values()))}
    place = _output(output, named, emit)
    if emit not in ("c", "o"):
        check_writable(place)
    options = _Options(target, executor, optimize, numerics)
    factories = _build(named, shapes_by_model(shape, list(named)), options)
    check_budget(factories, ram=ram, flash=flash)
    with stage(f"writing {place}"):
        if emit == "mlf":
            archive.export_model_library_format(factories, place, include_source_params=include_source_params)
        elif emit == "c":
            write_folder(place, archive.code_files(factories))
        elif emit == "o":
            write_folder(place, archive.object_files(factories))
        else:
            archive.export_shared_library(factories, place)
    _report(factories, place, as_json)


def _output(output: Path | None, named: Mapping[str, Path], emit: str) -> Path:
    if emit not in EMITS:
        raise OptionError(f"there is no form '{emit}' to emit", next_step=f"Use {', '.join(EMITS)}")
    if output is not None:
        return output
    if len(named) != 1:
        raise OptionError("several models need a name for the output", next_step="Give one with -o")
    name = next(iter(named))
    return Path({"mlf": f"{name}.tar", "c": f"{name}_c", "o": f"{name}_o", "so": f"{name}.so"}[emit])


def _build(
    named: Mapping[str, Path], shapes: Mapping[str, Mapping[str, tuple[int, ...]]], options: _Options
) -> list[Factory]:
    from mlforge.compiler import build
    from mlforge.frontend import import_model

    factories = []
    for name, path in named.items():
        with stage(f"compiling {path}"):
            mod, params = import_model(path, shapes=shapes[name], numerics=options.numerics)
            factories.append(
                build(
                    mod,
                    options.target,
                    params,
                    executor=options.executor,
                    module_name=name,
                    optimize=options.optimize,
                    numerics=options.numerics,
                )
            )
    return factories


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
