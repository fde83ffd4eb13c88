"""The types of `mlfc_vm.h`, and the static functions that main functions of dynamic models call."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from mlfc.support.dims import Symbol
from mlfc.support.executable import ALIGNMENT, MAX_RANK, RunCode
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, NULL, VOID, Body, Expr, Function, Name, Number, const, names, pointer, struct

ADDRESS, TEXT = pointer(VOID), pointer(const(host.CHAR))
ERROR = struct("mlfc_vm_error", code=INT32, text=TEXT, values=host.array(INT64, 3))
TENSOR = struct(
    "mlfc_vm_tensor", data=ADDRESS, block=ADDRESS, extents=host.array(INT64, MAX_RANK), device=INT32,
    dtype=host.UINT8, rank=host.UINT8,
)  # fmt: skip
DEVICES = struct("mlfc_vm_devices", allocate=ADDRESS, release=ADDRESS, copy=ADDRESS, constant=ADDRESS)
HOST = struct(
    "mlfc_vm_host", allocate=ADDRESS, release=ADDRESS, packed=ADDRESS, trace=ADDRESS, devices=pointer(const(DEVICES)),
    context=ADDRESS, targets=pointer(const(TENSOR)), state=ADDRESS, memory_limit=INT64, turn_limit=host.UINT64,
)  # fmt: skip
RUN = struct("mlfc_vm_run", host=pointer(const(HOST)), error=pointer(ERROR), used=INT64, turns=host.UINT64)
BLOCK = struct("mlfc_vm_block", references=INT64, bytes=INT64, memory=ADDRESS, device=INT64)
"""The header before the bytes of a tensor on the host; on a device, it contains the handle of the tensor's memory."""
LIST = struct("mlfc_vm_list", items=pointer(TENSOR), length=INT64, room=INT64)

_RUN, _TENSOR, _LIST, _READ_ONLY = pointer(RUN), pointer(TENSOR), pointer(LIST), pointer(const(TENSOR))

CPU = 1
_HEADER_BYTES = 4 * 8  # maximum size of a block's header
_ENTRY_BYTES = 128  # size of a list's entry that counts towards the memory limit
_MOST = 1 << 62

ALLOCATE = Function("allocate", ADDRESS, names(bytes=INT64))
RELEASE = Function("release", VOID, names(memory=ADDRESS))
PACKED = Function("packed", INT32, names(context=ADDRESS, name=TEXT, tensors=pointer(TENSOR), count=INT32))
TRACE = Function(
    "trace", VOID,
    names(context=ADDRESS, call=INT32, numbers=pointer(const(INT64)), count=INT32, data=ADDRESS, bytes=INT64),
)  # fmt: skip
DEVICE_ALLOCATE = Function("allocate", ADDRESS, names(context=ADDRESS, device=INT32, bytes=INT64))
DEVICE_RELEASE = Function("release", VOID, names(context=ADDRESS, device=INT32, memory=ADDRESS))
DEVICE_COPY = Function(
    "copy", INT32, names(context=ADDRESS, to=pointer(const(TENSOR)), source=pointer(const(TENSOR)), bytes=INT64)
)
DEVICE_CONSTANT = Function(
    "constant", ADDRESS, names(context=ADDRESS, device=INT32, data=pointer(const(VOID)), bytes=INT64)
)


AXIS_DTYPE, AXIS_RANK, AXIS_ALIGNMENT = (
    Number(INT64, value, f"MLFC_VM_AXIS_{name}") for value, name in ((-1, "DTYPE"), (-2, "RANK"), (-3, "ALIGNMENT"))
)


def code(value: RunCode) -> Number:
    """Return an error's code in C."""
    return Number(INT32, value, f"MLFC_VM_{value.name}")


def number(value: int) -> Number:
    """Return an int64."""
    text = "" if -(1 << 15) < value < (1 << 15) else f"INT64_C({value})"
    return Number(INT64, value, text)


