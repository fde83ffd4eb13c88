"""Addresses and tensor variables of the values of a dynamic model."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from math import prod
from typing import Any

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.host.tvm import ADDRESS, BYTES, at, constant_array, element_pointer
from mlfc.codegen.vm import runtime
from mlfc.codegen.vm.dimension_code import Dimensions
from mlfc.codegen.vm.runtime import CPU, LIST, PARAMETERS, TENSOR, RunBody, mlf_allocate, mlf_allocate_on, mlf_drop
from mlfc.errors import InternalError
from mlfc.memory import Plan
from mlfc.memory.plan import Storage
from mlfc.support import dtypes
from mlfc.support.executable import NUMBERED_DTYPES
from mlfc.support.platforms import TYPE_CODES
from mlfc.tir import host
from mlfc.tir.host import NULL, Expr, Name
from mlfc.tir.program import KernelCall, Value

_INPUTS = PARAMETERS[1]


class Tensors:
    """The memory of each value.

    Values that share memory are reference-counted ``mlfc_vm_tensor`` variables: lists and, if memory is not bounded,
    values that branches and loops assign. All others are addresses.
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
        self.inputs = {value: place for place, value in enumerate(inputs)}
        self._states = states
        self.has_device = has_device
        self.arena = Name(BYTES, "arena")
        self.held: dict[Value | Storage, Name] = {}
        self.lists: dict[Value, Name] = {}
        self.storages: dict[Storage, Name] = {}
        self.copies: list[Name] = []
        # copies of tensors between devices, valid while the originals are unchanged
        self._copied: dict[tuple[Value, str | None], Name] = {}

    def data(self, value: Value) -> Expr:
        """Return the address of a value's bytes; on a device, the handle of its memory."""
        root, start = value.root, value.root_start
        if root in self.inputs:
            place = _INPUTS[self.inputs[root]]["data"]
        elif root in self._states:
            place = self.state(root)
        elif root.kind == "constant":
            place = constant_array(self._constants, root)
        elif self.is_held(root):
            place = self.tensor_of(root)["data"]
        elif self._plan.is_bounded:
            place = at(self.arena, self._plan.offset(root))
        else:
            place = self.storage_data(self._plan.values[root])
        if not start:
            return place
        return place.cast(element_pointer("uint8", is_output=value.root.kind not in ("input", "constant"))) + start

    def state(self, root: Value) -> Expr:
        """Return the address of a state."""
        memory, offset = PARAMETERS[0]["state"], self._states[root]
        return at(memory.cast(BYTES), offset) if offset else memory

    def storage_data(self, storage: Storage) -> Expr:
        """Return the address of memory that is allocated for a whole part of the run."""
        if storage.device is not None:
            return self.device_storage(storage)["data"]
        return self._named(self.storages, storage, BYTES, "block")

    def device_storage(self, storage: Storage) -> Name:
        """Return the tensor that owns device memory."""
        return self._named(self.held, storage, TENSOR, "block")

    def _named(self, table: MutableMapping[Any, Name], key: object, kind: host.Type, name: str) -> Name:
        if key not in table:
            table[key] = Name(kind, self._dimensions.fresh(name))
        return table[key]

    def tensor_of(self, root: Value) -> Name:
        """Return the tensor variable that owns a value's memory."""
        return self._named(self.held, root, TENSOR, root.name)

    def is_held(self, root: Value) -> bool:
        """Return whether a value has a tensor variable that owns its memory."""
        if root in self.inputs or root in self._states or root in self._plan.offsets or root.kind == "constant":
            return False
        storage = self._plan.values.get(root)
        return storage is None or not storage.is_lasting

    def list_of(self, value: Value) -> Name:
        """Return the variable of a list."""
        return self._named(self.lists, value, LIST, value.name)

    def described(self, value: Value) -> Expr:
        """Return a tensor with the dimensions of a value, for immediate use."""
        root = value.root
        is_same = value.shape == root.shape and value.dtype == root.dtype and value.is_whole
        if self.is_held(root) and is_same:
            return self.tensor_of(root)
        if root in self.inputs and is_same:
            return _INPUTS[self.inputs[root]]
        body = self._body
        extents = list(map(self._dimensions.size, value.shape))
        made = body.declare(self._dimensions.fresh(f"{value.name}_tensor"), TENSOR)
        if self.is_held(root):
            body.assign(made, self.tensor_of(root))
        elif root in self.inputs:
            body.assign(made, _INPUTS[self.inputs[root]])
        else:
            storage = self._plan.values.get(root)
            if storage is not None and storage.device is not None:
                body.assign(made, self.device_storage(storage))
            else:
                body.assign(made["device"], CPU)
        body.assign(made["data"], self.data(value).cast(ADDRESS))
        if not self.is_held(root):
            body.assign(made["block"], NULL)
        self.describe(made, value, extents)
        return made

    def describe(self, tensor: Expr, value: Value, extents: Sequence[Expr]) -> None:
        """Write the dtype and the dimensions of a tensor."""
        body = self._body
        for axis, extent in enumerate(extents):
            body.assign(tensor["extents"][axis], extent)
        body.assign(tensor["dtype"], NUMBERED_DTYPES[value.dtype])
        body.assign(tensor["rank"], len(extents))

    def make(self, value: Value) -> None:
        """Write the allocation of memory for a value that is computed next."""
        root, dimensions = value.root, self._dimensions
        for extent in value.shape:
            dimensions.size(extent)
        dimensions.count(prod(value.shape))
        if self._plan.is_bounded:
            return
        storage = self._plan.values.get(root)
        if storage is None:
            raise InternalError(f"'{root.name}' has no memory")
        if not storage.is_lasting:
            tensor = self.tensor_of(root)
            self.forget_copies(root)
            self.allocate(tensor, dimensions.size(value.nbytes), storage.device, value.name)
            self.describe(tensor, value, list(map(dimensions.size, value.shape)))

    def allocate(self, tensor: Name, nbytes: Expr, device: str | None, text: str) -> None:
        """Write the allocation of new memory for a tensor."""
        run = self._body.run.address
        if device is None:
            self._body.needs(mlf_allocate(run, nbytes, text, tensor.address))
        else:
            self._body.needs(mlf_allocate_on(run, TYPE_CODES[device], nbytes, text, tensor.address))

    def scratch(self, call: KernelCall, index: int) -> list[Expr]:
        """Return the scratch memory of a kernel; `index` is the number of the call."""
        device = call.kernel.device
        if self._plan.is_bounded:
            return [at(self.arena, self._plan.scratch_offsets[index])] if call.kernel.scratch else []
        found = []
        for storage in self._plan.scratch.get(call, ()):
            if storage.is_lasting:
                found.append(self.storage_data(storage))
                continue
            tensor = self._named(self.held, storage, TENSOR, "workspace")
            self.allocate(tensor, self._dimensions.size(storage.nbytes), device, "workspace")
            found.append(tensor["data"])
        return found if device is None else [item.cast(ADDRESS) for item in found]

    def hold(self, target: Expr, source: Expr) -> None:
        """Write the assignment of a tensor to another one, sharing its memory."""
        self._body.evaluate(runtime.mlf_hold(self._body.run.address, target.address, source.address))

    def here(self, value: Value, device: str | None) -> Expr:
        """Return a value's address on a device or, for None, on the host; it is copied if it is elsewhere."""
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
            self._body.needs(
                runtime.mlf_to_device(run, source.address, kind, nbytes, is_constant, root.name, copy.address)
            )
            self._copied[root, device] = copy
        start = value.root_start
        return copy["data"].cast(BYTES) + start if start else copy["data"]

    def forget_copies(self, root: Value | None = None) -> None:
        """Write the release of the copies of a value, or of all values, before the run may modify them."""
        for key in [key for key in self._copied if root is None or key[0] is root]:
            self._body.evaluate(mlf_drop(self._body.run.address, self._copied.pop(key).address))


def item_bytes(value: Value) -> host.Number:
    """Return the size of an element in bytes."""
    return runtime.number(dtypes.nbytes(value.dtype))
