"""What this process provides to libraries: the functions that their code calls through variables of fixed names.

TVM's loaders fill the same variables. Through them generated code finds functions of imported modules and global ones,
calls them, and reports why it failed; libraries without a runtime also get memory and loops.

C from TVM calls these functions by name. For them alone, so that those of a real TVM loaded later are not hidden, it is
loaded as a dependency of an empty library, made here, that defines the names as addresses in this process.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlfc.errors import RunError
from mlfc.objfile.write import elf_machine_of
from mlfc.runtime.devices.device import recorded_step, set_device
from mlfc.runtime.ffi.library_names import is_in_memory, library_in_memory
from mlfc.runtime.ffi.native_code import argument_of, returned
from mlfc.runtime.modules.device_module import Kernel
from mlfc.runtime.modules.module import Function, Module, find_global_func
from mlfc.runtime.tensor import c_abi
from mlfc.support.locks import ForkSafeLock

CONTEXT = "__tvm_module_ctx"
_ALIGNMENT = 64

_VOID, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_LAMBDA = ctypes.CFUNCTYPE(_INT, _INT, _VOID, _VOID)


class _ParallelEnv(ctypes.Structure):
    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


class _ThreadState(threading.local):
    """The last error of this thread, and the memory behind its last results."""

    text = ""
    cause: BaseException | None = None
    results: Sequence[Any] = ()


_state = _ThreadState()
_handles = itertools.count(1)
_modules: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
_functions: dict[int, Function] = {}
# handles by the module that imports the function, 0 for global ones, and its name
_found: dict[tuple[int, str], int] = {}
_workspaces: dict[int, Any] = {}
# handles by the address of a library's variable: the last one that is alive is in it
_filled: dict[int, list[int]] = {}
_lock = ForkSafeLock(reentrant=True)


def take_error() -> tuple[str, BaseException | None]:
    """Return and clear the text of this thread's last failure in compiled code and the exception behind it."""
    text, cause = _state.text, _state.cause
    _state.text, _state.cause = "", None
    # a failure of Python that compiled code took for no failure of its own is not the cause of a later one
    return text, cause if cause is not None and _message(cause) in text else None


def fill_context(address_of: Callable[[str], int | None], module: Module, owner: object) -> None:
    """Give a library the functions of this process, as long as `owner` lives.

    `address_of` returns the address of a symbol of the library, or None. Its code looks for functions in the imports of
    `module`.
    """
    for name, callback in _CALLBACKS.items():
        address = address_of(name)
        # memory and loops are better served by the library's own runtime, which needs no Python
        if address is not None and (name not in _REPLACEABLE or address_of(name.removeprefix("__")) is None):
            ctypes.c_void_p.from_address(address).value = ctypes.cast(callback, ctypes.c_void_p).value
    address = address_of(CONTEXT)
    if address is None:
        return
    handle = next(_handles)
    with _lock:
        _modules[handle] = module
        _filled.setdefault(address, []).append(handle)
        ctypes.c_void_p.from_address(address).value = handle
    weakref.finalize(owner, _leave, address, handle)


def is_taken(address: int | None) -> bool:
    """Return whether a living module has filled the variable `CONTEXT` at an address."""
    with _lock:
        return bool(_filled.get(address or 0))


def _leave(address: int, handle: int) -> None:
    """Forget a module; its library, which stays in memory, returns to another module that loaded it."""
    with _lock:
        handles = _filled[address]
        handles.remove(handle)
        ctypes.c_void_p.from_address(address).value = handles[-1] if handles else None
        for key in [key for key in _found if key[0] == handle]:
            _functions.pop(_found.pop(key), None)


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _fail(error: BaseException) -> int:
    _state.text, _state.cause = _message(error), error
    return -1


def _guarded(call: Callable[..., int]) -> Callable[..., int]:
    """Return a callback that never raises into C."""

    def guarded(*args: Any) -> int:
        try:
            return call(*args)
        except BaseException as error:  # C cannot pass it on: whoever called C raises it again
            return _fail(error)

    return guarded


