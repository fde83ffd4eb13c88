"""Faults of parameter files."""

from __future__ import annotations

import struct

from tests.hostile.corpus import add, packed
from tests.hostile.good_archives import P0, graph_files, parameters, tensor

_DATA = struct.pack("<4f", 1, 2, 3, 4)
_ONE = {b"p0": P0}

# with the expected message of load_params; 46 is the byte offset of the tensor in a file with the single name p0
BROKEN: dict[str, tuple[bytes, str]] = {
    "params_empty_file": (b"", r"byte 0.*header"),
    "params_wrong_magic": (parameters(_ONE, magic=1), r"byte 0.*must start with"),
    "params_lying_count": (parameters(_ONE, names=2**60), r"byte 16.*names exceed the limit"),
    "params_count_of_64_bits": (parameters(_ONE, names=2**64 - 1), r"byte 16.*names exceed the limit"),
    "params_length_overflow": (parameters(_ONE, length=2**63), r"byte 32: a name needs"),
    "params_length_of_64_bits": (parameters(_ONE, length=2**64 - 1), r"byte 32: a name needs"),
    "params_name_not_utf8": (parameters({b"\xff\xfe": P0}), r"byte 32.*UTF-8"),
    "params_more_tensors_than_names": (parameters(_ONE, arrays=7), r"byte 34: 1 names but 7 tensors"),
    "params_wrong_magic_of_a_tensor": (
        parameters({b"p0": tensor((4,), _DATA, magic=0)}),
        r"'p0', byte 42: a tensor must start",
    ),
    "params_of_a_gpu": (parameters({b"p0": tensor((4,), _DATA, device=2)}), r"byte 58: device type 2"),
    "params_negative_dimensions": (parameters({b"p0": tensor((4,), _DATA, ndim=-1)}), r"byte 66: a tensor of -1"),
    "params_many_dimensions": (
        parameters({b"p0": tensor((4,), _DATA, ndim=2**30)}),
        rf"byte 66: a tensor of {2**30}",
    ),
    "params_opaque_dtype": (parameters({b"p0": tensor((4,), _DATA, dtype=(3, 64, 1))}), r"byte 70: dtype code 3"),
    "params_unknown_dtype": (parameters({b"p0": tensor((4,), _DATA, dtype=(99, 32, 1))}), r"byte 70: dtype code 99"),
    "params_odd_bits": (parameters({b"p0": tensor((4,), _DATA, dtype=(2, 31, 1))}), r"byte 70: dtype code 2, 31"),
    "params_no_bits": (parameters({b"p0": tensor((4,), _DATA, dtype=(2, 0, 1))}), r"byte 70: dtype code 2, 0"),
    "params_vector_dtype": (parameters({b"p0": tensor((4,), _DATA, dtype=(2, 32, 4))}), r"byte 70: .* 4 lanes"),
    "params_negative_extent": (parameters({b"p0": tensor((-2,), _DATA)}), r"byte 74: the shape"),
    "params_huge_extent": (parameters({b"p0": tensor((2**62,), _DATA)}), r"byte 74: the shape"),
    "params_product_overflow": (
        parameters({b"p0": tensor((2**32, 2**32), _DATA)}),
        r"byte 74: the shape",
    ),
    "params_product_overflow_to_the_true_size": (
        parameters({b"p0": tensor((2**62 + 1, 4), _DATA)}),
        r"byte 74: the shape",
    ),
    "params_huge_extent_behind_a_zero": (
        parameters({b"p0": tensor((0, 2**62), b"")}),
        r"byte 74: the shape",
    ),
    "params_lying_data_size": (
        parameters({b"p0": tensor((4,), _DATA, nbytes=15)}),
        r"byte 82: 15 bytes of data",
    ),
    "params_negative_data_size": (
        parameters({b"p0": tensor((4,), _DATA, nbytes=-1)}),
        r"byte 82: -1 bytes of data",
    ),
    "params_data_cut_off": (parameters(_ONE)[:-1], r"byte 90: the data of a tensor needs 16 bytes, 15 are left"),
}

# valid files that do not match the graph of the archive
UNFITTING: dict[str, tuple[bytes, str]] = {
    "params_scalar_for_a_vector": (parameters({b"p0": tensor((), _DATA[:4])}), r"p0.*shape"),
    "params_other_shape": (parameters({b"p0": tensor((2, 2), _DATA)}), r"p0.*shape"),
    "params_other_dtype": (parameters({b"p0": tensor((4,), _DATA, dtype=(0, 32, 1))}), r"p0.*int32"),
    "params_of_no_input": (parameters({b"p0": P0, b"p1": P0}), r"p1.*not an input"),
    "params_trailing_bytes": (parameters(_ONE) + b"x", r"after the last tensor"),
    "params_name_twice": (
        parameters({b"p0": P0, b"p1": P0}).replace(b"p1", b"p0"),
        r"duplicate names",
    ),
}


def _add(name: str, params: bytes, expected: str) -> None:
    add(name, expected, lambda: packed(graph_files(params=params)), refused=False)


for _name, (_params, _expected) in {**BROKEN, **UNFITTING}.items():
    _add(_name, _params, _expected)

add(
    "params_too_many_tensors",
    r"byte 16.*exceed the limit of 100,000",
    lambda: packed(graph_files(params=parameters({b"p%d" % index: b"" for index in range(100_001)}))),
    refused=False,
)
