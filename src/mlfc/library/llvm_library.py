"""Objects compiled by LLVM, linked into this process without a compiler or system linker."""

from __future__ import annotations

import ctypes.util
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from mlfc.codegen import Unit, generate
from mlfc.codegen.llvm.code import generate_llvm, native_unit
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import CompiledObject, ConstantsObject, compile_object
from mlfc.codegen.unit import NOTHING_SHARED
from mlfc.crt import crt_files
from mlfc.errors import OptionError, ToolchainError
from mlfc.library.build import PARALLEL, fitting_code, mentions_parallel
from mlfc.library.host import HostLibrary
from mlfc.library.toolchain import NATIVE, OBJECT_SUFFIX, compile_cached, compile_objects
from mlfc.objfile.elf import EXECUTABLE, NO_BITS, WRITABLE, read_elf, read_symbols
from mlfc.objfile.head import OBJECT, misfit
from mlfc.runtime.ffi.native_code import PackedFunc
from mlfc.runtime.libraries.library_context import fill_context, process_functions, take_error
from mlfc.runtime.modules.device_module import DeviceModule
from mlfc.runtime.modules.module import Function
from mlfc.runtime.tensor.arrays import aligned
from mlfc.runtime.threads import address_in, pool_function, share_pool
from mlfc.support.content import ArrayContent, Data, to_bytes
from mlfc.support.temporary import TemporaryFolder
from mlfc.target.features import level_here, levels_of_host

_SOURCES: Mapping[str, Callable[[CompiledObject], str]] = {
    "ll": lambda code: code.text,
    "asm": lambda code: code.assembly,
}


def llvm_library(unit: Unit, files: Mapping[str, Data], **options: Any) -> LlvmLibrary:
    """Return the code of a unit as a module; options are those of `HostLibrary`."""
    here = native_unit(unit)
    return LlvmLibrary(files, native=None if here is None else lambda: generate(here).files, **options)


def traced_code(unit: Unit) -> LinkedObjects:
    """Return the code of a unit in this process with the operator timing that `ProfiledModule` needs.

    Raises ToolchainError if the unit is for another machine, or code cannot read a clock here.
    """
    if not hasattr(time, "CLOCK_MONOTONIC"):
        raise ToolchainError("compiled code cannot read a clock on this system", next_step="Use the target 'c'")
    chosen = unit.at_level(_level_here()) if unit.levels else native_unit(unit) or unit
    machine = machine_of(chosen.target, chosen.only_level)
    record = compile_object(
        _text("operator_record.ll").replace("CLOCK_MONOTONIC", str(int(time.CLOCK_MONOTONIC))), machine
    )
    code = fitting_code(generate_llvm(chosen, NOTHING_SHARED, traced=True).files)
    return LinkedObjects({**code, "lib/operator_record.o": record})


def _text(name: str) -> str:
    return files("mlfc.library").joinpath(name).read_text(encoding="utf-8")


def _level_here() -> str | None:
    """Return the processor level that the code in this process is compiled for; None without levels."""
    levels = levels_of_host()
    return None if levels is None else level_here(levels)[0].name


class LlvmLibrary(HostLibrary):
    """A module of LLVM objects, linked into this process when a function is first used; otherwise as `HostLibrary`."""

    type_key = "llvm"
    format = "o"

    def get_source(self, fmt: str = "ll") -> str:
        """Return the code as text: ``ll``, LLVM IR before optimization, or ``asm``, the assembly after it."""
        if fmt not in _SOURCES:
            raise OptionError(f"unknown source '{fmt}'", next_step=f"Use {' or '.join(_SOURCES)}")
        objects = (data for _, data in sorted(self.files.items()) if isinstance(data, CompiledObject))
        return "\n".join(map(_SOURCES[fmt], objects))

    @cached_property
    def linked(self) -> LinkedObjects:
        """The code in this process; raise ToolchainError if it is for another machine, or cannot be linked."""
        with self._told_what_it_needs():
            files = self.files_at(_level_here()) if self.levels else self.files_here()
            objects, external = fitting_code(files), self._external_files()
            if external:  # the code of external generators is C, which needs a compiler
                with TemporaryFolder() as folder:
                    built = compile_objects(external, Path(folder), (NATIVE,))
                    objects |= {f"external/{path.name}": path.read_bytes() for path in built}
            linked = LinkedObjects(objects)
        if any(isinstance(module, DeviceModule) for module in self.imported_modules):
            fill_context(linked.address, self, linked)  # code that launches kernels looks them up
        return linked

    def executable(self) -> LinkedObjects:
        """Return the code in this process."""
        return self.linked

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol of the code in this process, or None."""
        return self.linked.address(symbol)

    def find_function(self, name: str) -> Function | None:
        """Return a packed function."""
        address = self.linked.address(name)
        return None if address is None else PackedFunc(address, name, last_error=take_error, owner=self.linked)


_ALIGNMENT = 64
# constants that are not aligned to 64 bytes are copied for speed, unless they are too large
_LARGEST_COPY = 16 << 20
# copies of objects smaller than this are cheap
_LEAST_VIEWED = 1 << 20
_RELOCATIONS = (4, 9)
_WITHOUT_BYTES = (0, NO_BITS)
# distance that references inside an object can span on 64-bit machines; unlimited on others
_REACH = 2 << 30
_numbers = itertools.count()
# LLVM's linker supports one caller at a time, and a child process can use it if no thread was in it at the fork
_guard = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


class LinkedObjects:
    """The ``.o`` files for this machine among `files`, linked into this process; raises ToolchainError on failure."""

    def __init__(self, files: Mapping[str, Data]) -> None:
        self.place = f"mlfc_{next(_numbers)}"  # for messages
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._found: dict[str, Any] = {}
        builder = llvm.JITLibraryBuilder()
        for symbol, address in process_functions().items():
            builder.import_symbol(symbol, address)
        objects = {name: data for name, data in sorted(files.items()) if name.endswith(OBJECT_SUFFIX)}
        if mentions_parallel(objects):
            _bring_pool()
            runner = pool_function()
            if runner is None:
                builder.add_ir(_text("parallel_serial.ll"))
            else:
                for symbol in PARALLEL:
                    builder.import_symbol(symbol, runner)
        for name, data in objects.items():
            constants = _constants(data)
            if constants is None:
                builder.add_object_img(_sound(data, name))
            for symbol, memory in (constants or {}).items():
                builder.import_symbol(symbol, self._place(memory))
        builder.add_current_process()
        with _guard:
            try:
                self._tracker = builder.link(_linker(), self.place)
            except RuntimeError as error:
                raise _failure(error, self.place) from error

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None; the first call raises ToolchainError if objects cannot be linked."""
        if not symbol or "\0" in symbol:
            return None
        with _guard:
            if symbol not in self._found:
                try:
                    self._found[symbol] = _linker().lookup(self.place, symbol)
                except RuntimeError as error:
                    if "not found" not in str(error):
                        raise _failure(error, self.place) from error
                    self._found[symbol] = None
            tracker = self._found[symbol]
        return None if tracker is None else int(tracker[symbol])

    def _place(self, memory: npt.NDArray[np.uint8]) -> int:
        """Return the address of a constant, which in most cases is not moved."""
        if memory.ctypes.data % _ALIGNMENT and memory.nbytes <= _LARGEST_COPY:
            constant, memory = memory, aligned(memory.nbytes, alignment=_ALIGNMENT)
            memory[:] = constant
        self._memory.append(memory)
        return int(memory.ctypes.data)