def _func_call(handle: int, values: int, codes: int, count: int, result: int, result_code: int) -> int:
    function = _functions.get(handle)
    if function is None:
        raise RunError(f"{handle} is not the handle of a function")
    step = recorded_step()
    if step is not None and not isinstance(function, Kernel) and function is not set_device:
        step.only_launches = False
    given = (ctypes.c_int64 * count).from_address(values) if count else ()
    kinds = (ctypes.c_int32 * count).from_address(codes) if count else ()
    value = function(*map(argument_of, given, kinds))
    if value is None:
        ctypes.c_int32.from_address(result_code).value = c_abi.NULL
        return 0
    results: list[Any] = []
    bits, code = returned(value, results)
    _state.results = results
    ctypes.c_int64.from_address(result).value = bits
    ctypes.c_int32.from_address(result_code).value = code
    return 0


def _get_func_from_env(module: int | None, name: bytes, out: int) -> int:
    ctypes.c_void_p.from_address(out).value = _handle_of(module or 0, name.decode(errors="replace"))
    return 0


def _handle_of(module: int, name: str) -> int:
    known = _found.get((module, name)) if module else None
    if known is not None:
        return known
    importer = _modules.get(module)
    imports = importer.imported_modules if importer is not None else ()
    found = next((each for each in imports if each.implements_function(name, query_imports=True)), None)
    function = None if found is None else found.get_function(name, query_imports=True)
    if function is None:
        module, function = 0, find_global_func(name)
    if function is None:
        raise RunError(
            f"unknown function '{name}', neither imported nor global",
            next_step="Load the library whole with mlfc.load_module, or call mlfc.runtime.register_global_func",
        )
    with _lock:
        handle = None if module else _found.get((0, name))
        if handle is None or _functions[handle] is not function:  # a global function may have been replaced
            handle = next(_handles)
            _functions[handle] = function
            _found[module, name] = handle
    return handle


def _set_last_error(text: bytes | None) -> None:
    _state.text = (text or b"").decode(errors="replace")


def _alloc_workspace(*arguments: int) -> int | None:
    _device_type, _device_id, nbytes, *_ = arguments
    try:
        memory = ctypes.create_string_buffer(nbytes + _ALIGNMENT)
    except (MemoryError, OverflowError) as error:
        _fail(error)
        return None
    address = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    _workspaces[address] = memory
    return address


def _free_workspace(*arguments: int) -> int:
    return 0 if _workspaces.pop(arguments[-1], None) is not None else -1


def _parallel_launch(function: int, data: int | None, num_task: int) -> int:
    """Run the tasks one after another: as many as requested, one by default."""
    env = _ParallelEnv(None, max(1, num_task))
    task = _LAMBDA(function)
    for index in range(env.num_task):
        status: int = task(index, ctypes.addressof(env), data)
        if status != 0:
            return status
    return 0


def _parallel_barrier(*arguments: int) -> int:
    if _ParallelEnv.from_address(arguments[-1]).num_task == 1:
        return 0
    raise RunError("tasks that run one after the other cannot wait for one another")


# functions as C sees them live as long as the process: libraries may be called by threads that it did not start
_CALLBACKS: dict[str, Any] = {
    "__TVMFuncCall": ctypes.CFUNCTYPE(_INT, _VOID, _VOID, _VOID, _INT, _VOID, _VOID)(_guarded(_func_call)),
    "__TVMAPISetLastError": ctypes.CFUNCTYPE(None, _TEXT)(_set_last_error),
    "__TVMBackendGetFuncFromEnv": ctypes.CFUNCTYPE(_INT, _VOID, _TEXT, _VOID)(_guarded(_get_func_from_env)),
    "__TVMBackendAllocWorkspace": ctypes.CFUNCTYPE(_VOID, _INT, _INT, ctypes.c_uint64, _INT, _INT)(_alloc_workspace),
    "__TVMBackendFreeWorkspace": ctypes.CFUNCTYPE(_INT, _INT, _INT, _VOID)(_guarded(_free_workspace)),
    "__TVMBackendParallelLaunch": ctypes.CFUNCTYPE(_INT, _VOID, _VOID, _INT)(_guarded(_parallel_launch)),
    "__TVMBackendParallelBarrier": ctypes.CFUNCTYPE(_INT, _INT, _VOID)(_guarded(_parallel_barrier)),
}
_REPLACEABLE = tuple(name for name in _CALLBACKS if "Workspace" in name or "Parallel" in name)


