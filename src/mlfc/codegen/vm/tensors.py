"""Addresses and tensor variables of the values of a dynamic model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.host.arguments import ADDRESS, BYTES, as_argument, at, constant_array, element_pointer
from mlfc.codegen.vm.dimension_code import Dimensions
from mlfc.codegen.vm.runtime import (
    ALLOCATE_ON,
    ALLOCATE_TENSOR,
    CPU,
    DROP,
    HOLD,
    LIST,
    PARAMETERS,
    TENSOR,
    TO_DEVICE,
    RunBody,
    number,
)
from mlfc.errors import InternalError
from mlfc.memory import Plan
from mlfc.memory.plan import Storage
from mlfc.support import dtypes
from mlfc.support.dims import Extent
from mlfc.support.executable import NUMBERED_DTYPES
from mlfc.support.platforms import TYPE_CODES
from mlfc.tir import host
from mlfc.tir.host import NULL, Expr, Name
from mlfc.tir.ir import Buffer
from mlfc.tir.program import KernelCall, Value

_INPUTS = PARAMETERS[1]


class Tensors:
    """The memory of each value.

    Values that share their memory are ``mlfc_vm_tensor`` variables, which count who holds it: those of lists, and where
    memory is not bounded what branches and loops assign. All others are addresses.
    """

    def __init__(
        self,
        body: RunBody,
        dimensions: Dimensions,
        plan: Plan,
        constants: ConstantTable,
        inputs: Sequence[Value],
        states: Mapping[Value, int],
        *,
        has_device: bool,
    ) -> None:
        self._body = body
        self._dimensions = dimensions
        self._plan = plan
        self._constants = constants
        self._inputs = {value: place for place, value in enumerate(inputs)}
        self._states = states
        self.has_device = has_device
        self.arena = Name(BYTES, "arena")
        self.held: dict[Value | Storage, Name] = {}
        self.lists: dict[Value, Name] = {}
        self.storages: dict[Storage, Name] = {}
        self.copies: list[Name] = []
        # copies of tensors on devices, while the originals keep their values
        self._copied: dict[tuple[Value, str | None], Name] = {}

    # addresses ------------------------------------------------------------------------------------------------

    def data(self, value: Value) -> Expr:
        """Return the address of a value's bytes; on a device the handle of its memory."""
        place, start = self._root_data(value.root), value.root_start
        if not start:
            return place
        return place.cast(element_pointer("uint8", is_output=value.root.kind not in ("input", "constant"))) + start

    def _root_data(self, root: Value) -> Expr:
        if root in self._inputs:
            return _INPUTS[self._inputs[root]]["data"]
        if root in self._states:
            return self.state(root)
        if root.kind == "constant":
            return constant_array(self._constants, root)
        if self.is_held(root):
            return self.tensor_of(root)["data"]
        if self._plan.is_bounded:
            return at(self.arena, self._plan.offset(root))
        return self.storage_data(self._plan.values[root])

    def state(self, root: Value) -> Expr:
        """Return the address of a state."""
        memory, offset = PARAMETERS[0]["state"], self._states[root]
        return at(memory.cast(BYTES), offset) if offset else memory

    def storage_data(self, storage: Storage) -> Expr:
        """Return the address of memory that is there for a whole part of the run."""
        if storage.device is not None:
            return self.device_storage(storage)["data"]
        if storage not in self.storages:
            self.storages[storage] = Name(BYTES, self._dimensions.fresh("block"))
        return self.storages[storage]

    def device_storage(self, storage: Storage) -> Name:
        """Return the tensor that holds memory of a device."""
        if storage not in self.held:
            self.held[storage] = Name(TENSOR, self._dimensions.fresh("block"))
        return self.held[storage]

    def argument(self, value: Value, buffer: Buffer, *, is_output: bool) -> Expr:
        """Return a value as the argument of a kernel."""
        return as_argument(self.here(value, None), buffer.dtype, is_output=is_output)

    # tensors that hold their memory ----------------------------------------------------------------------------

    def tensor_of(self, root: Value) -> Name:
        """Return the variable of a value that holds its memory."""
        if root not in self.held:
            self.held[root] = Name(TENSOR, self._dimensions.fresh(root.name))
        return self.held[root]

    def is_held(self, root: Value) -> bool:
        """Tell whether a value has a variable that holds its memory."""
        if root in self._inputs or root in self._states or root in self._plan.offsets or root.kind == "constant":
            return False
        storage = self._plan.values.get(root)
        return storage is None or not storage.is_lasting

    def list_of(self, value: Value) -> Name:
        """Return the variable of a list."""
        if value not in self.lists:
            self.lists[value] = Name(LIST, self._dimensions.fresh(value.name))
        return self.lists[value]

    def described(self, value: Value) -> Expr:
        """Return a tensor with the dimensions of a value, to be read at once."""
        root = value.root
        is_same = value.shape == root.shape and value.dtype == root.dtype and value.is_whole
        if self.is_held(root) and is_same:
            return self.tensor_of(root)
        if root in self._inputs and is_same:
            return _INPUTS[self._inputs[root]]
        body = self._body
        extents = self.extents(value)
        made = body.declare(self._dimensions.fresh(f"{value.name}_tensor"), TENSOR)
        if self.is_held(root):
            body.assign(made, self.tensor_of(root))
        elif root in self._inputs:
            body.assign(made, _INPUTS[self._inputs[root]])
        else:
            storage = self._plan.values.get(root)
            if storage is not None and storage.device is not None:
                body.assign(made, self.device_storage(storage))
            else:
                body.assign(made["device"], CPU)
        body.assign(made["data"], self.data(value).cast(ADDRESS))
        if not self.is_held(root):
            body.assign(made["block"], NULL)
        self._describe(made, value, extents)
        return made

    def extents(self, value: Value) -> list[Expr]:
        """Return the dimensions of a value."""
        return [self._dimensions.size(extent) for extent in value.shape]

    def _describe(self, tensor: Expr, value: Value, extents: Sequence[Expr]) -> None:
        body = self._body
        for axis, extent in enumerate(extents):
            body.assign(tensor["extents"][axis], extent)
        body.assign(tensor["dtype"], NUMBERED_DTYPES[value.dtype])
        body.assign(tensor["rank"], len(extents))

    def make(self, value: Value) -> None:
        """Write what gives a value that is computed next its memory."""
        root, dimensions = value.root, self._dimensions
        for extent in value.shape:
            dimensions.size(extent)
        dimensions.count(_elements(value))
        if self._plan.is_bounded:
            return
        storage = self._plan.values.get(root)
        if storage is None:
            raise InternalError(f"'{root.name}' has no memory")
        if not storage.is_lasting:
            tensor = self.tensor_of(root)
            self.forget_copies(root)
            self.allocate(tensor, dimensions.size(value.nbytes), storage.device, value.name)
            self._describe(tensor, value, self.extents(value))

    def allocate(self, tensor: Name, nbytes: Expr, device: str | None, text: str) -> None:
        """Write what gives a tensor new memory."""
        run = self._body.run.address
        if device is None:
            self._body.needs(ALLOCATE_TENSOR(run, nbytes, text, tensor.address))
        else:
            self._body.needs(ALLOCATE_ON(run, TYPE_CODES[device], nbytes, text, tensor.address))

    def scratch(self, call: KernelCall, index: int) -> list[Expr]:
        """Return the memory for a kernel to work in; `index` is the number of the call."""
        device = call.kernel.device
        if self._plan.is_bounded:
            return [at(self.arena, self._plan.scratch_offsets[index])] if call.kernel.scratch else []
        found = [self._scratch(storage, device) for storage in self._plan.scratch.get(call, ())]
        return found if device is None else [item.cast(ADDRESS) for item in found]

    def _scratch(self, storage: Storage, device: str | None) -> Expr:
        if storage.is_lasting:
            return self.storage_data(storage)
        if storage not in self.held:
            self.held[storage] = Name(TENSOR, self._dimensions.fresh("workspace"))
        self.allocate(self.held[storage], self._dimensions.size(storage.nbytes), device, "workspace")
        return self.held[storage]["data"]

    def hold(self, target: Expr, source: Expr) -> None:
        """Write what lets a tensor be another one."""
        self._body.evaluate(HOLD(self._body.run.address, target.address, source.address))

    # devices --------------------------------------------------------------------------------------------------

    def here(self, value: Value, device: str | None) -> Expr:
        """Return the address of a value on a device or, for None, on the host: of a copy where it is elsewhere."""
        root = value.root
        is_there = root.device == device and root.kind == "intermediate"
        if not self.has_device or is_there or (root.kind in ("constant", "state") and device is None):
            return self.data(value)
        copy = self._copied.get((root, device))
        if copy is None:
            source = self.described(root)
            copy = Name(TENSOR, self._dimensions.fresh(f"{root.name}_on_{device or 'host'}"))
            self.copies.append(copy)
            nbytes, is_constant = self._dimensions.size(root.nbytes), int(root.kind == "constant")
            run, kind = self._body.run.address, TYPE_CODES[device or "cpu"]
            self._body.needs(TO_DEVICE(run, source.address, kind, nbytes, is_constant, root.name, copy.address))
            self._copied[root, device] = copy
        start = value.root_start
        return copy["data"].cast(BYTES) + start if start else copy["data"]

    def forget_copies(self, root: Value | None = None) -> None:
        """Write what releases the copies of a value, or of all, which the run may change next."""
        for key in [key for key in self._copied if root is None or key[0] is root]:
            self._body.evaluate(DROP(self._body.run.address, self._copied.pop(key).address))


def _elements(value: Value) -> Extent:
    count: Extent = 1
    for extent in value.shape:
        count = count * extent
    return count


def item_bytes(value: Value) -> host.Number:
    """Return the bytes of an element."""
    return number(dtypes.nbytes(value.dtype))
