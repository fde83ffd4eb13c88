"""Constants of a program as C arrays or, if they are large, as one binary file that an assembler includes.

Compilers parse C arrays at a few megabytes per second; the binary file adds no compile time. Constants may also be in
named sections, or in pools that the caller loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import prod
from string import Template

import numpy as np

from mlfc.codegen.c_types import HALF_FLOATS, literal, scalar_type
from mlfc.codegen.writer import PIECES, comment_text, pieces_beside
from mlfc.errors import InternalError
from mlfc.memory.plan import POOL_ALIGNMENT, ConstantPool
from mlfc.support import dtypes
from mlfc.support.c_names import bounded, unique
from mlfc.support.content import Data, aligned_arrays, nbytes_of, to_bytes
from mlfc.tir.program import Value

ALIGNMENT = 64
BLOB_THRESHOLD = 1 << 20
LARGEST_MACRO = 512 << 10
"""The largest pool whose bytes the header contains as a macro; larger ones are only in their file."""

_WORD = 4
_BYTES = {number: str(number) for number in range(-128, 256)}
_PER_LINE, _BYTES_PER_LINE = 16, 32


def data_of(value: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return the elements of a constant."""
    if value.data is None:
        raise InternalError(f"the constant '{value.name}' has no value")
    return value.data


