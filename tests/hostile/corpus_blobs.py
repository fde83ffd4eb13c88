"""Blobs of module trees with one named fault each, and well-formed blobs that are slow or large."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, repeat

from tests.hostile.good_archives import tensor


@dataclass(frozen=True)
class BrokenBlob:
    """A blob of one ABI generation, built on demand, and a regular expression for the expected error."""

    abi: str
    build: Callable[[], bytes]
    expected: str


def u64(*values: int) -> bytes:
    """Return numbers in stream format."""
    return struct.pack(f"<{len(values)}Q", *values)


def string(text: bytes) -> bytes:
    """Return a string in stream format."""
    return u64(len(text)) + text


def rows(*children: tuple[int, ...]) -> bytes:
    """Return a tree in compressed sparse row format."""
    ends = [0]
    for row in children:
        ends.append(ends[-1] + len(row))
    return u64(len(ends), *ends, ends[-1], *chain(*children))


def blob(*parts: bytes) -> bytes:
    """Return the parts with their size as a prefix."""
    body = b"".join(parts)
    return u64(len(body)) + body


LIB, TREE, EMPTY = string(b"_lib"), string(b"_import_tree"), string(b"metadata_module")


def classic(*modules: bytes, tree: bytes) -> bytes:
    """Return a classic blob."""
    return blob(u64(len(modules) + 1), *modules, TREE, tree)


def ffi(*modules: bytes, tree: bytes) -> bytes:
    """Return a blob of tvm-ffi."""
    return blob(tree, *modules)


def factory(body: bytes, kind: bytes = b"GraphExecutorFactory") -> bytes:
    """Return a classic blob of one factory and the library."""
    return classic(string(kind) + body, LIB, tree=rows((1,), ()))


def kernels(functions: bytes) -> bytes:
    """Return a classic blob of the library with a module of OpenCL kernels; the body starts at byte 42."""
    return classic(
        LIB, string(b"opencl") + string(b"cl") + functions + string(b"// Function: k\n"), tree=rows((1,), ())
    )


JSON = string(b"{}")
P0 = tensor((4,), struct.pack("<4f", 1, 2, 3, 4))
# byte offset of the body of a root factory, in which the names follow the JSON
BODY = 44

HEADS: dict[str, BrokenBlob] = {
    "empty": BrokenBlob("classic", lambda: b"\0", r"byte 0: the size of the blob needs 8 bytes, 1 are left"),
    "size_beyond_the_end": BrokenBlob("classic", lambda: u64(9, 0), r"byte 0: the blob of 9 bytes is cut off after 8"),
    "size_of_64_bits": BrokenBlob(
        "ffi", lambda: u64(2**64 - 1) + bytes(50), r"byte 0: the blob of 18446744073709551615"
    ),
    "size_that_becomes_negative": BrokenBlob(
        "classic", lambda: u64(2**63, 0), r"byte 0: the blob of 9223372036854775808"
    ),
    "no_count": BrokenBlob("classic", lambda: u64(0), r"byte 8: the number of modules needs 8 bytes"),
    "count_of_64_bits": BrokenBlob("classic", lambda: blob(u64(2**64 - 1)), r"byte 8: 18446744073709551615 modules"),
    "count_beyond_the_end": BrokenBlob(
        "classic", lambda: blob(u64(3), LIB), r"byte 8: 3 modules do not fit in the remaining 12"
    ),
    "bytes_behind_the_tree": BrokenBlob(
        "classic", lambda: blob(u64(2), LIB, TREE, rows(()), b"!"), r"byte 80: 1 bytes follow the last module"
    ),
    "bytes_behind_the_modules": BrokenBlob("ffi", lambda: ffi(LIB, b"!", tree=rows(())), r"byte 52: 1 bytes follow"),
}
KINDS: dict[str, BrokenBlob] = {
    "kind_beyond_the_end": BrokenBlob("classic", lambda: blob(u64(1, 2**63), b"x"), r"byte 24: the kind of a module"),
    "kind_not_utf8": BrokenBlob("classic", lambda: blob(u64(1), string(b"\xff\xfe")), r"byte 24: .* is not UTF-8"),
    "kind_of_a_megabyte": BrokenBlob(
        "ffi", lambda: ffi(string(b"k" * 2**20) + u64(0), tree=rows(())), r"byte 48: the kind .* of 1048576 bytes"
    ),
    "kind_unknown": BrokenBlob(
        "classic", lambda: blob(u64(1), string(b"tpu"), bytes(99)), r"byte 16: .*'tpu'.*register_loader\('tpu'\)"
    ),
    "kind_empty": BrokenBlob("classic", lambda: blob(u64(1), string(b"")), r"byte 16: modules of the kind ''"),
    "kind_in_other_letters": BrokenBlob("transitional", lambda: blob(u64(1), string(b"_LIB")), r"byte 16: .*'_LIB'"),
    "library_twice": BrokenBlob(
        "classic", lambda: classic(LIB, LIB, tree=rows((1,), ())), r"byte 28: the blob contains the library twice"
    ),
    "library_twice_for_ffi": BrokenBlob(
        "ffi", lambda: ffi(LIB, LIB, tree=rows((1,), ())), r"byte 68: the blob contains the library twice"
    ),
    "tree_before_modules": BrokenBlob(
        "classic", lambda: blob(u64(2), TREE, rows(()), LIB), r"byte 16: modules follow the import tree"
    ),
    "tree_twice": BrokenBlob(
        "classic", lambda: classic(LIB, TREE + rows(()), tree=rows(())), r"byte 28: modules follow"
    ),
}
TREES: dict[str, BrokenBlob] = {
    "tree_of_no_module": BrokenBlob(
        "classic", lambda: classic(tree=rows(())), r"byte 36: 2 row pointers for 0 modules"
    ),
    "tree_of_nothing": BrokenBlob("ffi", lambda: blob(u64(0, 0)), r"byte 8: 0 row pointers; 2 to 100,001"),
    "tree_of_one_pointer": BrokenBlob("ffi", lambda: blob(u64(1, 0, 0)), r"byte 8: 1 row pointers"),
    "pointers_too_many": BrokenBlob(
        "classic", lambda: classic(LIB, tree=rows((), ())), r"byte 48: 3 row pointers for 1"
    ),
    "pointers_too_few": BrokenBlob(
        "classic", lambda: classic(LIB, EMPTY, tree=rows(())), r"2 row pointers for 2 modules"
    ),
    "pointers_of_64_bits": BrokenBlob(
        "classic", lambda: classic(LIB, tree=u64(2**64 - 1)), r"byte 48: 18446744073709551615 row pointers"
    ),
    "pointers_whose_bytes_overflow": BrokenBlob(
        "ffi", lambda: blob(u64(2**61 + 1), bytes(80)), r"byte 8: 2305843009213693953 row pointers do not fit"
    ),
    "pointers_that_fall": BrokenBlob(
        "classic", lambda: classic(LIB, EMPTY, tree=u64(3, 0, 2, 1, 2, 1, 1)), r"row pointer 2 is 1, below .* 2"
    ),
    "pointers_from_elsewhere": BrokenBlob(
        "ffi", lambda: ffi(LIB, tree=u64(2, 1, 1, 1, 0)), r"byte 16: the first row pointer is 1, not 0"
    ),
    "pointers_beyond_the_imports": BrokenBlob(
        "ffi",
        lambda: ffi(LIB, tree=u64(2, 0, 2**63, 0)),
        r"byte 24: the last row pointer is 9223372036854775808, for 0",
    ),
    "pointers_short_of_the_imports": BrokenBlob(
        "ffi", lambda: ffi(LIB, tree=u64(2, 0, 0, 1, 0)), r"byte 24: the last row pointer is 0, for 1"
    ),
    "imports_of_64_bits": BrokenBlob(
        "ffi", lambda: ffi(LIB, tree=u64(2, 0, 0, 2**64 - 1)), r"byte 32: 184467440737095"
    ),
    "import_out_of_range": BrokenBlob(
        "classic", lambda: classic(LIB, tree=rows((1,))), r"module 0 imports 1: of 1 modules"
    ),
    "import_of_64_bits": BrokenBlob("ffi", lambda: ffi(LIB, tree=rows((2**64 - 1,))), r"imports 18446744073709551615"),
    "import_of_itself": BrokenBlob("ffi", lambda: ffi(LIB, tree=rows((0,))), r"byte 40: module 0 imports 0"),
    "import_backwards": BrokenBlob(
        "classic", lambda: classic(LIB, EMPTY, tree=rows((1,), (0,))), r"module 1 imports 0: of 2 modules"
    ),
    "imports_in_a_cycle": BrokenBlob(
        "ffi", lambda: ffi(LIB, *[EMPTY + u64(0)] * 2, tree=rows((1,), (2,), (1,))), r"byte 72: module 2 imports 1"
    ),
}
BODIES: dict[str, BrokenBlob] = {
    "body_beyond_the_end": BrokenBlob(
        "ffi", lambda: ffi(LIB, string(b"tpu") + u64(2**63), tree=rows((1,), ())), r"body of the module 'tpu' needs"
    ),
    "body_of_a_module_without_one": BrokenBlob(
        "ffi",
        lambda: ffi(LIB, EMPTY + string(b"x"), tree=rows((1,), ())),
        r"'metadata_module' at byte 99: .*1 bytes follow",
    ),
    "factory_json_beyond_the_end": BrokenBlob(
        "classic", lambda: factory(u64(2**63)), r"at byte 44: .* the graph JSON needs"
    ),
    "factory_json_empty": BrokenBlob(
        "classic", lambda: factory(string(b" ") + u64(0, 0, 0)), r"the graph JSON is empty"
    ),
    "factory_json_not_utf8": BrokenBlob(
        "classic", lambda: factory(string(b"\xff") + u64(0, 0, 0)), r"JSON is not UTF-8"
    ),
    "factory_count_of_64_bits": BrokenBlob(
        "classic", lambda: factory(JSON + u64(2**64 - 1)), r"18446744073709551615 param"
    ),
    "factory_lying_count": BrokenBlob("classic", lambda: factory(JSON + u64(1, 0, 0)), r"1 parameters, but 0 names"),
    "factory_tensor_cut_off": BrokenBlob(
        "classic",
        lambda: blob(u64(1), string(b"GraphExecutorFactory"), JSON, u64(1, 1), string(b"p0"), P0[:50]),
        r"at byte 44: tensor 'p0', byte 48: the data of a tensor needs 16 bytes, 2 are left",
    ),
    "factory_tensor_of_huge_extent": BrokenBlob(
        "classic",
        lambda: factory(JSON + u64(1, 1) + string(b"p0") + tensor((2**62,), b"") + string(b"m")),
        r"tensor 'p0', byte 32: the shape",
    ),
    "factory_without_a_name": BrokenBlob(
        "classic", lambda: factory(JSON + u64(0, 0, 2**63)), r"the name of the module needs"
    ),
    "factory_name_of_a_megabyte": BrokenBlob(
        "classic", lambda: factory(JSON + u64(0, 0) + string(b"m" * 2**20)), r"name of the module of 1048576 bytes"
    ),
    "aot_factory_lying_count": BrokenBlob(
        "classic", lambda: factory(u64(5, 0, 0, 0, 0, 0), b"AotExecutorFactory"), r"5 parameters, but 0 names"
    ),
    "kernels_of_64_bits": BrokenBlob(
        "classic", lambda: kernels(u64(2**64 - 1)), r"'opencl' at byte 42: .*18446744073709551615"
    ),
    "kernel_types_of_64_bits": BrokenBlob(
        "classic", lambda: kernels(u64(1) + string(b"k") + string(b"") + u64(2**62)), r"4611686018427387904"
    ),
    "kernel_tags_of_64_bits": BrokenBlob(
        "classic", lambda: kernels(u64(1) + string(b"k") + string(b"") + u64(0, 2**61)), r"2305843009213693952"
    ),
    "constants_without_names": BrokenBlob(
        "classic",
        lambda: classic(LIB, string(b"const_loader") + u64(0, 1) + P0 + u64(0, 0), tree=rows((1,), ())),
        r"'const_loader' at byte 48: .*as many constants as the 0 names",
    ),
    "constants_that_are_not_there": BrokenBlob(
        "classic",
        lambda: classic(
            LIB,
            string(b"const_loader") + u64(0, 0, 1) + string(b"f") + u64(1, 1) + string(b"w"),
            tree=rows((1,), ()),
        ),
        r"'f' uses a constant that does not exist",
    ),
    "code_in_no_language": BrokenBlob(
        "classic",
        lambda: classic(LIB, string(b"c") + string(b"x") + string(b"../sh") + u64(0, 0), tree=rows((1,), ())),
        r"unknown source form '../sh'",
    ),
    "onnx_model_beyond_the_end": BrokenBlob(
        "ffi",
        lambda: ffi(LIB, string(b"onnxruntime") + string(string(b"f") + u64(9)), tree=rows((1,), ())),
        r"the model needs",
    ),
}


def _chain(count: int) -> bytes:
    return rows(*((index + 1,) for index in range(count - 1)), ())


SLOW: dict[str, BrokenBlob] = {
    "modules_too_many": BrokenBlob(
        "ffi", lambda: ffi(tree=_chain(100_001)), r"byte 8: 100002 row pointers; 2 to 100,001 are possible"
    ),
    "modules_too_many_in_the_classic_form": BrokenBlob(
        "classic", lambda: blob(u64(200_000), *repeat(EMPTY, 200_000)), r"byte 8: 200000 modules; more than 100,000"
    ),
    "deep_with_a_fault_at_the_end": BrokenBlob(
        "ffi",
        lambda: ffi(LIB, *repeat(EMPTY + u64(0), 99_998), string(b"onnxruntime") + u64(0), tree=_chain(100_000)),
        r"'onnxruntime' at byte .*the length of the symbol needs 8 bytes, 0 are left",
    ),
    "wide_with_a_fault_at_the_end": BrokenBlob(
        "classic",
        lambda: classic(LIB, *repeat(EMPTY, 30_000), tree=rows((*range(1, 30_001),), *repeat((), 29_999), (1,))),
        r"module 30000 imports 1: of 30001 modules",
    ),
    "all_import_all": BrokenBlob(
        "ffi",
        lambda: ffi(
            LIB,
            *repeat(EMPTY + u64(0), 998),
            string(b"onnxruntime") + u64(0),
            tree=rows(*(tuple(range(index + 1, 1000)) for index in range(1000))),
        ),
        r"'onnxruntime' at byte",
    ),
    "names_of_nothing": BrokenBlob(
        "classic",
        lambda: factory(JSON + u64(10**6, 10**6) + bytes(8 * 10**6)),
        r"1000000 parameters; more than 100,000",
    ),
    "kernels_of_nothing": BrokenBlob(
        "classic", lambda: kernels(u64(10**5) + bytes(32 * 10**5)), r"'opencl' at byte 42"
    ),
}
BLOBS = {**HEADS, **KINDS, **TREES, **BODIES, **SLOW}
