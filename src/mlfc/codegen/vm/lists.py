"""Operators on lists of tensors, as bytecode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from mlfc.support import bytecode as bc
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Symbol
from mlfc.tir.program import ListOperation, Value


class ListAssembler:
    """Writes operators on lists; `register` gives the register of a symbol.

    With `is_elsewhere`, tensors of lists may be on a device.
    """

    def __init__(
        self, main: bc.FunctionBuilder, register: Callable[[Symbol], bc.IntegerRegister], *, is_elsewhere: bool
    ) -> None:
        self._main = main
        self._is_elsewhere = is_elsewhere
        self._register = register

    # tensors of lists

    def joined_extents(self, step: ListOperation, items: bc.ListRegister) -> None:
        """Write what finds the extents of a list's tensors put together, those that are not known: symbols."""
        along = step.attrs.get("axis", 0)
        is_stack = step.operator == "list_stack"
        for axis, extent in enumerate(step.output.shape):
            symbol = _symbol(extent)
            if symbol is None or symbol not in step.fresh:
                continue
            register = self._register(symbol)
            if step.operator == "list_bytes":
                self._main.integer(0, register)
                with self._each(items) as (_, item):
                    self._main.compute("add", register, self._padded(self._item_bytes(step, item)), register)
            elif axis == along and step.operator != "list_concat":
                self._main.length(items, register)
            elif axis == along:
                self._main.integer(0, register)
                with self._each(items) as (_, item):
                    self._main.compute("add", register, self._main.extent(item, axis), register)
            else:
                self._main.extent(self._main.get(items, 0), axis - is_stack, register)

    def put_together(self, step: ListOperation, items: bc.ListRegister, target: bc.TensorRegister) -> None:
        """Write the copies of a list's tensors, or of what describes them, into the tensor that they make."""
        if step.operator == "list_extents":
            self._extents(step, items, target)
        elif step.operator == "list_bytes":
            self._bytes(step, items, target)
        elif step.operator == "list_stack":
            self._stacked(items, step.output, target)
        else:
            self._concatenated(items, step.output, target, step.attrs["axis"])

    def _stacked(self, items: bc.ListRegister, output: Value, target: bc.TensorRegister) -> None:
        main = self._main
        place, rows = main.integer(0), main.integer(0)
        with self._each(items) as (_, item):
            for axis in range(1, len(output.shape)):
                main.require_equal(main.extent(item, axis - 1), main.extent(target, axis), output.name)
            main.paste(target, place, self._here(item))
            nbytes = self._product(item, range(len(output.shape) - 1), dtypes.nbytes(output.dtype))
            main.compute("add", place, nbytes, place)
            main.compute("add", rows, 1, rows)
        main.require_equal(rows, main.extent(target, 0), output.name)

    def _concatenated(self, items: bc.ListRegister, output: Value, target: bc.TensorRegister, along: int) -> None:
        main = self._main
        rows, row = main.integer(0), self._nbytes(output, target, first=along)
        inner, count = self._nbytes(output, target, first=along + 1), self._product(target, range(along))
        with self._each(items) as (_, item):
            for axis in range(len(output.shape)):
                if axis != along:
                    main.require_equal(main.extent(item, axis), main.extent(target, axis), output.name)
            own = main.extent(item, along)
            part, start = main.compute("mul", own, inner), main.compute("mul", rows, inner)
            main.blocks(target, self._here(item), part, count, start=start, step=row, stride=part)
            main.compute("add", rows, own, rows)
        main.require_equal(rows, main.extent(target, along), output.name)

    def _extents(self, step: ListOperation, items: bc.ListRegister, target: bc.TensorRegister) -> None:
        main, place = self._main, self._main.integer(0)
        with self._each(items) as (_, item):
            for extent in self._item_extents(step, item, missing=-1):
                main.set_element(target, place, extent)
                main.compute("add", place, 1, place)

    def _bytes(self, step: ListOperation, items: bc.ListRegister, target: bc.TensorRegister) -> None:
        main, place = self._main, self._main.integer(0)
        with self._each(items) as (_, item):
            main.paste(target, place, self._here(item))
            main.compute("add", place, self._padded(self._item_bytes(step, item)), place)

    # lists of tensors

    def unpacked(self, step: ListOperation, items: bc.ListRegister, extents: bc.Tensor, data: bc.Tensor) -> None:
        """Write a list of views of bytes."""
        main, output = self._main, step.output
        main.list(items)
        index, place, start = main.integer(0), main.integer(0), main.integer(0)
        with self._while_below(index, main.extent(extents, 0)):
            shape = []
            for extent in output.shape:
                shape.append(main.element(extents, place))
                main.compute("add", place, 1, place)
                if isinstance(extent, int):
                    main.require_equal(shape[-1], extent, f"an extent of the tensors of {output.name}")
            item = main.view(data, start, output.dtype, shape)
            main.append(items, item)
            main.compute("add", start, self._padded(self._nbytes(output, item)), start)

    def split(self, step: ListOperation, items: bc.ListRegister, source: bc.Tensor, sizes: bc.Tensor) -> None:
        """Write a list of parts of a tensor along an axis."""
        main, output, along = self._main, step.output, step.attrs["axis"]
        tensor = step.inputs[0]
        main.list(items)
        whole, inner = self._nbytes(tensor, source, first=along), self._nbytes(tensor, source, first=along + 1)
        count = self._product(source, range(along))
        outer = main.compute("mul", inner, count)
        begin, index = main.integer(0), main.integer(0)
        with self._while_below(index, main.extent(sizes, 0)):
            size = main.element(sizes, index)
            main.require_range(size, 0, main.compute("sub", main.extent(source, along), begin), _sizes(output))
            shape: list[bc.Integer] = [main.extent(source, axis) for axis in range(len(tensor.shape))]
            if step.attrs["keepdims"]:
                shape[along] = size
            else:
                del shape[along]
                main.require_equal(size, 1, _sizes(output))
            part = main.tensor(main.storage(main.compute("mul", outer, size)), 0, output.dtype, shape)
            nbytes, origin = main.compute("mul", inner, size), main.compute("mul", inner, begin)
            main.blocks(part, source, nbytes, count, step=nbytes, origin=origin, stride=whole)
            main.append(items, part)
            main.compute("add", begin, size, begin)
        main.require_equal(begin, main.extent(source, along), _sizes(output))

    # parts of these

    def _product(self, tensor: bc.Tensor, axes: Iterable[int], first: int = 1) -> bc.Integer:
        found: bc.Integer = first
        for axis in axes:
            found = self._main.compute("mul", found, self._main.extent(tensor, axis))
        return found

    def _nbytes(self, value: Value, tensor: bc.Tensor, first: int = 0) -> bc.Integer:
        """Return the bytes that the axes of a tensor from `first` on take; `value` has its rank and dtype."""
        return self._product(tensor, range(first, len(value.shape)), dtypes.nbytes(value.dtype))

    def _item_bytes(self, step: ListOperation, item: bc.TensorRegister) -> bc.Integer:
        """Return the bytes of a tensor of the list that an operator reads."""
        found: bc.Integer = dtypes.nbytes(step.inputs[0].dtype)
        for extent in self._item_extents(step, item, missing=1):
            found = self._main.compute("mul", found, extent)
        return found

    def _item_extents(self, step: ListOperation, item: bc.TensorRegister, missing: int) -> Iterator[bc.Integer]:
        """Write what reads the extents of a tensor of the list; `missing` are those of axes that others alone have."""
        main, fewest = self._main, step.ranks[0]
        rank = main.rank(item) if len(step.ranks) > 1 else None
        for axis in range(step.ranks[-1]):
            if rank is None or axis < fewest:
                yield main.extent(item, axis)
                continue
            found, behind = main.integer(missing), main.label()
            main.branch(main.compute("lt", axis, rank), behind)
            main.extent(item, axis, found)
            main.place(behind)
            yield found

    def _padded(self, nbytes: bc.Integer) -> bc.Integer:
        up = self._main.compute("floordiv", self._main.compute("add", nbytes, bc.ALIGNMENT - 1), bc.ALIGNMENT)
        return self._main.compute("mul", up, bc.ALIGNMENT)

    def _here(self, item: bc.TensorRegister) -> bc.TensorRegister:
        return self._main.to_device(item, bc.CPU) if self._is_elsewhere else item

    @contextmanager
    def _each(self, items: bc.ListRegister) -> Iterator[tuple[bc.IntegerRegister, bc.TensorRegister]]:
        """Write a loop over the tensors of a list."""
        index = self._main.integer(0)
        with self._while_below(index, self._main.length(items)):
            yield index, self._main.get(items, index)

    @contextmanager
    def _while_below(self, index: bc.IntegerRegister, count: bc.Integer) -> Iterator[None]:
        main, again, end = self._main, self._main.label(), self._main.label()
        main.place(again)
        main.branch(main.compute("lt", index, count), end)
        yield
        main.compute("add", index, 1, index)
        main.jump(again)
        main.place(end)


def _sizes(output: Value) -> str:
    return f"sizes of the parts in '{output.name}'"


def _symbol(extent: Extent) -> Symbol | None:
    return extent.symbol if isinstance(extent, Dim) else None
