"""Functions by which the main function of a dynamic model launches a device's kernels.

They take handles of the device's memory, from its first byte on. Kernels are found by name in what the library imports,
as from the graph executor's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.host import tvm
from mlfc.codegen.host.launch import IMPORTED, LAUNCH, launch_extents
from mlfc.codegen.vm.dimension_code import Dimensions
from mlfc.support.c_names import KEYWORDS, unique
from mlfc.support.dims import LARGEST, Dim
from mlfc.support.executable import RunCode
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, UINT8, Body, Expr, Function, Name, Number, Operand
from mlfc.tir.ir import MOST_GROUPS_ACROSS, PrimFunc

_RESERVED = ("imported", "data", "values", "codes", "lengths", *KEYWORDS)


def device_launcher(kernel: PrimFunc, name: str, launched: Sequence[DeviceKernel]) -> Function:
    """Return the function `name`, which launches the kernels of a function of a device."""
    body = Body()
    buffers = (*kernel.params, *kernel.scratch)
    places = {buffer: place for place, buffer in enumerate(buffers)}
    taken = {*_RESERVED, *(f"tensors_{at}" for at in range(len(launched)))}
    handles = [Name(tvm.ADDRESS, text) for text in unique((f"handle_{place}" for place in places.values()), taken)]
    taken |= {handle.name.lower() for handle in handles}

    def refuse(condition: Expr, _why: RunCode, *_values: Operand) -> None:
        body.fails_where(condition)

    dimensions = Dimensions(body, refuse, taken)
    numbers = [dimensions.symbol(symbol) for symbol in kernel.symbols]
    parameters = tuple(Name(INT32, dimensions.fresh(f"{number.name}_given")) for number in numbers)
    body.add(*(host.Declare(number, given) for number, given in zip(numbers, parameters, strict=True)))
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
    for place, handle in enumerate(handles):
        body.assign(data[place], handle)
    own = dict(zip(kernel.symbols, numbers, strict=True))
    for at, item in enumerate(launched):
        _require_groups(dimensions, item)
        given = [own[symbol] for symbol in item.symbols] + [dimensions.of(extent) for extent in extents[at]]
        for place, value in enumerate(given):
            body.assign(lengths[place], value)
        what = (data, chosen[at], len(item.arguments), lengths, len(given), values, codes)
        body.requires(LAUNCH(item.name, imported[at].address, *what))
    body.returns(0)
    return Function(name, INT32, (*handles, *parameters), body.stmts, is_static=True)


def _require_groups(dimensions: Dimensions, kernel: DeviceKernel) -> None:
    """Write the checks that devices take the groups of a launch, and that an int32 counts their work-items."""
    limits = (LARGEST // prod(kernel.block), MOST_GROUPS_ACROSS, MOST_GROUPS_ACROSS)
    for extent, limit in zip(kernel.grid, limits, strict=True):
        if isinstance(extent, Dim):
            dimensions.require(extent, -(1 << 62), limit, RunCode.KERNEL)