def process_functions() -> dict[str, int]:
    """Return the addresses of these functions by the names that code linked into this process calls."""
    found = {name.removeprefix("__"): ctypes.cast(callback, _VOID).value for name, callback in _CALLBACKS.items()}
    return {name: address for name, address in found.items() if address is not None}


_HEAD, _PROGRAM, _SYMBOL, _DYNAMIC = (
    struct.Struct(f"<{form}") for form in ("HHIQQQIHHHHHH", "IIQQQQQQ", "IBBHQQ", "QQ")
)
_IDENT = b"\x7fELF\2\1\1" + bytes(9)
_SHARED, _LOAD, _DYNAMIC_PART, _STACK = 3, 1, 2, 0x6474_E551
_READ_WRITE, _PAGE = 6, 0x1_0000
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT = 1, 4, 5, 6, 10, 11
_GLOBAL_FUNCTION, _ABSOLUTE = 0x12, 0xFFF1
_HEAD_BYTES = 64


def lacks_functions(error: OSError) -> bool:
    """Return whether a library did not load for lack of functions that this process can provide."""
    words = str(error).replace(":", " ").replace(",", " ").split()
    return sys.platform == "linux" and not process_functions().keys().isdisjoint(words)


def bind_functions(path: str) -> None:
    """Load a library, and so its path, with the functions of this process; raise OSError if it still does not load."""
    full = path if is_in_memory(path) else str(Path(path).resolve())
    with Path(full).open("rb") as file:
        head = file.read(_HEAD_BYTES)
    with library_in_memory(_scope(os.fsencode(full), head, process_functions())) as name:
        ctypes.CDLL(name)


def _scope(needed: bytes, head: bytes, functions: Mapping[str, int]) -> bytes:
    """Return a shared library that needs another one, with `head` as first bytes, and defines functions for it."""
    machine = elf_machine_of(head)
    if machine.bits != 64 or machine.order != "<":
        raise OSError("only 64-bit little-endian systems are given functions by name")
    texts = bytearray(b"\0")

    def text(value: bytes) -> int:
        texts.extend(value + b"\0")
        return len(texts) - len(value) - 1

    library = text(needed)
    symbols = bytes(_SYMBOL.size) + b"".join(
        _SYMBOL.pack(text(name.encode()), _GLOBAL_FUNCTION, 0, _ABSOLUTE, address, 0)
        for name, address in functions.items()
    )
    count = len(functions) + 1
    # one bucket, whose chain leads through all symbols to number 0
    chain = struct.pack(f"<{count + 3}I", 1, count, 1, 0, *((index + 1) % count for index in range(1, count)))
    at_symbols = _HEAD_BYTES + 3 * _PROGRAM.size
    at_chain = at_symbols + len(symbols)
    at_dynamic = -(-(at_chain + len(chain)) // 8) * 8
    entries = 7
    at_texts = at_dynamic + entries * _DYNAMIC.size
    found = {_NEEDED: library, _HASH: at_chain, _STRTAB: at_texts, _SYMTAB: at_symbols, _STRSZ: len(texts)}
    dynamic = b"".join(_DYNAMIC.pack(*entry) for entry in (*found.items(), (_SYMENT, _SYMBOL.size), (0, 0)))
    size = at_texts + len(texts)
    header = _HEAD.pack(
        _SHARED, machine.number, 1, 0, _HEAD_BYTES, 0, machine.flags, _HEAD_BYTES, _PROGRAM.size, 3, _HEAD_BYTES, 0, 0
    )
    programs = (
        _PROGRAM.pack(_LOAD, _READ_WRITE, 0, 0, 0, size, size, _PAGE)
        + _PROGRAM.pack(_DYNAMIC_PART, _READ_WRITE, *(at_dynamic,) * 3, len(dynamic), len(dynamic), 8)
        + _PROGRAM.pack(_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16)
    )
    body = symbols + chain
    return _IDENT + header + programs + body.ljust(at_dynamic - at_symbols, b"\0") + dynamic + bytes(texts)
