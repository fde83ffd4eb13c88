"""CUDA C++, as nvcc and NVRTC take it."""

from __future__ import annotations

from math import prod

from mlfc.codegen.dialect import Dialect

_NAMES = {
    "int8": "char", "int16": "short", "int32": "int", "int64": "longlong", "uint8": "uchar", "uint16": "ushort",
    "uint32": "uint", "uint64": "ulonglong", "float32": "float", "float64": "double",
}  # fmt: skip

_DOT4 = """\
/* sum + the sum of the products of the signed bytes of two words */
static inline int32_t mlf_dot4_s8(int32_t sum, int32_t a, int32_t b) {
  return __dp4a(a, b, sum);
}"""

_CLZ = """\
static inline int32_t mlf_clz32(uint32_t x) {
  return __clz((int32_t)x);
}"""

_BITS_OF_FLOAT = """\
static inline uint32_t mlf_bits_of_float(float x) {
  return __float_as_uint(x);
}"""

_FLOAT_OF_BITS = """\
static inline float mlf_float_of_bits(uint32_t bits) {
  return __uint_as_float(bits);
}"""


def _kernel_head(name: str, parameters: str, block: tuple[int, int, int]) -> str:
    return f'extern "C" __global__ void __launch_bounds__({prod(block)})\n{name}({parameters})'


def _prelude(_: frozenset[str]) -> list[str]:
    return [
        "#ifdef __CUDACC_RTC__",
        "typedef signed char int8_t;",
        "typedef unsigned char uint8_t;",
        "typedef short int16_t;",
        "typedef unsigned short uint16_t;",
        "typedef int int32_t;",
        "typedef unsigned int uint32_t;",
        "typedef long long int64_t;",
        "typedef unsigned long long uint64_t;",
        "#define INT32_MIN (-2147483647 - 1)",
        "#define INT32_MAX 2147483647",
        "#define INT64_MIN (-9223372036854775807LL - 1)",
        "#define INT64_C(x) x##LL",
        "#define UINT32_C(x) x##U",
        "#define UINT64_C(x) x##ULL",
        "#define INFINITY __uint_as_float(0x7f800000U)",
        "#define NAN __uint_as_float(0x7fffffffU)",
        "#else",
        "#include <math.h>",
        "#include <stdint.h>",
        "#endif",
    ]


def _vector_type(element: str, lanes: int) -> str:
    return f"{'uchar' if element == 'bool' else _NAMES.get(element, 'ushort')}{lanes}"


def _product(dtype: str, a: str, b: str) -> str:
    return f"__{'d' if dtype == 'float64' else 'f'}mul_rn({a}, {b})"


CUDA = Dialect(
    "cuda",
    kernel_head=_kernel_head,
    parameter_space="",
    shared_space="__shared__ __align__(16) ",
    private_space="__align__(16) ",
    restrict="__restrict__ ",
    group_place=lambda axis: f"blockIdx.{'xyz'[axis]}",
    item_place=lambda axis: f"threadIdx.{'xyz'[axis]}",
    barrier="__syncthreads();",
    vector_type=_vector_type,
    vector_load=lambda kind, address: f"*(const {kind} *)({address})",
    vector_store=lambda kind, address, value: f"*({kind} *)({address}) = {value};",
    splat=lambda kind, lanes, value: f"make_{kind}({', '.join([value] * lanes)})",
    word=lambda address: f"*(const int32_t *)({address})",
    product=_product,
    separate_products="",
    unroll="#pragma unroll",
    math_suffix="f",
    function="static __device__ __forceinline__",
    helpers={
        "dot4_s8": ((), _DOT4),
        "clz32": ((), _CLZ),
        "bits_of_float": ((), _BITS_OF_FLOAT),
        "float_of_bits": ((), _FLOAT_OF_BITS),
    },
    prelude=_prelude,
    shares_prelude=True,
)
