"""``mlfc devices``."""

from __future__ import annotations

from typing import Any

import typer

from mlfc.cli.options import Json
from mlfc.cli.tables import print_json, print_table
from mlfc.support.text import printable

EXAMPLES = ("mlfc devices", "mlfc compile resnet18.onnx --target opencl")


def devices(as_json: Json = False) -> None:
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
