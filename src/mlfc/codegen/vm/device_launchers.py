"""Functions by which the virtual machine launches a device's kernels, with the checks that `launchers` makes.

Buffers hold handles of the device's memory, from its first byte on. Kernels are found by name in what the library
imports, as from the graph executor's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.host import tvm
from mlfc.codegen.host.launch import IMPORTED, LAUNCH, launch_extents
from mlfc.codegen.vm.launchers import LAUNCHED, Sizes, named_numbers, number
from mlfc.support.dims import LARGEST, Dim
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, UINT8, Body, Function, Number
from mlfc.tir.ir import MOST_GROUPS_ACROSS, PrimFunc


def device_launcher(kernel: PrimFunc, name: str, launched: Sequence[DeviceKernel]) -> Function:
    """Return the function `name` that checks what a function of a device is given and launches its kernels."""
    body = Body()
    buffers = LAUNCHED[0]
    places = {buffer: place for place, buffer in enumerate((*kernel.params, *kernel.scratch))}
    extents = [tuple(launch_extents(item).values()) for item in launched]
    sizes_of = [len(item.symbols) + len(lengths) for item, lengths in zip(launched, extents, strict=True)]
    most = max(len(item.arguments) + count for item, count in zip(launched, sizes_of, strict=True))
    chosen = [
        body.table(f"tensors_{at}", UINT8, [Number(UINT8, places[buffer]) for buffer in item.arguments])
        for at, item in enumerate(launched)
    ]
    imported = body.table("imported", IMPORTED, count=len(launched))
    data = body.array("data", tvm.ADDRESS, len(places))
    values, codes = body.array("values", tvm.VALUE, most), body.array("codes", host.INT, most)
    lengths = body.array("lengths", INT64, max(sizes_of))
    own = dict(zip(kernel.symbols, named_numbers(body, kernel), strict=True))
    sizes = Sizes(body, own)
    for buffer, place in places.items():
        sizes.require(buffer, buffers[place])
        body.assign(data[place], buffers[place]["data"].cast(tvm.ADDRESS))
    for at, item in enumerate(launched):
        _require_groups(sizes, item, body)
        given = [own[symbol] for symbol in item.symbols] + [sizes.value(extent) for extent in extents[at]]
        for place, value in enumerate(given):
            body.assign(lengths[place], value)
        what = (data, chosen[at], len(item.arguments), lengths, len(given), values, codes)
        body.requires(LAUNCH(item.name, imported[at].address, *what))
    body.returns(0)
    return Function(name, INT32, LAUNCHED, body.stmts, is_static=True)


def _require_groups(sizes: Sizes, kernel: DeviceKernel, body: Body) -> None:
    """Write the checks that devices take the groups of a launch, and that an int32 counts their work-items."""
    limits = (LARGEST // prod(kernel.block), MOST_GROUPS_ACROSS, MOST_GROUPS_ACROSS)
    for extent, limit in zip(kernel.grid, limits, strict=True):
        if isinstance(extent, Dim):
            body.fails_where(sizes.value(extent) > number(limit))
