"""``mlfc devices``, ``mlfc operators`` and ``mlfc targets``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from mlfc.cli.tables import print_json, print_table
from mlfc.support.text import printable

DEVICES_EXAMPLES = ("mlfc devices", "mlfc compile resnet18.onnx --target opencl")
OPERATORS_EXAMPLES = ("mlfc operators", "mlfc operators --json")
TARGETS_EXAMPLES = (
    "mlfc targets",
    'mlfc compile kws.tflite --target "c -mcpu=cortex-m4"',
    'mlfc compile kws.tflite --target "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4"',
)


def devices(as_json: bool = False) -> None:
    """List the devices that models can run on here, and what would make those of other kinds appear."""
    from mlfc.errors import DeviceError
    from mlfc.runtime.devices.device import devices_of, known_kinds

    found: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for kind in known_kinds():
        try:
            found += [
                {"device": str(api.device), "name": api.name, "memory": api.memory_bytes, "driver": api.driver}
                for api in devices_of(kind)
            ]
        except DeviceError as error:
            missing[kind] = str(error)
    if as_json:
        print_json({"devices": found, "missing": missing})
        return
    print_table("devices", ("device", "name", "memory", "driver"), [list(item.values()) for item in found])
    for kind, reason in missing.items():
        typer.echo(f"no {kind}: {printable(reason)}")


def operators(as_json: bool = False) -> None:
    """List the operators and their numeric contracts."""
    from mlfc.relay.op import OPERATORS

    known = [OPERATORS.get(name) for name in OPERATORS]
    if as_json:
        print_json(
            {
                item.name: {
                    "attributes": [attr.name for attr in item.attrs],
                    "kind": item.kind.value,
                    "contract": item.contract,
                    "doc": item.doc,
                }
                for item in known
            }
        )
        return
    print_table(
        "operators", ("name", "kind", "contract", ""), [(i.name, i.kind.value, i.contract, i.doc) for i in known]
    )


def targets(as_json: bool = False) -> None:
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
