"""Objects linked into this process, with no compiler and no linker of the system: LLVM's own does it."""

from __future__ import annotations

import ctypes.util
import itertools
import os
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as files_of
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from mlfc.codegen.llvm.objects import ConstantsObject
from mlfc.errors import ToolchainError
from mlfc.library.parallel import PARALLEL, mentions_parallel, runner_address
from mlfc.library.toolchain import OBJECT_SUFFIX
from mlfc.objfile.elf import read_elf, read_symbols
from mlfc.objfile.head import OBJECT, misfit
from mlfc.runtime.libraries.library_context import process_functions
from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.content import ArrayContent, Data, ViewContent, to_bytes

_ALIGNMENT = 64
_SERIAL = "parallel_serial.ll"
# constants that do not begin at a multiple of 64 are copied for speed, unless that took too much memory
_LARGEST_COPY = 16 << 20
# of smaller objects a copy is no matter
_LEAST_VIEWED = 1 << 20
_WRITE, _EXECUTE = 1, 4
_RELOCATIONS = (4, 9)
_WITHOUT_BYTES = (0, 8)
# how far references inside an object reach on machines of 64 bits; on others, everywhere
_REACH = 2 << 30
_numbers = itertools.count()
# LLVM's linker takes one caller at a time, and a child process can use it if no thread was in it at the fork
_guard = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


class LinkedObjects:
    """The ``.o`` files for this machine among `files`, linked into this process; raises ToolchainError on failure."""

    def __init__(self, files: Mapping[str, Data]) -> None:
        self._name = f"mlfc_{next(_numbers)}"
        self._memory: list[npt.NDArray[np.uint8]] = []
        self._found: dict[str, Any] = {}
        builder = llvm.JITLibraryBuilder()
        for symbol, address in process_functions().items():
            builder.import_symbol(symbol, address)
        objects = {name: data for name, data in sorted(files.items()) if name.endswith(OBJECT_SUFFIX)}
        if mentions_parallel(objects):
            runner = runner_address()
            if runner is None:
                builder.add_ir(files_of("mlfc.library").joinpath(_SERIAL).read_text(encoding="utf-8"))
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
                self._tracker = builder.link(_linker(), self._name)
            except RuntimeError as error:
                raise _failure(error, self._name) from error

    @property
    def place(self) -> str:
        """What messages call it."""
        return self._name

    def address(self, symbol: str) -> int | None:
        """Return where a symbol is, or None; the first request raises ToolchainError if objects cannot be linked."""
        if not symbol or "\0" in symbol:
            return None
        with _guard:
            if symbol not in self._found:
                self._found[symbol] = self._look_up(symbol)
            tracker = self._found[symbol]
        return None if tracker is None else int(tracker[symbol])

    def _look_up(self, symbol: str) -> Any:
        try:
            return _linker().lookup(self._name, symbol)
        except RuntimeError as error:
            if "not found" in str(error):
                return None
            raise _failure(error, self._name) from error

    def _place(self, memory: npt.NDArray[np.uint8]) -> int:
        """Return the address of a constant, which in most cases stays where it is."""
        if memory.ctypes.data % _ALIGNMENT and memory.nbytes <= _LARGEST_COPY:
            constant, memory = memory, aligned(memory.nbytes, alignment=_ALIGNMENT)
            memory[:] = constant
        self._memory.append(memory)
        return int(memory.ctypes.data)


def _constants(data: Data) -> Mapping[str, npt.NDArray[np.uint8]] | None:
    """Return the data under each symbol of an object of constants alone, perhaps mapped; None for others."""
    if isinstance(data, ConstantsObject):
        return {piece.symbol: _joined(piece.data) for piece in data.pieces}
    if not isinstance(data, ViewContent) or data.nbytes < _LEAST_VIEWED:
        return None
    try:
        sections = read_elf(data.view).sections
        symbols = list(read_symbols(data.view))
    except ValueError:
        return None
    if any(section.flags & (_WRITE | _EXECUTE) or section.kind in _RELOCATIONS for section in sections):
        return None
    image = np.frombuffer(data.view, np.uint8)
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
    wrong = (misfit(content, OBJECT) or _missing(content)) if content.startswith(b"\x7fELF") else None
    if wrong:
        raise ToolchainError(
            f"the object cannot be linked: {wrong}",
            place=name,
            next_step="Copy the archive again, or export it again for this machine",
        )
    return content


def _missing(content: bytes) -> str | None:
    """Return what the file of an object lacks: LLVM's linker would read past its end."""
    try:
        sections = read_elf(content).sections
    except ValueError as error:
        return str(error)
    end = max((item.offset + item.nbytes for item in sections if item.kind not in _WITHOUT_BYTES), default=0)
    return f"the file ends at byte {len(content):,} of {end:,}" if end > len(content) else None


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
    # the older linker places each section by itself, and ends the process if two are more than 2 GiB apart;
    # for Windows it is still the one that LLVM takes by itself
    newer = sys.maxsize > _REACH and sys.platform != "win32"
    return llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=newer)
