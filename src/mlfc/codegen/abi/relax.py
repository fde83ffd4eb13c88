"""Bytecode of TVM's Relax virtual machine whose functions call the tvm-ffi functions of a library."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from mlfc.support.stream import encode_numbers, encode_string, encode_strings, encode_u64

# the format is described in TVM's documentation of the virtual machine
_MAGIC = 0xD225DE2F4214151E
_VERSION = "0.14"
_PACKED_FUNC, _VM_FUNC = range(2)
_CALL, _RET = 1, 2
_FUNCTION = struct.Struct("<4q")


def executable(functions: Mapping[str, tuple[str, Sequence[str]]]) -> bytes:
    """Return the stored form of an executable.

    `functions` has, for each function of the virtual machine by name, the packed function that it calls and the names
    of its parameters.
    """
    # in the table, each function follows the packed function that it calls
    table, offsets, words = [], [0], list[int]()
    for index, (name, (packed, parameters)) in enumerate(functions.items()):
        result = len(parameters)
        for instruction in ((_CALL, result, 2 * index, result, *range(result)), (_RET, result)):
            words += instruction
            offsets.append(len(words))
        table += [
            _entry(_PACKED_FUNC, packed, (0, 0, -2, 0), ()),
            _entry(_VM_FUNC, name, (2 * index, 2 * index + 2, result, result + 1), parameters),
        ]
    scopes = constants = encode_u64(0)
    code = encode_numbers(offsets[:-1]) + encode_numbers(words)
    head = encode_u64(_MAGIC) + encode_string(_VERSION) + encode_u64(len(table))
    return head + b"".join(table) + scopes + constants + code


def _entry(kind: int, name: str, fields: tuple[int, int, int, int], parameters: Sequence[str]) -> bytes:
    """Return an entry of the table; `fields` are first and last instruction, arguments and registers."""
    return struct.pack("<i", kind) + encode_string(name) + _FUNCTION.pack(*fields) + encode_strings(parameters)
