"""OpenCL C 1.2."""

from __future__ import annotations

from mlfc.codegen.dialect import Dialect

_NAMES = {
    "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar", "uint16": "ushort",
    "uint32": "uint", "uint64": "ulong", "float32": "float", "float64": "double",
}  # fmt: skip

_DOT4 = """\
/* sum + the sum of the products of the signed bytes of two words */
static inline int32_t mlf_dot4_s8(int32_t sum, int32_t a, int32_t b) {
  const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return sum + ((products.x + products.y) + (products.z + products.w));
}"""

_CLZ = """\
static inline int32_t mlf_clz32(uint32_t x) {
  return (int32_t)clz(x);
}"""


_BITS_OF_FLOAT = """\
static inline uint32_t mlf_bits_of_float(float x) {
  return as_uint(x);
}"""

_FLOAT_OF_BITS = """\
static inline float mlf_float_of_bits(uint32_t bits) {
  return as_float(bits);
}"""


def _kernel_head(name: str, parameters: str, block: tuple[int, int, int]) -> str:
    x, y, z = block
    return f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}({parameters})"


def _prelude(dtypes: frozenset[str]) -> list[str]:
    lines = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if "float64" in dtypes else []
    lines += [f"typedef {name} {kind}_t;" for kind, name in _NAMES.items() if not kind.startswith("float")]
    return [
        *lines,
        "#define INT32_MIN (-2147483647 - 1)",
        "#define INT32_MAX 2147483647",
        "#define INT64_MIN (-9223372036854775807L - 1)",
        "#define INT64_C(x) x##L",
        "#define UINT32_C(x) x##U",
        "#define UINT64_C(x) x##UL",
    ]


def _vector_type(element: str, lanes: int) -> str:
    return f"{'uchar' if element == 'bool' else _NAMES.get(element, 'ushort')}{lanes}"


def _lanes(kind: str) -> str:
    return kind.lstrip("abcdefghijklmnopqrstuvwxyz")


OPENCL = Dialect(
    "opencl",
    kernel_head=_kernel_head,
    parameter_space="__global ",
    shared_space="__local ",
    private_space="",
    restrict="restrict ",
    group_place=lambda axis: f"get_group_id({axis})",
    item_place=lambda axis: f"get_local_id({axis})",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    vector_type=_vector_type,
    vector_load=lambda kind, address: f"vload{_lanes(kind)}(0, {address})",
    vector_store=lambda kind, address, value: f"vstore{_lanes(kind)}({value}, 0, {address});",
    splat=lambda kind, _, value: f"({kind})({value})",
    word=lambda address: f"as_int(vload4(0, {address}))",
    product=None,
    separate_products="#pragma OPENCL FP_CONTRACT OFF",
    unroll="",  # GPUs' compilers need no telling, and for processors it costs the vectors across work-items
    math_suffix="",
    function="static inline",
    helpers={
        "dot4_s8": ((), _DOT4),
        "clz32": ((), _CLZ),
        "bits_of_float": ((), _BITS_OF_FLOAT),
        "float_of_bits": ((), _FLOAT_OF_BITS),
    },
    prelude=_prelude,
    shares_prelude=False,
)
