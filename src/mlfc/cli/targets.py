"""``mlfc targets``."""

from __future__ import annotations

from dataclasses import asdict

from mlfc.cli.options import Json
from mlfc.cli.tables import print_json, print_table

EXAMPLES = (
    "mlfc targets",
    'mlfc compile kws.tflite --target "c -mcpu=cortex-m4"',
    'mlfc compile kws.tflite --target "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4"',
)


def targets(as_json: Json = False) -> None:
    """List what --target takes: kinds, with their options, and processors.

    The kind llvm also knows every other processor that LLVM has.
    """
    from mlfc.target.features import CPUS
    from mlfc.target.target import KINDS

    kinds = {name: KINDS.get(name) for name in KINDS}
    known = {name: asdict(CPUS.get(name).features) for name in CPUS}
    if as_json:
        listed = {name: {"options": kind.options, "device": kind.device} for name, kind in kinds.items()}
        print_json({"kinds": listed, "cpus": known})
        return
    options = {name: " ".join(f"{option}=..." for option in kind.options) for name, kind in kinds.items()}
    runs_on = {name: f"{kind.device}, beside a host" if kind.device else "host" for name, kind in kinds.items()}
    print_table("kinds", ("kind", "runs on", "options"), [(name, runs_on[name], options[name]) for name in kinds])
    rows = [(name, item["vector_bytes"], item["vector_registers"]) for name, item in known.items()]
    print_table("processors of c and llvm", ("-mcpu=", "vector bytes", "registers"), rows)