@dataclass(frozen=True, eq=False)
class LoadedPool:
    """Constants that the caller loads into memory and passes a pointer to."""

    name: str
    values: tuple[Value, ...]  # in the order of their addresses, which are multiples of 64

    @cached_property
    def data(self) -> Data:
        """The bytes of the pool."""
        return aligned_arrays(map(data_of, self.values), POOL_ALIGNMENT)

    @property
    def nbytes(self) -> int:
        """The size of the pool in bytes."""
        return nbytes_of(self.data)

    @cached_property
    def offsets(self) -> Mapping[Value, int]:
        """The byte offset of each constant in the pool."""
        offsets, end = {}, 0
        for value in self.values:
            offsets[value] = -(-end // POOL_ALIGNMENT) * POOL_ALIGNMENT
            end = offsets[value] + value.nbytes
        return offsets

    @property
    def rows(self) -> list[str] | None:
        """The bytes for a macro in the header, in lines; None if they are too many."""
        if self.nbytes > LARGEST_MACRO:
            return None
        numbers = list(map(str, to_bytes(self.data)))
        return [",".join(numbers[start : start + _BYTES_PER_LINE]) for start in range(0, len(numbers), _BYTES_PER_LINE)]


def section(pool: str) -> str:
    """Return the name of the linker section for the constants in a memory pool."""
    return f".rodata.tvm.{pool}"


def section_macro(macro: str, section: str) -> list[str]:
    """Return the lines that define an attribute macro: a section for linker scripts, and an alignment."""
    return Template(PIECES["section"]).substitute(macro=macro, section=section).splitlines()


@dataclass(frozen=True, eq=False)
class SharedConstant:
    """The bytes of one constant, or of several equal constants, of the program."""

    symbol: str
    value: Value  # the first of the program's constants with these bytes
    memory: str | None = None  # the memory of its section; None for the linker's default section of read-only data

    @property
    def data(self) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        """The elements."""
        return data_of(self.value)


def content(value: Value) -> tuple[str, bytes]:
    """Return a key that is equal for constants with equal bytes."""
    data = data_of(value)
    return value.dtype, sha256(np.ascontiguousarray(data).view(np.uint8).data).digest() if value.nbytes else b""


class ConstantTable:
    """The constants of a program, deduplicated by content, and their symbols.

    Parameters
    ----------
    values : iterable of Value
        Constants in the order of their addresses.
    module : str
        Module name, used in external symbols.
    elsewhere : mapping of tuple to str, optional
        C names of constants that another file defines, by `content`.
    external : bool
        All constants have external linkage.
    pools : mapping of Value to ConstantPool, optional
        The memories of constants that the linker does not place.
    packed : bool
        Align C arrays only as much as their elements and word accesses require.
    """

    def __init__(
        self,
        values: Iterable[Value],
        module: str,
        *,
        elsewhere: Mapping[tuple[str, bytes], str] | None = None,
        external: bool = False,
        pools: Mapping[Value, ConstantPool] | None = None,
        packed: bool = False,
    ) -> None:
        self._module = module
        self.values = tuple(values)
        self.packed = packed
        self._external = external
        self._by_content: dict[tuple[str, bytes], SharedConstant] = {}
        self._by_value: dict[Value, SharedConstant] = {}
        self._elsewhere: dict[Value, str] = {}
        groups: dict[tuple[str, bytes], list[Value]] = {}
        for value in self.values:
            key = content(value)
            if elsewhere and key in elsewhere and not (pools and value in pools):
                self._elsewhere[value] = elsewhere[key]
            else:
                groups.setdefault(key, []).append(value)
        symbols = unique(f"constant_{group[0].name}" for group in groups.values())
        loaded: dict[str, list[Value]] = {}
        for symbol, (key, group) in zip(symbols, groups.items(), strict=True):
            pool = (pools or {}).get(group[0])
            constant = SharedConstant(symbol, group[0], None if pool is None else pool.name)
            self._by_value.update(dict.fromkeys(group, constant))
            if pool is not None and pool.external:
                loaded.setdefault(pool.name, []).append(group[0])
            else:
                self._by_content[key] = constant
        self.loaded = tuple(LoadedPool(name, tuple(values)) for name, values in loaded.items())
        """The constants that the caller loads, by pool; the table does not define them."""

    @cached_property
    def constants(self) -> tuple[SharedConstant, ...]:
        """The distinct constants, in order."""
        return tuple(self._by_content.values())

    @cached_property
    def nbytes(self) -> int:
        """Total bytes of the constants that this table defines, without alignment gaps."""
        return sum(constant.value.nbytes for constant in self.constants)

    @property
    def bytes_elsewhere(self) -> int:
        """Size in bytes of the distinct constants that another file defines."""
        return sum({symbol: value.nbytes for value, symbol in self._elsewhere.items()}.values())

    @property
    def in_blob(self) -> bool:
        """True if the constants are stored in a binary file."""
        return self.nbytes > BLOB_THRESHOLD

    @property
    def uses_math(self) -> bool:
        """True if the definitions use INFINITY or NAN, which are macros of math.h."""
        plain = (item.data for item in self.constants if item.value.dtype in ("float32", "float64"))
        return not self.in_blob and not all(np.isfinite(data).all() for data in plain)

    def symbol(self, value: Value) -> str:
        """Return the C name of a constant."""
        if value.root in self._elsewhere:
            return self._elsewhere[value.root]
        constant = self._by_value[value.root]
        seen = self.in_blob or self._external
        return bounded(f"tvmgen_{self._module}_{constant.symbol}") if seen else constant.symbol

    def defined(self, value: Value) -> SharedConstant | None:
        """Return this table's definition of a value, or None if another file defines it or the caller loads it."""
        constant = self._by_value.get(value.root)
        return None if self.loaded_place(value) else constant

    def loaded_place(self, value: Value) -> tuple[str, int] | None:
        """Return the pool that a constant is loaded into, and its offset there; None for a constant with a symbol."""
        known = self._by_value.get(value.root)
        for pool in self.loaded if known else ():
            if known and known.value in pool.offsets:
                return pool.name, pool.offsets[known.value]
        return None

    def declarations(self) -> list[str]:
        """Return the lines that declare, or define, the constants in C."""
        foreign = {symbol: value for value, symbol in self._elsewhere.items()}
        lines = [_declaration(value, symbol) for symbol, value in foreign.items()]
        if self.in_blob:
            lines += [_declaration(item.value, self.symbol(item.value)) for item in self.constants]
        if lines or self._external:
            lines = [*PIECES["hidden"].splitlines(), *lines]
        if not self.in_blob:
            for memory in dict.fromkeys(item.memory for item in self.constants if item.memory):
                lines += section_macro(f"MLF_IN_{memory.upper()}", section(memory))
            if not all(item.memory for item in self.constants):
                lines += PIECES["aligned"].splitlines()
            for item in self.constants:
                lines += self._definition(item)
        return lines

    def _definition(self, item: SharedConstant) -> list[str]:
        """Return the definition of a C array, with floats that read back bit for bit."""
        value, symbol = item.value, self.symbol(item.value)
        head = f"const {scalar_type(value.dtype)} {symbol}[{max(prod(value.shape), 1)}]"
        shape = " x ".join(map(str, value.shape)) or "scalar"
        lines = [f"/* {comment_text(value.name[:200])}: {shape} {value.dtype} */"]
        # attributes of external constants are on a declaration: gcc and clang accept different positions in definitions
        if self._external:
            lines.append(_declaration(value, symbol))
        alignment = max(_WORD, dtypes.nbytes(value.dtype)) if self.packed else ALIGNMENT
        placed = f"MLF_IN_{item.memory.upper()}" if item.memory else f"MLF_ALIGNED({alignment})"
        lines.append(f"{'' if self._external else 'static '}{head} {placed} = {{")
        texts = _literals(item)
        lines += [f"  {', '.join(texts[start : start + _PER_LINE])}," for start in range(0, len(texts), _PER_LINE)]
        return [*lines, "};"]

    def assembler(self) -> str:
        """Return the assembler file that defines the symbols of the binary file's constants.

        The binary file is beside it, under the assembler file's name plus ``.bin``. The preprocessor provides that
        name, so the compiler finds the file from any working directory.
        """
        lines = [pieces_beside(__file__, "constants.S")["head"], ""]
        offset = 0
        memory: str | None = None
        for item in self.constants:
            if item.memory and item.memory != memory:
                memory = item.memory
                lines += ["#if defined(__ELF__)", f'  .section {section(memory)},"a",%progbits', "#endif"]
            size = item.value.nbytes
            offset = -(-offset // ALIGNMENT) * ALIGNMENT
            lines.append(f"MLF_CONSTANT({self.symbol(item.value)}, {offset}, {size}, __FILE__)")
            offset += size
        return "\n".join([*lines, "", pieces_beside(__file__, "constants.S")["tail"], ""])

    def blob(self) -> Data:
        """Return the binary file: little-endian elements, each constant aligned to 64 bytes."""
        return aligned_arrays((item.data for item in self.constants), ALIGNMENT)


# C does not have empty arrays
def _declaration(value: Value, symbol: str) -> str:
    return f"extern const {scalar_type(value.dtype)} {symbol}[{max(prod(value.shape), 1)}] MLF_HIDDEN;"


def _literals(item: SharedConstant) -> Sequence[str]:
    dtype, flat = item.value.dtype, item.data.reshape(-1)
    if flat.size == 0:
        return ["0"]
    if dtype in ("int8", "uint8"):
        return list(map(_BYTES.__getitem__, flat.tolist()))
    if dtype in ("int16", "uint16"):
        return list(map(str, flat.tolist()))
    if dtypes.is_narrow(dtype):
        return list(map(_BYTES.__getitem__, flat.view(np.uint8).tolist()))
    if dtype in HALF_FLOATS:
        return list(map(str, flat.view(np.uint16).tolist()))
    if dtype == "int32" and flat.min() > np.iinfo(np.int32).min:
        return [str(number) if number >= 0 else f"({number})" for number in flat.tolist()]
    if dtype == "float32" and np.isfinite(flat).all():
        texts = [f"{number:.9g}" for number in flat.tolist()]  # nine digits distinguish all float32 values
        return [f"{text}f" if "." in text or "e" in text else f"{text}.0f" for text in texts]
    return [literal(number, dtype) for number in flat.tolist()]
