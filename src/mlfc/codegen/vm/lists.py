"""Operators on lists of tensors, as host code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.host.tvm import BYTES
from mlfc.codegen.vm import runtime
from mlfc.codegen.vm.dimension_code import Dimensions
from mlfc.codegen.vm.runtime import CPU, TENSOR, RunBody, mlf_clear, mlf_copy_list, mlf_erase, mlf_insert, number
from mlfc.codegen.vm.tensors import Tensors, item_bytes
from mlfc.memory.liveness import is_last_use
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Symbol, bounds
from mlfc.support.executable import ALIGNMENT, NUMBERED_DTYPES, RunCode
from mlfc.tir import host
from mlfc.tir.host import INT64, MEMMOVE, NULL, SIZE, Choice, Expr, Name, Number, Type, const, pointer
from mlfc.tir.program import Instruction, ListOperation, Value

_MOST = (1 << 63) - 1


class ListCode:
    """Writes operators on lists."""

    def __init__(self, body: RunBody, dimensions: Dimensions, tensors: Tensors) -> None:
        self._body = body
        self._dimensions = dimensions
        self._tensors = tensors

    def write(self, step: ListOperation, steps: Sequence[Instruction], at: int) -> None:
        """Write an operator."""
        output = step.output
        write: dict[str, Callable[[ListOperation], None]] = {
            "list_from": self._unpack, "list_split": self._split, "list_length": self._length,
            "list_get": self._get,
        }  # fmt: skip
        if step.operator == "list_new":
            self._body.evaluate(mlf_clear(self._body.run.address, self._tensors.list_of(output).address))
        elif step.operator in write:
            write[step.operator](step)
        elif output.kind == "list":
            self._change(step, steps, at)
        else:
            self._join(step)

    @property
    def names(self) -> list[Name]:
        """The variables of lists: a list that replaces another one uses the same variable."""
        return list(dict.fromkeys(self._tensors.lists.values()))

    def move(self, source: Value, target: Value) -> None:
        """Emit code that replaces the tensors of the list `target` by those of `source`, unless they are one list."""
        if self._tensors.list_of(source) is not self._tensors.list_of(target):
            run = self._body.run.address
            self._body.needs(
                mlf_copy_list(run, self._tensors.list_of(target).address, self._tensors.list_of(source).address)
            )

    def first(self, value: Value) -> Expr:
        """Return the first element of an integer or bool tensor as a variable; fail at run time if empty."""
        count = prod(value.shape)
        if bounds(count)[0] < 1:
            is_empty = self._dimensions.named(count) < number(1)
            self._body.refuse(is_empty, RunCode.ELEMENT, item_bytes(value), number(0), text=value.name)
        return self.element(value, number(0))

    def element(self, value: Value, index: Expr) -> Expr:
        """Return an element of an integer or bool tensor as a variable; the tensor must be long enough."""
        data = self._tensors.here(value, None)
        kind = Type(scalar_type(value.dtype), dtypes.bits(value.dtype), not value.dtype.startswith(("uint", "bool")))
        if value.dtype == "bool":
            kind = Type("uint8_t", 8, signed=False)
        place = data.cast(pointer(const(kind)))[index]
        if value.dtype == "bool":
            return Choice(INT64, place.ne(0), number(1), number(0))
        if value.dtype == "uint64":
            most = Number(host.UINT64, _MOST, f"UINT64_C({_MOST})")
            self._body.refuse(place > most, RunCode.OVERFLOW, number(_MOST))
        return place.cast(INT64)

    def _change(self, step: ListOperation, steps: Sequence[Instruction], at: int) -> None:
        """Write a list that is a modified copy of another one, or modify it in place after its last use."""
        source, output = step.inputs[0], step.output
        body, run = self._body, self._body.run.address
        if is_last_use(steps, at, source):
            self._tensors.lists[output] = self._tensors.list_of(source)
        else:
            self.move(source, output)
        items = self._tensors.list_of(output)
        if step.operator == "list_as":
            return
        if step.operator == "list_require":
            body.refuse(self.first(step.inputs[1]).eq(0), RunCode.FAILED, text=step.attrs["message"])
        elif step.operator == "list_append":
            body.needs(mlf_insert(run, items.address, items["length"], self._tensors.described(step.inputs[1]).address))
        elif step.operator == "list_insert":
            place = self._place(items, step.inputs[1], past=1)
            body.needs(mlf_insert(run, items.address, place, self._tensors.described(step.inputs[2]).address))
        else:
            body.evaluate(mlf_erase(run, items.address, self._place(items, step.inputs[1])))

    def _place(self, items: Name, index: Value, past: int = 0) -> Name:
        """Write code that computes a position in a list."""
        place = self._body.declare(self._dimensions.fresh("place"), INT64, number(0))
        wanted = self.first(index)
        self._body.needs(runtime.mlf_find(self._body.run.address, items.address, wanted, number(past), place.address))
        return place

    def _unpack(self, step: ListOperation) -> None:
        """Write a list of views of bytes."""
        body, output, run = self._body, step.output, self._body.run.address
        shapes, bytes_of_all = step.inputs
        items = self._tensors.list_of(output)
        body.evaluate(mlf_clear(run, items.address))
        rows, data = self._tensors.here(shapes, None), self._tensors.described(bytes_of_all)
        start = body.declare(self._dimensions.fresh("start"), INT64, number(0))
        count, total = self._dimensions.named(shapes.shape[0]), self._dimensions.named(bytes_of_all.nbytes)
        where = self._tensors.here(bytes_of_all, None)
        item = body.declare(self._dimensions.fresh("item"), TENSOR)
        nbytes = body.declare(self._dimensions.fresh("bytes"), INT64, number(0))
        at = Name(INT64, self._dimensions.fresh("index"))
        rank = len(output.shape)
        with body.counting(at, number(0), at < count):
            body.assign(item, data)
            body.assign(nbytes, item_bytes(output))
            for axis, extent in enumerate(output.shape):
                found = item["extents"][axis]
                body.assign(found, rows.cast(pointer(const(INT64)))[at * rank + axis])
                if isinstance(extent, int):
                    text = f"an extent of the tensors of {output.name}"
                    body.refuse(found.ne(number(extent)), RunCode.EQUAL, found, number(extent), text=text)
                # this dimension has not been checked yet
                most = number(1 << 62)
                body.refuse(found < number(0), RunCode.NEGATIVE, found)
                body.refuse(found.ne(0) & (nbytes > most // found), RunCode.SIZE, found)
                body.assign(nbytes, nbytes * found)
            body.refuse(nbytes > total - start, RunCode.ELEMENT, start + nbytes, total)
            body.assign(item["data"], (where.cast(BYTES) + start).cast(host.pointer(host.VOID)))
            body.assign(item["device"], CPU)
            body.assign(item["dtype"], NUMBERED_DTYPES[output.dtype])
            body.assign(item["rank"], rank)
            body.needs(mlf_insert(run, items.address, items["length"], item.address))
            body.assign(start, _padded(nbytes), "+")

    def _split(self, step: ListOperation) -> None:
        """Write a list of parts of a tensor along an axis."""
        body, output, along, run = self._body, step.output, step.attrs["axis"], self._body.run.address
        tensor, sizes = step.inputs
        items, dimensions = self._tensors.list_of(output), self._dimensions
        body.evaluate(mlf_clear(run, items.address))
        source = self._tensors.here(tensor, None)
        self._tensors.here(sizes, None)  # makes a copy before the loop if necessary
        extents = [dimensions.named(extent) for extent in tensor.shape]
        inner = dimensions.named(prod(tensor.shape[along + 1 :], start=dtypes.nbytes(tensor.dtype)))
        outer = dimensions.named(prod(tensor.shape[:along]))
        count = dimensions.named(sizes.shape[0])
        begin, part = (body.declare(dimensions.fresh(name), INT64, number(0)) for name in ("begin", "size"))
        item = Name(TENSOR, dimensions.fresh("part"))
        self._tensors.copies.append(item)
        at = Name(INT64, dimensions.fresh("index"))
        text = f"sizes of the parts in '{output.name}'"
        with body.counting(at, number(0), at < count):
            body.assign(part, self.element(sizes, at))
            left = extents[along] - begin
            body.refuse((part < number(0)) | (part > left), RunCode.RANGE, part, number(0), left, text=text)
            if not step.attrs["keepdims"]:
                body.refuse(part.ne(1), RunCode.EQUAL, part, number(1), text=text)
            self._tensors.allocate(item, outer * inner * part, None, output.name)
            kept = [part if axis == along else extent for axis, extent in enumerate(extents)]
            if not step.attrs["keepdims"]:
                del kept[along]
            self._tensors.describe(item, output, kept)
            self._blocks(item["data"], number(0), part * inner, source, begin * inner, extents[along] * inner,
                         part * inner, outer)  # fmt: skip
            body.needs(mlf_insert(run, items.address, items["length"], item.address))
            body.assign(begin, part, "+")
        body.refuse(begin.ne(extents[along]), RunCode.EQUAL, begin, extents[along], text=text)

    def _blocks(
        self, to: Expr, start: Expr, step: Expr, source: Expr, origin: Expr, stride: Expr, nbytes: Expr, count: Expr
    ) -> None:
        """Write a copy of `count` blocks of bytes."""
        body, block = self._body, Name(INT64, self._dimensions.fresh("block"))
        with body.where(nbytes > number(0)), body.counting(block, number(0), block < count):
            target = to.cast(BYTES) + (start + block * step)
            found = source.cast(pointer(const(host.UINT8))) + (origin + block * stride)
            body.evaluate(MEMMOVE(target, found, nbytes.cast(SIZE)))

    def _length(self, step: ListOperation) -> None:
        self._tensors.make(step.output)
        self._set(step.output, number(0), self._tensors.list_of(step.inputs[0])["length"])

    def _set(self, output: Value, index: Expr, value: Expr) -> None:
        kind = Type(scalar_type(output.dtype), dtypes.bits(output.dtype))
        self._body.assign(self._tensors.data(output).cast(pointer(kind))[index], value.cast(kind))

    def _get(self, step: ListOperation) -> None:
        body, output = self._body, step.output
        register = self._tensors.tensor_of(output)
        items = self._tensors.list_of(step.inputs[0])
        self._tensors.forget_copies(output)
        place = self._place(items, step.inputs[1])
        self._tensors.hold(register, items["items"][place])
        if len(step.ranks) > 1:
            wanted = len(output.shape)
            text = f"dimensions of '{output.name}'"
            given = (register["rank"], number(wanted), number(wanted))
            body.refuse(register["rank"].ne(wanted), RunCode.RANGE, *given, text=text)
        for axis, extent in enumerate(output.shape):
            found, symbol = register["extents"][axis], extent.symbol if isinstance(extent, Dim) else None
            if symbol is not None and symbol in step.fresh:
                body.assign(self._dimensions.symbol(symbol), found)
                self._check(symbol)
            else:
                wanted_here = self._dimensions.of(extent)
                text = f"{output.name}, axis {axis}"
                body.refuse(found.ne(wanted_here), RunCode.EQUAL, found, wanted_here, text=text)
        self._dimensions.count(prod(output.shape))

    def _check(self, symbol: Symbol) -> None:
        variable = self._dimensions.symbol(symbol)
        self._dimensions.changed(symbol)
        self._body.within(variable, symbol)

    def _join(self, step: ListOperation) -> None:
        """Write the concatenation of a list's tensors, or of their descriptions."""
        self._tensors.forget_copies()
        items, output = self._tensors.list_of(step.inputs[0]), step.output
        self._joined_extents(step, items)
        for symbol in step.fresh:
            self._check(symbol)
        self._tensors.make(output)
        body = self._body
        if step.operator == "list_stack":
            self._stack(step, items)
        elif step.operator == "list_concat":
            self._concatenate(step, items)
        else:
            place = body.declare(self._dimensions.fresh("place"), INT64, number(0))
            with self._each(items) as item:
                if step.operator == "list_extents":
                    for extent in self._item_extents(step, item, missing=-1):
                        self._set(output, place, extent)
                        body.assign(place, number(1), "+")
                else:
                    nbytes = self._item_bytes(step, item)
                    source = self._here(item, nbytes)
                    body.move(self._tensors.data(output).cast(BYTES) + place, source, nbytes)
                    body.assign(place, _padded(nbytes), "+")

    def _joined_extents(self, step: ListOperation, items: Name) -> None:
        """Write code that computes the unknown dimensions (symbols) of the concatenation of a list's tensors."""
        body, along = self._body, step.attrs.get("axis", 0)
        is_stack = step.operator == "list_stack"
        for axis, extent in enumerate(step.output.shape):
            symbol = extent.symbol if isinstance(extent, Dim) else None
            if symbol is None or symbol not in step.fresh:
                continue
            variable = self._dimensions.symbol(symbol)
            is_bytes = step.operator == "list_bytes"
            if is_bytes or (axis == along and step.operator == "list_concat"):
                body.assign(variable, 0)
                with self._each(items) as item:
                    size = _padded(self._item_bytes(step, item)) if is_bytes else item["extents"][axis]
                    body.assign(variable, size, "+")
                    body.refuse(variable > number(1 << 62), RunCode.OVERFLOW, variable, number(1 << 62))
            elif axis == along:
                body.assign(variable, items["length"])
            else:
                body.refuse(items["length"].eq(0), RunCode.INDEX, 0, 0)
                body.assign(variable, items["items"][0]["extents"][axis - is_stack])

    def _stack(self, step: ListOperation, items: Name) -> None:
        body, output = self._body, step.output
        extents = [self._dimensions.named(extent) for extent in output.shape]
        size = self._dimensions.named(prod(output.shape[1:], start=dtypes.nbytes(output.dtype)))
        body.refuse(items["length"].ne(extents[0]), RunCode.EQUAL, items["length"], extents[0], text=output.name)
        place = body.declare(self._dimensions.fresh("start"), INT64, number(0))
        with self._each(items) as item:
            for axis, extent in enumerate(extents[1:]):
                found = item["extents"][axis]
                body.refuse(found.ne(extent), RunCode.EQUAL, found, extent, text=output.name)
            source = self._here(item, size)
            body.move(self._tensors.data(output).cast(BYTES) + place, source, size)
            body.assign(place, size, "+")

    def _concatenate(self, step: ListOperation, items: Name) -> None:
        body, output, along = self._body, step.output, step.attrs["axis"]
        extents = [self._dimensions.named(extent) for extent in output.shape]
        inner = self._dimensions.named(prod(output.shape[along + 1 :], start=dtypes.nbytes(output.dtype)))
        count = self._dimensions.named(prod(output.shape[:along]))
        rows = body.declare(self._dimensions.fresh("rows"), INT64, number(0))
        with self._each(items) as item:
            for axis, extent in enumerate(extents):
                if axis != along:
                    found = item["extents"][axis]
                    body.refuse(found.ne(extent), RunCode.EQUAL, found, extent, text=output.name)
            own = item["extents"][along]
            left = extents[along] - rows
            body.refuse(own > left, RunCode.EQUAL, rows + own, extents[along], text=output.name)
            part = own * inner
            source = self._here(item, part * count)
            target = self._tensors.data(output)
            self._blocks(target, rows * inner, extents[along] * inner, source, number(0), part, part, count)
            body.assign(rows, own, "+")
        body.refuse(rows.ne(extents[along]), RunCode.EQUAL, rows, extents[along], text=output.name)

    def _item_bytes(self, step: ListOperation, item: Expr) -> Expr:
        """Return the size in bytes of a tensor in the list that an operator reads; no check, as it exists."""
        nbytes = self._body.declare(self._dimensions.fresh("bytes"), INT64, item_bytes(step.inputs[0]))
        for extent in self._item_extents(step, item, missing=1):
            self._body.assign(nbytes, nbytes * extent)
        return nbytes

    def _item_extents(self, step: ListOperation, item: Expr, missing: int) -> Iterator[Expr]:
        """Yield the dimensions of a tensor in the list; axes that only other tensors have yield `missing`."""
        fewest = step.ranks[0]
        for axis in range(step.ranks[-1]):
            found = item["extents"][axis]
            if len(step.ranks) == 1 or axis < fewest:
                yield found
            else:
                yield Choice(INT64, item["rank"] > axis, found, number(missing))

    def _here(self, item: Expr, nbytes: Expr) -> Expr:
        """Return the address of a list's tensor on the host."""
        if not self._tensors.has_device:
            return item["data"]
        copy = Name(TENSOR, self._dimensions.fresh("item_on_host"))
        self._tensors.copies.append(copy)
        self._body.needs(
            runtime.mlf_to_device(self._body.run.address, item.address, CPU, nbytes, 0, NULL, copy.address)
        )
        return copy["data"]

    @contextmanager
    def _each(self, items: Name) -> Iterator[Expr]:
        """Write a loop over the tensors of a list."""
        at = Name(INT64, self._dimensions.fresh("index"))
        with self._body.counting(at, number(0), at < items["length"]):
            yield items["items"][at]


def _padded(nbytes: Expr) -> Expr:
    return (nbytes + number(ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
