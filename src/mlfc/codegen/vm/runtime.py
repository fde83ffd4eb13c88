"""The types of `mlfc_vm.h`, and the functions that the main functions of dynamic models call.

They are host functions, so each module has those that it needs, in C and in LLVM alike.
"""

from __future__ import annotations

from mlfc.support.executable import ALIGNMENT, MAX_RANK, RunCode
from mlfc.tir import host
from mlfc.tir.host import (
    INT32,
    INT64,
    MEMMOVE,
    NULL,
    SIZE,
    UINT8,
    UINT64,
    UINTPTR,
    VOID,
    Body,
    Expr,
    Function,
    Number,
    Operand,
    array,
    const,
    names,
    pointer,
    struct,
)

ADDRESS, TEXT = pointer(VOID), pointer(const(host.CHAR))
ERROR = struct("mlfc_vm_error", code=INT32, text=TEXT, values=array(INT64, 3))
TENSOR = struct(
    "mlfc_vm_tensor", data=ADDRESS, block=ADDRESS, extents=array(INT64, MAX_RANK), device=INT32, dtype=UINT8, rank=UINT8
)  # fmt: skip
DEVICES = struct("mlfc_vm_devices", allocate=ADDRESS, release=ADDRESS, copy=ADDRESS, constant=ADDRESS)
HOST = struct(
    "mlfc_vm_host", allocate=ADDRESS, release=ADDRESS, packed=ADDRESS, trace=ADDRESS, devices=pointer(const(DEVICES)),
    context=ADDRESS, targets=pointer(const(TENSOR)), state=ADDRESS, memory_limit=INT64, turn_limit=UINT64,
)  # fmt: skip
RUN = struct("mlfc_vm_run", host=pointer(const(HOST)), error=pointer(ERROR), used=INT64, turns=UINT64)
BLOCK = struct("mlfc_vm_block", references=INT64, bytes=INT64, memory=ADDRESS, device=INT64)
"""Before the bytes of a tensor on the host; on a device, it has the handle of the tensor's memory."""
LIST = struct("mlfc_vm_list", items=pointer(TENSOR), length=INT64, room=INT64)

CPU = 1
_HEADER_BYTES = 4 * 8  # of a block at most, wherever it is
_ENTRY_BYTES = 128  # of a tensor in a list, for the limit of memory
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
    """Return an error's code as C spells it."""
    return Number(INT32, value, f"MLFC_VM_{value.name}")


def number(value: int) -> Number:
    """Return an int64."""
    text = "" if -(1 << 15) < value < (1 << 15) else f"INT64_C({value})"
    return Number(INT64, value, text)


def _static(
    name: str, parameters: tuple[host.Name, ...], body: Body, comment: str, result: host.Type = INT32
) -> Function:
    return Function(name, result, parameters, body.stmts, is_static=True, comment=comment)


def _fail() -> Function:
    parameters = names(error=pointer(ERROR), code=INT32, text=TEXT, a=INT64, b=INT64, c=INT64)
    error, what, text, *values = parameters
    body = Body()
    body.assign(error["code"], what)
    body.assign(error["text"], text)
    for index, value in enumerate(values):
        body.assign(error["values"][index], value)
    body.returns(what)
    return _static("mlf_fail", parameters, body, "notes why a run ends")


FAIL = _fail()


def failing(error: Expr, value: RunCode, *values: Operand, text: str | Expr | None = None) -> host.Call:
    """Return the call that notes an error."""
    a, b, c = (*values, *(number(0),) * 3)[:3]
    return FAIL(error, code(value), NULL if text is None else text, a, b, c)


def _account() -> Function:
    parameters = names(run=pointer(RUN), bytes=INT64, text=TEXT)
    run, nbytes, text = parameters
    body = Body()
    limit = run["host"]["memory_limit"]
    with body.where(limit.ne(0) & (nbytes > limit - run["used"])):
        body.returns(failing(run["error"], RunCode.MEMORY, nbytes, limit, text=text))
    body.assign(run["used"], nbytes, "+")
    body.returns(0)
    return _static("mlf_account", parameters, body, "counts memory against its limit")


