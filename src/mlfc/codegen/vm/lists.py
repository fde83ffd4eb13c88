"""Operators on lists of tensors, as bytecode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mlfc.support import bytecode as bc
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Symbol
from mlfc.tir.ir import Value


def joined_extents(
    main: bc.FunctionBuilder,
    items: bc.ListRegister,
    output: Value,
    fresh: Sequence[Symbol],
    register: Callable[[Symbol], bc.IntegerRegister],
    *,
    is_stack: bool,
) -> None:
    """Write what finds the extents of a list's tensors put together, those that are not known: symbols of their own."""
    for axis, extent in enumerate(output.shape):
        symbol = _symbol(extent)
        if symbol is None or symbol not in fresh:
            continue
        if axis == 0 and is_stack:
            main.length(items, register(symbol))
        elif axis == 0:
            total = main.integer(0, register(symbol))
            with _each(main, items) as (_, item):
                main.compute("add", total, main.extent(item, 0), total)
        else:
            main.extent(main.get(items, 0), axis - is_stack, register(symbol))


def put_together(
    main: bc.FunctionBuilder,
    items: bc.ListRegister,
    output: Value,
    target: bc.TensorRegister,
    *,
    is_stack: bool,
    is_elsewhere: bool = False,
) -> None:
    """Write the copies of a list's tensors into the one that they make; `is_elsewhere`: they may be on a device."""
    rank = len(output.shape) - is_stack
    place, rows = main.integer(0), main.integer(0)
    with _each(main, items) as (_, item):
        extents = [main.extent(item, axis) for axis in range(rank)]
        nbytes: bc.Integer = dtypes.nbytes(output.dtype)
        for extent in extents:
            nbytes = main.compute("mul", nbytes, extent)
        for axis in range(1, len(output.shape)):
            main.require_equal(extents[axis - is_stack], main.extent(target, axis), output.name)
        main.paste(target, place, main.to_device(item, bc.CPU) if is_elsewhere else item)
        main.compute("add", place, nbytes, place)
        main.compute("add", rows, 1 if is_stack else extents[0], rows)
    main.require_equal(rows, main.extent(target, 0), output.name)


@contextmanager
def _each(main: bc.FunctionBuilder, items: bc.ListRegister) -> Iterator[tuple[bc.IntegerRegister, bc.TensorRegister]]:
    """Write a loop over the tensors of a list."""
    index, count, again, end = main.integer(0), main.length(items), main.label(), main.label()
    main.place(again)
    main.branch(main.compute("lt", index, count), end)
    yield index, main.get(items, index)
    main.compute("add", index, 1, index)
    main.jump(again)
    main.place(end)


def _symbol(extent: Extent) -> Symbol | None:
    return extent.symbol if isinstance(extent, Dim) else None
