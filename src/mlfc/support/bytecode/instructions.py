"""The instruction table: what the encoder, the verifier, both interpreters and the reference page agree on.

The first word of an instruction has its opcode in the low 8 bits and its length in words above. Each operand is a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

VERSIONS = (1, 2)
"""Those that are read; a file has the oldest that can say it."""
MAX_RANK = 8
ALIGNMENT = 64
"""Of all tensor data, in bytes."""
OPEN = 2**31 - 1
"""The upper bound of a dimension that has none."""
MAX_REGISTERS = 0xFFFF
"""Of one kind in one function."""
MAX_ARGUMENTS = 0xFFFF
"""Buffers, or numbers, of one kernel."""
CPU = 1
"""DLPack's number of the host, for the operands that name a device."""

CONSTANT_BIT = 1 << 31
"""In an operand that may be a register: it is an index of the integer pool, or of a constant."""
STORAGE_BIT = 1 << 30
"""In a buffer of `invoke`: it is a storage register."""
NO_OFFSET = 0xFFFFFFFF
"""The offset of a storage that is allocated."""

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
    "int4", "uint4", "int2", "uint2",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
"""A dtype's place in this table is its number in the file."""
NUMBERED_DTYPES = {dtype: number for number, dtype in enumerate(DTYPES)}
READABLE = DTYPES[:9]
"""The dtypes whose elements `element` reads and `set_element` writes."""

OPERATIONS = ("add", "sub", "mul", "floordiv", "floormod", "min", "max", "eq", "ne", "lt", "le", "and", "or")
"""Of `compute`, by number. Comparisons give 0 or 1; `and` and `or` are logical."""


class Operand(Enum):
    """The kind of an operand; what is written is a register."""

    INTEGER = "integer"  # a register, or CONSTANT_BIT and an index of the pool
    TENSOR = "tensor"  # a register, or CONSTANT_BIT and an index of a constant
    BUFFER = "buffer"  # as a tensor, or STORAGE_BIT and a storage register
    STORAGE = "storage"
    LIST = "list"
    TENSOR_REGISTER = "tensor register"  # read, but no constant
    TO_INTEGER = "-> integer"
    TO_TENSOR = "-> tensor"
    TO_STORAGE = "-> storage"
    TO_LIST = "-> list"
    END_TENSOR = "tensor that ends"  # unset afterwards; may be unset before
    END_STORAGE = "storage that ends"
    OFFSET = "offset"  # CONSTANT_BIT and an index of the pool, or NO_OFFSET
    OPERATION = "operation"
    DTYPE = "dtype"
    AXIS = "axis"
    DEVICE = "device"
    STRING = "string"
    LABEL = "label"
    KERNEL = "kernel"
    FUNCTION = "function"


class Tail(Enum):
    """What follows the fixed operands."""

    NONE = "none"
    EXTENTS = "extents"  # integers, at most MAX_RANK
    TENSORS = "tensors"  # any number
    ARGUMENTS = "arguments"  # of a kernel: its buffers, then its numbers
    CALL = "call"  # of a function: its parameters, then registers for its results
    RESULTS = "results"  # tensors, as many as the function has results


@dataclass(frozen=True)
class Instruction:
    """One kind of instruction: its opcode, name, the kinds and names of its operands, and what follows these."""

    opcode: int
    name: str
    operands: tuple[Operand, ...]
    fields: tuple[str, ...]
    tail: Tail = Tail.NONE
    falls_through: bool = True
    since: int = 1  # the version of the file


def _instruction(
    opcode: int, text: str, tail: Tail = Tail.NONE, *, falls_through: bool = True, since: int = 1
) -> Instruction:
    """Return an instruction from ``name field:kind ...``; a kind is that of the field's name if none is given."""
    name, *fields = text.split()
    pairs = [field.partition(":")[::2] for field in fields]
    kinds = tuple(Operand[(kind or field).upper()] for field, kind in pairs)
    return Instruction(opcode, name, kinds, tuple(field for field, _ in pairs), tail, falls_through, since)


INSTRUCTIONS = (
    _instruction(1, "integer d:to_integer value:integer"),
    _instruction(2, "compute operation d:to_integer a:integer b:integer"),
    _instruction(3, "extent d:to_integer tensor axis"),
    _instruction(4, "element d:to_integer tensor index:integer"),
    _instruction(5, "set_element tensor:tensor_register index:integer value:integer"),
    _instruction(6, "require_range value:integer low:integer high:integer string"),
    _instruction(7, "require_equal a:integer b:integer string"),
    _instruction(8, "storage d:to_storage bytes:integer offset device"),
    _instruction(9, "release storage:end_storage"),
    _instruction(10, "tensor d:to_tensor storage start:integer dtype", Tail.EXTENTS),
    _instruction(11, "view d:to_tensor source:tensor start:integer dtype", Tail.EXTENTS),
    _instruction(12, "move d:to_tensor source:tensor"),
    _instruction(13, "copy tensor:tensor_register source:tensor"),
    _instruction(14, "drop tensor:end_tensor"),
    _instruction(15, "to_device d:to_tensor source:tensor device"),
    _instruction(16, "invoke kernel", Tail.ARGUMENTS),
    _instruction(17, "invoke_packed string", Tail.TENSORS),
    _instruction(18, "jump label", falls_through=False),
    _instruction(19, "branch value:integer label"),
    _instruction(20, "call function", Tail.CALL),
    _instruction(21, "return", Tail.RESULTS, falls_through=False),
    _instruction(22, "fail string", falls_through=False),
    _instruction(23, "list d:to_list"),
    _instruction(24, "append list source:tensor"),
    _instruction(25, "insert list index:integer source:tensor"),
    _instruction(26, "erase list index:integer"),
    _instruction(27, "get d:to_tensor list index:integer"),
    _instruction(28, "length d:to_integer list"),
    _instruction(29, "list_move d:to_list source:list"),
    _instruction(30, "paste tensor:tensor_register start:integer source:tensor"),
    _instruction(
        31,
        "blocks tensor:tensor_register start:integer step:integer"
        " source:tensor origin:integer stride:integer bytes:integer count:integer",
    ),
    _instruction(32, "rank d:to_integer tensor", since=2),
)
BY_OPCODE = {instruction.opcode: instruction for instruction in INSTRUCTIONS}
BY_NAME = {instruction.name: instruction for instruction in INSTRUCTIONS}

REGISTER_KINDS = ("tensor", "integer", "storage", "list")
"""In the order in which a function's record counts its registers."""


def first_word(opcode: int, length: int) -> int:
    """Return the first word of an instruction of `length` words."""
    return opcode | length << 8