def _constants(data: Data) -> Mapping[str, npt.NDArray[np.uint8]] | None:
    """Return the data under each symbol of an object with only constants, possibly mapped; None for others."""
    if isinstance(data, ConstantsObject):
        return {piece.symbol: _joined(piece.data) for piece in data.pieces}
    if not isinstance(data, memoryview) or data.nbytes < _LEAST_VIEWED:
        return None
    try:
        sections = read_elf(data).sections
        symbols = list(read_symbols(data))
    except ValueError:
        return None
    if any(section.flags & (WRITABLE | EXECUTABLE) or section.kind in _RELOCATIONS for section in sections):
        return None
    image = np.frombuffer(data, np.uint8)
    found = {}
    for symbol in symbols:
        if symbol.section >= len(sections) or symbol.value + symbol.nbytes > sections[symbol.section].nbytes:
            return None
        start = sections[symbol.section].offset + symbol.value
        found[symbol.name] = image[start : start + symbol.nbytes]
        if len(found[symbol.name]) != symbol.nbytes:
            return None
    return found


def _sound(data: Data, name: str) -> bytes:
    content = to_bytes(data)
    wrong = misfit(content, OBJECT) if content.startswith(b"\x7fELF") else None
    if content.startswith(b"\x7fELF") and not wrong:
        try:
            sections = read_elf(content).sections
            end = max((item.offset + item.nbytes for item in sections if item.kind not in _WITHOUT_BYTES), default=0)
            if end > len(content):  # LLVM's linker would read past its end
                wrong = f"the file ends at byte {len(content):,} of {end:,}"
        except ValueError as error:
            wrong = str(error)
    if wrong:
        raise ToolchainError(
            f"the object cannot be linked: {wrong}",
            place=name,
            next_step="Copy the archive again, or export it again for this machine",
        )
    return content


def _joined(data: Data) -> npt.NDArray[np.uint8]:
    if isinstance(data, ArrayContent) and (view := next(data.chunks())).nbytes == data.nbytes:  # type: ignore[union-attr]
        return np.frombuffer(view, np.uint8)
    return np.frombuffer(to_bytes(data), np.uint8)


def _failure(error: RuntimeError, place: str) -> ToolchainError:
    return ToolchainError(
        f"LLVM cannot link the compiled code into this process: {error}",
        place=place,
        next_step="Compile the model again on this machine, or install a C compiler",
    )


@cache
def _linker() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    mathematics = ctypes.util.find_library("m")
    if mathematics:
        llvm.load_library_permanently(mathematics)
    # the older linker places each section separately, and ends the process if two are more than 2 GiB apart;
    # it is still LLVM's default on Windows
    newer = sys.maxsize > _REACH and sys.platform != "win32"
    return llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=newer)


@cache
def _bring_pool() -> None:
    """Build the thread pool for code in this process if no library has one, and a compiler is available."""
    if pool_function() is not None:
        return
    try:
        path = compile_cached(crt_files("parallel"), (), includes=("parallel",))
    except ToolchainError:
        return
    library = ctypes.CDLL(str(path))
    share_pool(lambda name: address_in(library, name))
