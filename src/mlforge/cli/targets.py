"""``mlforge targets``."""

from __future__ import annotations

from dataclasses import asdict

from mlforge.cli.options import Json
from mlforge.cli.tables import print_json, print_table

EXAMPLES = ("mlforge targets", 'mlforge compile kws.tflite --target "c -mcpu=cortex-m4"')


def targets(as_json: Json = False) -> None:
    """List the processors for --target 'c -mcpu=NAME'."""
    from mlforge.target.target import CPUS

    known = {name: asdict(CPUS.get(name)) for name in CPUS}
    if as_json:
        print_json(known)
        return
    rows = [(name, item["vector_bytes"], item["vector_registers"]) for name, item in known.items()]
    print_table("targets", ("c -mcpu=", "vector bytes", "registers"), rows)