class RunBody(Body):
    """The statements of a function that is part of a run; errors end the run.

    Attributes
    ----------
    finish : Label
        Exit label of runs that hold memory.
    """

    def __init__(self, run: Name, error: Expr | None = None, *, holds_memory: bool = False) -> None:
        super().__init__()
        self.finish = host.Label("finish", is_unlikely=True)
        self.run = run
        self._error = error
        self._holds_memory = holds_memory

    @property
    def error(self) -> Expr:
        """The pointer to the error of the run."""
        return self.run["error"] if self._error is None else self._error

    def refuse(self, condition: Expr, why: RunCode, *values: host.Operand, text: str | Expr | None = None) -> None:
        """End the run with an error if a condition is true."""
        with self.where(condition):
            self.fail(why, *values, text=text)

    def within(
        self, found: Expr, symbol: Symbol, why: RunCode = RunCode.RANGE, *values: host.Operand, text: str = ""
    ) -> None:
        """End the run unless a value is within the bounds of a symbol; `values` of the error default to all three."""
        low, high = number(symbol.low), number(symbol.high)
        self.refuse((found < low) | (found > high), why, *(values or (found, low, high)), text=text or str(symbol))

    def fail(self, why: RunCode, *values: host.Operand, text: str | Expr | None = None) -> None:
        """End the run with an error."""
        if self._holds_memory:
            self.evaluate(failing(self.error, why, *values, text=text))
            self.jump(self.finish)
        else:
            self.returns(failing(self.error, why, *values, text=text))

    def move(self, to: Expr, source: Expr, nbytes: Expr) -> None:
        """Copy bytes, if there are any."""
        with self.where(nbytes > number(0)):
            self.evaluate(host.MEMMOVE(to, source, nbytes.cast(host.SIZE)))

    def needs(self, call: host.Call) -> None:
        """End the run unless a call returns 0; the call has recorded the error."""
        with self.where(call.ne(0)):
            if self._holds_memory:
                self.jump(self.finish)
            else:
                self.returns(self.error["code"])


def static_function(comment: str, *kinds: host.Type) -> Callable[[Callable[..., None]], Function]:
    """Convert a function that writes the body of a C function into a static function with the same parameter names.

    Append an underscore to the name of a parameter that is reserved in Python.
    """

    def made(write: Callable[..., None]) -> Function:
        _, *titles = (title.removesuffix("_") for title in signature(write).parameters)
        given = names(**dict(zip(titles, kinds, strict=True)))
        body = RunBody(given[0])
        write(body, *given)
        return Function(write.__name__, INT32, given, body.stmts, is_static=True, comment=comment)

    return made


@static_function("notes why a run ends", pointer(ERROR), INT32, TEXT, INT64, INT64, INT64)
def mlf_fail(body: RunBody, error: Name, code: Name, text: Name, a: Name, b: Name, c: Name) -> None:
    """Record the reason why a run ends."""
    body.assign(error["code"], code)
    body.assign(error["text"], text)
    for index, value in enumerate((a, b, c)):
        body.assign(error["values"][index], value)
    body.returns(code)


def failing(error: Expr, value: RunCode, *values: host.Operand, text: str | Expr | None = None) -> host.Call:
    """Return the call that records an error."""
    a, b, c = (*values, *(number(0),) * 3)[:3]
    return mlf_fail(error, code(value), NULL if text is None else text, a, b, c)


@static_function("counts memory against its limit", _RUN, INT64, TEXT)
def mlf_account(body: RunBody, run: Name, bytes_: Name, text: Name) -> None:
    """Count memory against its limit."""
    limit = run["host"]["memory_limit"]
    body.refuse(limit.ne(0) & (bytes_ > limit - run["used"]), RunCode.MEMORY, bytes_, limit, text=text)
    body.assign(run["used"], bytes_, "+")
    body.returns(0)


