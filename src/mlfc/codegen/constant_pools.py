"""Constants that do not lie with all read-only data: sections of their own, and pools that callers load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mlfc.errors import InternalError
from mlfc.memory.pools import POOL_ALIGNMENT
from mlfc.support.content import Data, aligned_arrays, nbytes_of, to_bytes
from mlfc.tir.ir import Value

LARGEST_MACRO = 512 << 10
"""Bytes of a pool that a macro of the header spells out; of larger ones there is the file alone."""

_PER_LINE = 32


@dataclass(frozen=True, eq=False)
class LoadedPool:
    """Constants that the caller loads into memory and passes a pointer to.

    Attributes
    ----------
    name : str
    values : tuple of Value
        In the order in which they lie, each at a multiple of 64.
    """

    name: str
    values: tuple[Value, ...]

    @cached_property
    def data(self) -> Data:
        """What the pool must hold."""
        arrays = []
        for value in self.values:
            if value.data is None:
                raise InternalError(f"the constant '{value.name}' has no value")
            arrays.append(value.data)
        return aligned_arrays(arrays, POOL_ALIGNMENT)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return nbytes_of(self.data)

    @cached_property
    def offsets(self) -> Mapping[Value, int]:
        """Where each constant begins."""
        offsets, end = {}, 0
        for value in self.values:
            offsets[value] = -(-end // POOL_ALIGNMENT) * POOL_ALIGNMENT
            end = offsets[value] + value.nbytes
        return offsets

    def file_name(self, module: str) -> str:
        """Return the name of the file with the pool's bytes, beside the C; it bears the module's name as that does."""
        return f"{module}_lib3.{self.name}.bin"

    def macros(self, prefix: str) -> list[str]:
        """Return the header's lines on the pool: its size, and its bytes where they are few enough for a macro."""
        macro = f"{prefix}_{self.name.upper()}_CONSTANT_POOL"
        lines = [f"/*! \\brief Bytes of constants that {self.name} must hold */", f"#define {macro}_SIZE {self.nbytes}"]
        if self.nbytes > LARGEST_MACRO:
            return lines
        numbers = list(map(str, to_bytes(self.data)))
        rows = [",".join(numbers[start : start + _PER_LINE]) for start in range(0, len(numbers), _PER_LINE)]
        return [
            *lines,
            "/*! \\brief These bytes, to initialize an array with */",
            f"#define {macro}_DATA \\",
            ", \\\n".join(f"  {row}" for row in rows),
        ]


def section(pool: str) -> str:
    """Return the name of the section in which the constants of a memory lie, for linker scripts."""
    return f".rodata.tvm.{pool}"


def attribute(pool: str) -> str:
    """Return the macro that puts a definition into the section of a memory."""
    return f"MLF_IN_{pool.upper()}"


def attribute_definition(pool: str) -> list[str]:
    """Return the lines that define the macro."""
    return [
        "#if defined(__ELF__)",
        f'#define {attribute(pool)} __attribute__((section("{section(pool)}"), aligned({POOL_ALIGNMENT})))',
        "#else",
        f"#define {attribute(pool)} __attribute__((aligned({POOL_ALIGNMENT})))",
        "#endif",
    ]
