"""The languages of devices, OpenCL C 1.2 and CUDA C++: what they spell differently from C and from each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlfc.codegen.prelude import helper_source
from mlfc.codegen.writer import text_beside
from mlfc.registry import Registry

_NAMES = {
    "int8": "char", "int16": "short", "int32": "int", "uint8": "uchar", "uint16": "ushort", "uint32": "uint",
    "float32": "float", "float64": "double", "bool": "uchar",
}  # fmt: skip

_HELPERS = {
    "dot4_s8": """\
/* sum + the sum of the products of the signed bytes of two words */
static inline int32_t mlf_dot4_s8(int32_t sum, int32_t a, int32_t b)""",
    "clz32": "static inline int32_t mlf_clz32(uint32_t x)",
    "bits_of_float": "static inline uint32_t mlf_bits_of_float(float x)",
    "float_of_bits": "static inline float mlf_float_of_bits(uint32_t bits)",
}
"""Heads of the helpers that are not C's."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """A language of kernels, close to C. Forms with fields in braces are filled in by `str.format`."""

    name: str  # the kind of device
    suffix: str  # of files of source
    function: str  # in place of C's ``static inline``
    kernel_head: str  # of name, parameters, extents x, y, z of the group, and their product items
    parameter_space: str  # before the type of a pointer parameter
    shared_space: str  # before the type of an array that a group shares
    private_space: str  # before the type of an array that a work-item has
    restrict: str  # behind the ``*`` of a pointer to what no other pointer reaches
    group_place: str  # of axis (0, 1, 2) or letter (x, y, z): the place of the group in the grid
    item_place: str  # the place of the work-item in its group
    barrier: str
    int64: str  # in names of vector types
    vector_load: str  # of kind, lanes, address
    vector_store: str  # of kind, lanes, address, value
    splat: str  # of kind, value, and values: one for each lane
    word: str  # of address: four bytes as one int32
    product: str  # of letter (f, d), a, b: one that is not fused with a sum; empty where `separate_products` is enough
    separate_products: str  # the line that keeps products and sums apart in a file
    unroll: str  # before a loop to unroll; empty where compilers do so unasked
    math_suffix: str  # behind the names of functions of float
    bodies: Mapping[str, str]  # of `_HELPERS`
    prelude: str  # the file with the first lines
    doubles: str  # a line before them, where there are doubles
    shares_prelude: bool  # all kernels are one text with one prelude, instead of a text each

    def vector_type(self, dtype: str, lanes: int) -> str:
        """Return the name of a vector type."""
        names = {**_NAMES, "int64": self.int64, "uint64": f"u{self.int64}"}
        return f"{names.get(dtype, 'ushort')}{lanes}"

    def first_lines(self, dtypes: frozenset[str], *, contracts: bool) -> str:
        """Return the first lines of a file that uses these dtypes, and may fuse products and sums."""
        before = [self.doubles] if self.doubles and "float64" in dtypes else []
        after = [self.separate_products] if self.separate_products and not contracts else []
        return "\n".join([*before, text_beside(__file__, self.prelude), *after])

    def helper_texts(self, keys: Iterable[str]) -> list[str]:
        """Return the texts of helpers and of those they call, callees first."""
        ordered: dict[str, str] = {}

        def visit(key: str) -> None:
            if key in ordered:
                return
            used, text = ((), f"{_HELPERS[key]} {{\n{self.bodies[key]}\n}}") if key in _HELPERS else helper_source(key)
            for other in used:
                visit(other)
            ordered[key] = text.replace("static inline", self.function)

        for key in sorted(set(keys)):
            visit(key)
        return list(ordered.values())


_OPENCL = Dialect(
    "opencl",
    suffix="cl",
    function="static inline",
    kernel_head="__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}({parameters})",
    parameter_space="__global ",
    shared_space="__local ",
    private_space="",
    restrict="restrict ",
    group_place="get_group_id({axis})",
    item_place="get_local_id({axis})",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    int64="long",
    vector_load="vload{lanes}(0, {address})",
    vector_store="vstore{lanes}({value}, 0, {address});",
    splat="({kind})({value})",
    word="as_int(vload4(0, {address}))",
    product="",
    separate_products="#pragma OPENCL FP_CONTRACT OFF",
    unroll="",  # compilers for GPUs unroll unasked, and for processors it costs the vectors across work-items
    math_suffix="",
    bodies={
        "dot4_s8": """\
  const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return sum + ((products.x + products.y) + (products.z + products.w));""",
        "clz32": "  return (int32_t)clz(x);",
        "bits_of_float": "  return as_uint(x);",
        "float_of_bits": "  return as_float(bits);",
    },
    prelude="opencl_prelude.h",
    doubles="#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
    shares_prelude=False,
)
_CUDA = Dialect(
    "cuda",
    suffix="cu",
    function="static __device__ __forceinline__",
    kernel_head='extern "C" __global__ void __launch_bounds__({items})\n{name}({parameters})',
    parameter_space="",
    shared_space="__shared__ __align__(16) ",
    private_space="__align__(16) ",
    restrict="__restrict__ ",
    group_place="blockIdx.{letter}",
    item_place="threadIdx.{letter}",
    barrier="__syncthreads();",
    int64="longlong",
    vector_load="*(const {kind} *)({address})",
    vector_store="*({kind} *)({address}) = {value};",
    splat="make_{kind}({values})",
    word="*(const int32_t *)({address})",
    product="__{letter}mul_rn({a}, {b})",
    separate_products="",
    unroll="#pragma unroll",
    math_suffix="f",
    bodies={
        "dot4_s8": "  return __dp4a(a, b, sum);",
        "clz32": "  return __clz((int32_t)x);",
        "bits_of_float": "  return __float_as_uint(x);",
        "float_of_bits": "  return __uint_as_float(bits);",
    },
    prelude="cuda_prelude.h",
    doubles="",
    shares_prelude=True,
)
DIALECTS: Registry[Dialect] = Registry("language of devices")
for _dialect in (_OPENCL, _CUDA):
    DIALECTS.add(_dialect.name, _dialect)