@static_function("adds a block to the memory that the run works in", _RUN, INT64, pointer(INT64))
def mlf_room(body: RunBody, run: Name, bytes_: Name, total: Name) -> None:
    """Add a block to the working memory of the run."""
    with body.where(bytes_ > number(_MOST) - total[0]):
        body.returns(failing(run["error"], RunCode.SIZE, bytes_))
    body.assign(total[0], (bytes_ + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT, "+")
    body.returns(0)


def _aligned(place: Expr) -> Expr:
    """Return the first address at or after `place` that is aligned for tensors."""
    skipped = (Number(host.UINTPTR, ALIGNMENT) - place.cast(host.UINTPTR) % ALIGNMENT) % ALIGNMENT
    return place.cast(pointer(host.UINT8)) + skipped


@static_function("releases the memory of a tensor that nothing else holds", _RUN, _TENSOR)
def mlf_drop(body: RunBody, run: Name, tensor: Name) -> None:
    """Release the memory of a tensor unless another one shares it."""
    block = body.declare("block", pointer(BLOCK), tensor["block"].cast(pointer(BLOCK)))
    body.assign(tensor["block"], NULL)
    with body.where(block.eq(NULL)):
        body.returns(0)
    body.assign(block["references"], number(1), "-")
    with body.where(block["references"] > 0):
        body.returns(0)
    body.assign(run["used"], block["bytes"], "-")
    with body.where(block["device"].ne(CPU)):
        devices = run["host"]["devices"]
        body.evaluate(
            DEVICE_RELEASE.at(devices["release"], run["host"]["context"], block["device"].cast(INT32), block["memory"])
        )
    body.evaluate(RELEASE.at(run["host"]["release"], block.cast(ADDRESS)))
    body.returns(0)


def _is_address_range(nbytes: Expr) -> Expr:
    """Return whether `nbytes` is addressable; on some machines, addresses have fewer than 64 bits."""
    return nbytes.cast(host.SIZE).cast(INT64).eq(nbytes)


@static_function("lets a tensor have new memory", _RUN, INT64, TEXT, _TENSOR)
def mlf_allocate(body: RunBody, run: Name, bytes_: Name, text: Name, target: Name) -> None:
    """Allocate new memory for a tensor."""
    made = body.declare("block", pointer(BLOCK), NULL)
    body.evaluate(mlf_drop(run, target))
    body.refuse(bytes_ > number(_MOST), RunCode.SIZE, bytes_, text=text)
    body.needs(mlf_account(run, bytes_, text))
    wanted = bytes_ + (_HEADER_BYTES + ALIGNMENT)
    with body.where(run["host"]["allocate"].ne(NULL) & _is_address_range(wanted)):
        body.assign(made, ALLOCATE.at(run["host"]["allocate"], wanted).cast(pointer(BLOCK)))
    with body.where(made.eq(NULL)):
        body.assign(run["used"], bytes_, "-")
        body.returns(failing(run["error"], RunCode.ALLOCATE, bytes_, text=text))
    body.assign(made["references"], 1)
    body.assign(made["bytes"], bytes_)
    body.assign(made["memory"], NULL)
    body.assign(made["device"], CPU)
    body.assign(target["block"], made.cast(ADDRESS))
    body.assign(target["data"], _aligned(made.cast(pointer(host.UINT8)) + _HEADER_BYTES).cast(ADDRESS))
    body.assign(target["device"], CPU)
    body.returns(0)


@static_function("lets a tensor have new memory of a device", _RUN, INT32, INT64, TEXT, _TENSOR)
def mlf_allocate_on(body: RunBody, run: Name, device: Name, bytes_: Name, text: Name, target: Name) -> None:
    """Allocate new device memory for a tensor."""
    devices = body.declare("devices", pointer(const(DEVICES)), run["host"]["devices"])
    with body.where(device.eq(CPU)):
        body.returns(mlf_allocate(run, bytes_, text, target))
    body.refuse(devices.eq(NULL), RunCode.DEVICE, device, text=text)
    with body.where(mlf_allocate(run, number(0), text, target).ne(0) | mlf_account(run, bytes_, text).ne(0)):
        body.returns(run["error"]["code"])
    block = body.declare("block", pointer(BLOCK), target["block"].cast(pointer(BLOCK)))
    body.assign(block["memory"], DEVICE_ALLOCATE.at(devices["allocate"], run["host"]["context"], device, bytes_))
    with body.where(block["memory"].eq(NULL)):
        body.evaluate(mlf_drop(run, target))
        body.returns(failing(run["error"], RunCode.ALLOCATE, bytes_, text=text))
    body.assign(block["bytes"], bytes_)
    body.assign(block["device"], device)
    body.assign(target["data"], block["memory"])
    body.assign(target["device"], device)
    body.returns(0)


@static_function("lets a tensor be another one, in the same memory", _RUN, _TENSOR, _READ_ONLY)
def mlf_hold(body: RunBody, run: Name, target: Name, source: Name) -> None:
    """Assign a tensor to another one, sharing its memory."""
    block = body.declare("block", pointer(BLOCK), source["block"].cast(pointer(BLOCK)))
    with body.where(target.eq(source)):
        body.returns(0)
    with body.where(block.ne(NULL)):
        body.assign(block["references"], number(1), "+")
    body.evaluate(mlf_drop(run, target))
    body.assign(target[0], source[0])
    body.returns(0)


@static_function(
    "lets a tensor be a copy of another one where that is elsewhere",
    _RUN,
    _READ_ONLY,
    INT32,
    INT64,
    INT32,
    TEXT,
    _TENSOR,
)
def mlf_to_device(
    body: RunBody, run: Name, source: Name, device: Name, bytes_: Name, is_constant: Name, text: Name, target: Name
) -> None:
    """Copy a tensor to a device, unless it is already there."""
    devices = body.declare("devices", pointer(const(DEVICES)), run["host"]["devices"])
    with body.where(source["device"].eq(device)):
        body.returns(mlf_hold(run, target, source))
    body.refuse(devices.eq(NULL), RunCode.DEVICE, device, text=text)
    with body.where(is_constant.ne(0)):
        body.evaluate(mlf_hold(run, target, source))
        body.assign(target["data"], DEVICE_CONSTANT.at(
            devices["constant"], run["host"]["context"], device, source["data"], bytes_))  # fmt: skip
        body.assign(target["device"], device)
        body.refuse(target["data"].eq(NULL), RunCode.ALLOCATE, bytes_, text=text)
        body.returns(0)
    body.evaluate(mlf_drop(run, target))
    body.assign(target[0], source[0])
    body.assign(target["block"], NULL)
    body.needs(mlf_allocate_on(run, device, bytes_, text, target))
    copied = DEVICE_COPY.at(devices["copy"], run["host"]["context"], target, source, bytes_)
    body.refuse(copied.ne(0), RunCode.DEVICE, device, text=text)
    body.returns(0)


@static_function(
    "finds the memory that the run works in: the caller's, or new memory", _RUN, INT64, ADDRESS, INT64, _TENSOR
)
def mlf_work(body: RunBody, run: Name, needed: Name, work: Name, work_bytes: Name, arena: Name) -> None:
    """Allocate the working memory of the run."""
    with body.where(work.ne(NULL) & (work_bytes >= needed + ALIGNMENT)):
        body.assign(arena["data"], _aligned(work).cast(ADDRESS))
        body.returns(mlf_account(run, needed, NULL))
    body.refuse(run["host"]["allocate"].eq(NULL), RunCode.WORK, needed + ALIGNMENT)
    body.returns(mlf_allocate(run, needed, NULL, arena))


@static_function("copies an output that shares its memory with an earlier one", _RUN, _TENSOR, INT32, INT64)
def mlf_separate(body: RunBody, run: Name, outputs: Name, index: Name, bytes_: Name) -> None:
    """Copy an output that shares its memory with an earlier one."""
    copy = body.declare("copy", TENSOR, outputs[index])
    with body.loop("other", index) as other:
        with body.where(outputs[other]["block"].eq(outputs[index]["block"]) & copy["block"].ne(NULL)):
            body.assign(copy["block"], NULL)
            body.needs(mlf_allocate(run, bytes_, NULL, copy.address))
            body.evaluate(host.MEMMOVE(copy["data"], outputs[index]["data"], bytes_.cast(host.SIZE)))
            body.evaluate(mlf_drop(run, outputs[index].address))
            body.assign(outputs[index], copy)
            body.returns(0)
    body.returns(0)


@static_function("checks that results fit into memory of the caller", _RUN, _READ_ONLY, INT32)
def mlf_fits(body: RunBody, run: Name, outputs: Name, count: Name) -> None:
    """Check that results fit into memory of the caller."""
    with body.loop("index", count) as index:
        target = body.declare("target", pointer(const(TENSOR)), run["host"]["targets"][index].address)
        result = body.declare("result", pointer(const(TENSOR)), outputs[index].address)
        misfit = failing(run["error"], RunCode.BAD_OUTPUT, index)
        with body.where(target["dtype"].ne(result["dtype"]) | target["rank"].ne(result["rank"])):
            body.returns(misfit)
        with body.loop("axis", result["rank"]) as axis:
            with body.where(target["extents"][axis].ne(result["extents"][axis])):
                body.returns(misfit)
    body.returns(0)


@static_function("releases tensors", _RUN, _TENSOR, INT32)
def mlf_drop_all(body: RunBody, run: Name, outputs: Name, count: Name) -> None:
    """Release tensors."""
    with body.loop("index", count) as index:
        body.evaluate(mlf_drop(run, outputs[index].address))
    body.returns(0)


def _trace() -> Function:
    parameters = names(
        host=pointer(const(HOST)), call=INT32, numbers=pointer(const(INT64)), count=INT32, data=ADDRESS, bytes=INT64
    )
    called, call, numbers, count, data, nbytes = parameters
    body = Body()
    with body.where(called["trace"].ne(NULL)):
        body.evaluate(TRACE.at(called["trace"], called["context"], call, numbers, count, data, nbytes))
    body.returns(0)
    return Function("MLFC_VM_TRACE", INT32, parameters, body.stmts, is_static=True, is_hook=True)


TRACE_CALL = _trace()
"""A macro in C; for profiles."""
TRACE_RUN = Function("MLFC_TRACE_RUN", VOID, (), is_hook=True)


@static_function("counts a jump back against its limit", _RUN)
def mlf_turn(body: RunBody, run: Name) -> None:
    """Count a backward jump against its limit."""
    limit = run["host"]["turn_limit"]
    body.assign(run["turns"], Number(host.UINT64, 1), "+")
    body.refuse(limit.ne(0) & (run["turns"] > limit), RunCode.TURNS, limit.cast(INT64))
    body.returns(0)


@static_function("adds a tensor to a list before a place", _RUN, _LIST, INT64, _READ_ONLY)
def mlf_insert(body: RunBody, run: Name, list_: Name, place: Name, tensor: Name) -> None:
    """Insert a tensor into a list before a position."""
    larger = body.declare("larger", pointer(TENSOR), NULL)
    room = body.declare("room", INT64, list_["room"])
    body.needs(mlf_account(run, number(_ENTRY_BYTES), NULL))
    with body.where(list_["length"].eq(room)):
        body.assign(room, room + room + 4)
        with body.where(run["host"]["allocate"].ne(NULL) & _is_address_range(room * _ENTRY_BYTES)):
            body.assign(larger, ALLOCATE.at(run["host"]["allocate"], room * _ENTRY_BYTES).cast(pointer(TENSOR)))
        with body.where(larger.eq(NULL)):
            body.assign(run["used"], number(_ENTRY_BYTES), "-")
            body.returns(failing(run["error"], RunCode.ALLOCATE, room * _ENTRY_BYTES))
        at = Name(INT64, "index")
        with body.counting(at, number(0), at < list_["length"]):
            body.assign(larger[at], list_["items"][at])
        with body.where(list_["items"].ne(NULL)):
            body.evaluate(RELEASE.at(run["host"]["release"], list_["items"].cast(ADDRESS)))
        body.assign(list_["items"], larger)
        body.assign(list_["room"], room)
    at = Name(INT64, "index")
    with body.counting(at, list_["length"], at > place, -1):
        body.assign(list_["items"][at], list_["items"][at - 1])
    body.assign(list_["items"][place]["block"], NULL)
    body.evaluate(mlf_hold(run, list_["items"][place].address, tensor))
    body.assign(list_["length"], number(1), "+")
    body.returns(0)


@static_function("removes a tensor from a list", _RUN, _LIST, INT64)
def mlf_erase(body: RunBody, run: Name, list_: Name, place: Name) -> None:
    """Remove a tensor from a list."""
    body.evaluate(mlf_drop(run, list_["items"][place].address))
    body.assign(list_["length"], number(1), "-")
    body.assign(run["used"], number(_ENTRY_BYTES), "-")
    at = Name(INT64, "index")
    with body.counting(at, place, at < list_["length"]):
        body.assign(list_["items"][at], list_["items"][at + 1])
    body.returns(0)


@static_function("makes a list empty", _RUN, _LIST)
def mlf_clear(body: RunBody, run: Name, list_: Name) -> None:
    """Clear a list."""
    at = Name(INT64, "index")
    with body.counting(at, number(0), at < list_["length"]):
        body.evaluate(mlf_drop(run, list_["items"][at].address))
    body.assign(run["used"], list_["length"] * _ENTRY_BYTES, "-")
    with body.where(list_["items"].ne(NULL)):
        body.evaluate(RELEASE.at(run["host"]["release"], list_["items"].cast(ADDRESS)))
    body.assign(list_["items"], NULL)
    body.assign(list_["length"], 0)
    body.assign(list_["room"], 0)
    body.returns(0)


@static_function("lets a list have the tensors of another one", _RUN, _LIST, pointer(const(LIST)))
def mlf_copy_list(body: RunBody, run: Name, target: Name, source: Name) -> None:
    """Copy the tensors of a list to another one."""
    with body.where(target.eq(source)):
        body.returns(0)
    body.evaluate(mlf_clear(run, target))
    at = Name(INT64, "place")
    with body.counting(at, number(0), at < source["length"]):
        body.needs(mlf_insert(run, target, at, source["items"][at].address))
    body.returns(0)


@static_function(
    "finds a place in a list, from its end where the index is negative",
    _RUN,
    pointer(const(LIST)),
    INT64,
    INT64,
    pointer(INT64),
)
def mlf_find(body: RunBody, run: Name, list_: Name, index: Name, past: Name, place: Name) -> None:
    """Find a position in a list."""
    with body.where((index < number(0) - list_["length"]) | (index >= list_["length"] + past)):
        body.returns(failing(run["error"], RunCode.INDEX, index, list_["length"]))
    body.assign(place[0], host.Choice(INT64, index < number(0), index + list_["length"], index))
    body.returns(0)


PARAMETERS = names(
    host=pointer(const(HOST)), inputs=pointer(const(TENSOR)), outputs=pointer(TENSOR), work=ADDRESS, work_bytes=INT64,
    error=pointer(ERROR),
)  # fmt: skip