ACCOUNT = _account()


def _room() -> Function:
    parameters = names(run=pointer(RUN), bytes=INT64, total=pointer(INT64))
    run, nbytes, total = parameters
    body = Body()
    with body.where(nbytes > number(_MOST) - total[0]):
        body.returns(failing(run["error"], RunCode.SIZE, nbytes))
    body.assign(total[0], (nbytes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT, "+")
    body.returns(0)
    return _static("mlf_room", parameters, body, "adds a block to the memory that the run works in")


ROOM = _room()


def _aligned(place: Expr) -> Expr:
    """Return the first address from a place on where tensors may begin."""
    skipped = (expr_of(ALIGNMENT) - place.cast(UINTPTR) % ALIGNMENT) % ALIGNMENT
    return place.cast(pointer(UINT8)) + skipped


def expr_of(value: int) -> Number:
    """Return a number as wide as an address."""
    return Number(UINTPTR, value)


def _drop() -> Function:
    parameters = names(run=pointer(RUN), tensor=pointer(TENSOR))
    run, tensor = parameters
    body = Body()
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
    return _static("mlf_drop", parameters, body, "releases the memory of a tensor that nothing else holds")


DROP = _drop()


def _is_address_range(nbytes: Expr) -> Expr:
    """Return whether a block may have so many bytes where addresses have fewer than 64 bits."""
    return nbytes.cast(SIZE).cast(INT64).eq(nbytes)


def _allocate() -> Function:
    parameters = names(run=pointer(RUN), bytes=INT64, text=TEXT, target=pointer(TENSOR))
    run, nbytes, text, target = parameters
    body = Body()
    made = body.declare("block", pointer(BLOCK), NULL)
    body.evaluate(DROP(run, target))
    with body.where(nbytes > number(_MOST)):
        body.returns(failing(run["error"], RunCode.SIZE, nbytes, text=text))
    with body.where(ACCOUNT(run, nbytes, text).ne(0)):
        body.returns(run["error"]["code"])
    wanted = nbytes + (_HEADER_BYTES + ALIGNMENT)
    with body.where(run["host"]["allocate"].ne(NULL) & _is_address_range(wanted)):
        body.assign(made, ALLOCATE.at(run["host"]["allocate"], wanted).cast(pointer(BLOCK)))
    with body.where(made.eq(NULL)):
        body.assign(run["used"], nbytes, "-")
        body.returns(failing(run["error"], RunCode.ALLOCATE, nbytes, text=text))
    body.assign(made["references"], 1)
    body.assign(made["bytes"], nbytes)
    body.assign(made["memory"], NULL)
    body.assign(made["device"], CPU)
    body.assign(target["block"], made.cast(ADDRESS))
    body.assign(target["data"], _aligned(made.cast(pointer(UINT8)) + _HEADER_BYTES).cast(ADDRESS))
    body.assign(target["device"], CPU)
    body.returns(0)
    return _static("mlf_allocate", parameters, body, "lets a tensor have new memory")


ALLOCATE_TENSOR = _allocate()


def _allocate_on() -> Function:
    parameters = names(run=pointer(RUN), device=INT32, bytes=INT64, text=TEXT, target=pointer(TENSOR))
    run, device, nbytes, text, target = parameters
    body = Body()
    devices = body.declare("devices", pointer(const(DEVICES)), run["host"]["devices"])
    with body.where(device.eq(CPU)):
        body.returns(ALLOCATE_TENSOR(run, nbytes, text, target))
    with body.where(devices.eq(NULL)):
        body.returns(failing(run["error"], RunCode.DEVICE, device, text=text))
    with body.where(ALLOCATE_TENSOR(run, number(0), text, target).ne(0) | ACCOUNT(run, nbytes, text).ne(0)):
        body.returns(run["error"]["code"])
    block = body.declare("block", pointer(BLOCK), target["block"].cast(pointer(BLOCK)))
    body.assign(block["memory"], DEVICE_ALLOCATE.at(devices["allocate"], run["host"]["context"], device, nbytes))
    with body.where(block["memory"].eq(NULL)):
        body.evaluate(DROP(run, target))
        body.returns(failing(run["error"], RunCode.ALLOCATE, nbytes, text=text))
    body.assign(block["bytes"], nbytes)
    body.assign(block["device"], device)
    body.assign(target["data"], block["memory"])
    body.assign(target["device"], device)
    body.returns(0)
    return _static("mlf_allocate_on", parameters, body, "lets a tensor have new memory of a device")


ALLOCATE_ON = _allocate_on()


def _hold() -> Function:
    parameters = names(run=pointer(RUN), target=pointer(TENSOR), source=pointer(const(TENSOR)))
    run, target, source = parameters
    body = Body()
    block = body.declare("block", pointer(BLOCK), source["block"].cast(pointer(BLOCK)))
    with body.where(target.eq(source)):
        body.returns(0)
    with body.where(block.ne(NULL)):
        body.assign(block["references"], number(1), "+")
    body.evaluate(DROP(run, target))
    body.assign(target[0], source[0])
    body.returns(0)
    return _static("mlf_hold", parameters, body, "lets a tensor be another one, in the same memory")


HOLD = _hold()


def _to_device() -> Function:
    parameters = names(
        run=pointer(RUN), source=pointer(const(TENSOR)), device=INT32, bytes=INT64, is_constant=INT32, text=TEXT,
        target=pointer(TENSOR),
    )  # fmt: skip
    run, source, device, nbytes, is_constant, text, target = parameters
    body = Body()
    devices = body.declare("devices", pointer(const(DEVICES)), run["host"]["devices"])
    with body.where(source["device"].eq(device)):
        body.returns(HOLD(run, target, source))
    with body.where(devices.eq(NULL)):
        body.returns(failing(run["error"], RunCode.DEVICE, device, text=text))
    with body.where(is_constant.ne(0)):
        body.evaluate(HOLD(run, target, source))
        body.assign(target["data"], DEVICE_CONSTANT.at(
            devices["constant"], run["host"]["context"], device, source["data"], nbytes))  # fmt: skip
        body.assign(target["device"], device)
        with body.where(target["data"].eq(NULL)):
            body.returns(failing(run["error"], RunCode.ALLOCATE, nbytes, text=text))
        body.returns(0)
    body.evaluate(DROP(run, target))
    body.assign(target[0], source[0])
    body.assign(target["block"], NULL)
    with body.where(ALLOCATE_ON(run, device, nbytes, text, target).ne(0)):
        body.returns(run["error"]["code"])
    with body.where(DEVICE_COPY.at(devices["copy"], run["host"]["context"], target, source, nbytes).ne(0)):
        body.returns(failing(run["error"], RunCode.DEVICE, device, text=text))
    body.returns(0)
    return _static("mlf_to_device", parameters, body, "lets a tensor be a copy of another one where that is elsewhere")


TO_DEVICE = _to_device()


def _work() -> Function:
    parameters = names(run=pointer(RUN), needed=INT64, work=ADDRESS, work_bytes=INT64, arena=pointer(TENSOR))
    run, needed, work, work_bytes, arena = parameters
    body = Body()
    with body.where(work.ne(NULL) & (work_bytes >= needed + ALIGNMENT)):
        body.assign(arena["data"], _aligned(work).cast(ADDRESS))
        body.returns(ACCOUNT(run, needed, NULL))
    with body.where(run["host"]["allocate"].eq(NULL)):
        body.returns(failing(run["error"], RunCode.WORK, needed + ALIGNMENT))
    body.returns(ALLOCATE_TENSOR(run, needed, NULL, arena))
    return _static("mlf_work", parameters, body, "finds the memory that the run works in: the caller's, or new memory")


WORK = _work()


def _separate() -> Function:
    parameters = names(run=pointer(RUN), outputs=pointer(TENSOR), index=INT32, bytes=INT64)
    run, outputs, index, nbytes = parameters
    body = Body()
    copy = body.declare("copy", TENSOR, outputs[index])
    with body.loop("other", index) as other:
        with body.where(outputs[other]["block"].eq(outputs[index]["block"]) & copy["block"].ne(NULL)):
            body.assign(copy["block"], NULL)
            with body.where(ALLOCATE_TENSOR(run, nbytes, NULL, copy.address).ne(0)):
                body.returns(run["error"]["code"])
            body.evaluate(MEMMOVE(copy["data"], outputs[index]["data"], nbytes.cast(SIZE)))
            body.evaluate(DROP(run, outputs[index].address))
            body.assign(outputs[index], copy)
            body.returns(0)
    body.returns(0)
    return _static("mlf_separate", parameters, body, "copies an output that shares its memory with an earlier one")


SEPARATE = _separate()


def _fits() -> Function:
    parameters = names(run=pointer(RUN), outputs=pointer(const(TENSOR)), count=INT32)
    run, outputs, count = parameters
    body = Body()
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
    return _static("mlf_fits", parameters, body, "checks that results fit into memory of the caller")


FITS = _fits()


def _release_outputs() -> Function:
    parameters = names(run=pointer(RUN), outputs=pointer(TENSOR), count=INT32)
    run, outputs, count = parameters
    body = Body()
    with body.loop("index", count) as index:
        body.evaluate(DROP(run, outputs[index].address))
    body.returns(0)
    return _static("mlf_drop_all", parameters, body, "releases tensors")


DROP_ALL = _release_outputs()


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


def _turn() -> Function:
    parameters = names(run=pointer(RUN))
    (run,) = parameters
    body = Body()
    limit = run["host"]["turn_limit"]
    body.assign(run["turns"], Number(UINT64, 1), "+")
    with body.where(limit.ne(0) & (run["turns"] > limit)):
        body.returns(failing(run["error"], RunCode.TURNS, limit.cast(INT64)))
    body.returns(0)
    return _static("mlf_turn", parameters, body, "counts a jump back against its limit")


TURN = _turn()


# lists ------------------------------------------------------------------------------------------------------


def _insert() -> Function:
    parameters = names(run=pointer(RUN), list=pointer(LIST), place=INT64, tensor=pointer(const(TENSOR)))
    run, items, place, tensor = parameters
    body = Body()
    larger = body.declare("larger", pointer(TENSOR), NULL)
    room = body.declare("room", INT64, items["room"])
    with body.where(ACCOUNT(run, number(_ENTRY_BYTES), NULL).ne(0)):
        body.returns(run["error"]["code"])
    with body.where(items["length"].eq(room)):
        body.assign(room, room + room + 4)
        with body.where(run["host"]["allocate"].ne(NULL) & _is_address_range(room * _ENTRY_BYTES)):
            body.assign(larger, ALLOCATE.at(run["host"]["allocate"], room * _ENTRY_BYTES).cast(pointer(TENSOR)))
        with body.where(larger.eq(NULL)):
            body.assign(run["used"], number(_ENTRY_BYTES), "-")
            body.returns(failing(run["error"], RunCode.ALLOCATE, room * _ENTRY_BYTES))
        at = host.Name(INT64, "index")
        with body.counting(at, number(0), at < items["length"]):
            body.assign(larger[at], items["items"][at])
        with body.where(items["items"].ne(NULL)):
            body.evaluate(RELEASE.at(run["host"]["release"], items["items"].cast(ADDRESS)))
        body.assign(items["items"], larger)
        body.assign(items["room"], room)
    at = host.Name(INT64, "index")
    with body.counting(at, items["length"], at > place, -1):
        body.assign(items["items"][at], items["items"][at - 1])
    body.assign(items["items"][place]["block"], NULL)
    body.evaluate(HOLD(run, items["items"][place].address, tensor))
    body.assign(items["length"], number(1), "+")
    body.returns(0)
    return _static("mlf_insert", parameters, body, "adds a tensor to a list before a place")


INSERT = _insert()


def _erase() -> Function:
    parameters = names(run=pointer(RUN), list=pointer(LIST), place=INT64)
    run, items, place = parameters
    body = Body()
    body.evaluate(DROP(run, items["items"][place].address))
    body.assign(items["length"], number(1), "-")
    body.assign(run["used"], number(_ENTRY_BYTES), "-")
    at = host.Name(INT64, "index")
    with body.counting(at, place, at < items["length"]):
        body.assign(items["items"][at], items["items"][at + 1])
    body.returns(0)
    return _static("mlf_erase", parameters, body, "removes a tensor from a list")


ERASE = _erase()


def _clear() -> Function:
    parameters = names(run=pointer(RUN), list=pointer(LIST))
    run, items = parameters
    body = Body()
    at = host.Name(INT64, "index")
    with body.counting(at, number(0), at < items["length"]):
        body.evaluate(DROP(run, items["items"][at].address))
    body.assign(run["used"], items["length"] * _ENTRY_BYTES, "-")
    with body.where(items["items"].ne(NULL)):
        body.evaluate(RELEASE.at(run["host"]["release"], items["items"].cast(ADDRESS)))
    body.assign(items["items"], NULL)
    body.assign(items["length"], 0)
    body.assign(items["room"], 0)
    body.returns(0)
    return _static("mlf_clear", parameters, body, "makes a list empty")


CLEAR = _clear()


def _share() -> Function:
    parameters = names(run=pointer(RUN), target=pointer(LIST), source=pointer(const(LIST)))
    run, target, source = parameters
    body = Body()
    with body.where(target.eq(source)):
        body.returns(0)
    body.evaluate(CLEAR(run, target))
    at = host.Name(INT64, "place")
    with body.counting(at, number(0), at < source["length"]):
        with body.where(INSERT(run, target, at, source["items"][at].address).ne(0)):
            body.returns(run["error"]["code"])
    body.returns(0)
    return _static("mlf_copy_list", parameters, body, "lets a list have the tensors of another one")


SHARE = _share()


def _find() -> Function:
    parameters = names(run=pointer(RUN), list=pointer(const(LIST)), index=INT64, past=INT64, place=pointer(INT64))
    run, items, index, past, place = parameters
    body = Body()
    with body.where((index < number(0) - items["length"]) | (index >= items["length"] + past)):
        body.returns(failing(run["error"], RunCode.INDEX, index, items["length"]))
    body.assign(place[0], host.Choice(INT64, index < number(0), index + items["length"], index))
    body.returns(0)
    return _static("mlf_find", parameters, body, "finds a place in a list, from its end where the index is negative")


FIND = _find()


# the main function ------------------------------------------------------------------------------------------

PARAMETERS = names(
    host=pointer(const(HOST)), inputs=pointer(const(TENSOR)), outputs=pointer(TENSOR), work=ADDRESS, work_bytes=INT64,
    error=pointer(ERROR),
)  # fmt: skip


class RunBody(Body):
    """The statements of a main function, in which errors end the run.

    Attributes
    ----------
    finish : Label
        Where runs end that hold memory.
    """

    def __init__(self, *, holds_memory: bool) -> None:
        super().__init__()
        self.finish = host.Label("finish", is_unlikely=True)
        self.run = host.Name(RUN, "run")
        self.error = PARAMETERS[-1]
        self._holds_memory = holds_memory

    def refuse(self, condition: Expr, why: RunCode, *values: Operand, text: str | None = None) -> None:
        """End the run with an error where a condition holds."""
        with self.where(condition):
            self.fail(why, *values, text=text)

    def fail(self, why: RunCode, *values: Operand, text: str | None = None) -> None:
        """End the run with an error."""
        if self._holds_memory:
            self.evaluate(failing(self.error, why, *values, text=text))
            self.jump(self.finish)
        else:
            self.returns(failing(self.error, why, *values, text=text))

    def needs(self, call: host.Call) -> None:
        """End the run unless a call returns 0; it has noted the error."""
        with self.where(call.ne(0)):
            self.leave()

    def leave(self) -> None:
        """End the run."""
        if self._holds_memory:
            self.jump(self.finish)
        else:
            self.returns(self.error["code"])
