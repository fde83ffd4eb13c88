"""Which devices a graph runs on."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import RunError
from mlfc.runtime.devices.device import Device, cpu, device_of_code, require_device
from mlfc.runtime.executors.graph_json import Graph

_CPU = cpu().type_code


def graph_devices(graph: Graph, given: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """Return the devices of a graph, each of another kind, the CPU among them.

    Parameters
    ----------
    graph : Graph
    given : Device or sequence of Device, optional
        In any order; the CPU may be left out. Without any, the first device of each kind that the graph names.

    Raises
    ------
    InputError
        For what is no device.
    RunError
        If a kind that the graph names is not given, one is given twice, or one that the graph does not name.
    """
    asked = [require_device(device) for device in _listed(given)]
    needed = [device_of_code(code) for code in sorted({entry.device_type for entry in graph.entries} | {_CPU})]
    if not asked:
        return tuple(needed)
    shown = ", ".join(map(str, asked))
    if len({device.kind for device in asked}) != len(asked):
        raise RunError(f"a graph runs on one device of a kind, not on {shown}", next_step="Give one of each kind")
    for device in asked:
        if all(device.kind != item.kind for item in needed):
            kinds = " and ".join("the CPU" if item.kind == "cpu" else item.kind for item in needed)
            raise RunError(
                f"the graph runs on {kinds}, not on {device}",
                next_step=f"Compile the model for {device.kind}, or give mlfc.device('{needed[-1].kind}')",
            )
    missing = [item for item in needed if all(item.kind != device.kind for device in asked)]
    for item in missing:
        if item.kind != "cpu":
            raise RunError(
                f"the graph has tensors on {item.kind}, and is given {shown} alone",
                next_step=f"Give mlfc.device('{item.kind}'), too",
            )
    return (*asked, *missing)


def _listed(given: Device | Sequence[Device] | None) -> Sequence[Device]:
    if isinstance(given, (list, tuple)):
        return given
    return () if given is None else (given,)  # type: ignore[return-value]  # other sequences are no devices
