"""Functions on runs of bytes (`tir.block_intrinsics`), in the form of MVE's instructions and portably.

The loops over filters are written in assembler: sums of ``vmladava`` lie in even registers only, all of which are
needed, and compilers that place them themselves move them about more than they multiply. They are whole functions
without a prologue of the compiler's, so they do not depend on its choices, and kernels share them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.tir import block_intrinsics


def _assembler(lines: Sequence[str]) -> str:
    return "\n".join(f'    "{line}\\n"' for line in lines)


def _products(kind: str, step: int, pairs: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return loads of weights, each with the multiplications of it: `pairs` names (sum, row) of each filter."""
    load = "vldrb.8" if kind == "s8" else "vldrb.s16"
    lines = []
    for index, filters in enumerate(pairs):
        weights = f"q{2 + index % 2}"
        lines.append(f"{load} {weights}, [r1], #{step}")
        lines += [f"vmladava.{kind} {total}, {row}, {weights}" for total, row in filters]
    return lines


_ONE = [[("r0", "q0")], [("r2", "q0")], [("r4", "q0")], [("r6", "q0")]]
_TWO = [
    [("r0", "q0"), ("r8", "q1")], [("r2", "q0"), ("r10", "q1")], [("r4", "q0"), ("r12", "q1")],
    [("r6", "q0"), ("lr", "q1")],
]  # fmt: skip

_MATVEC = [
    "push {r4, r5, r6, r7, r8, r9, r10, r11, lr}",
    "ldrd r8, r11, [sp, #36]",  # chunks, fours
    "ldr r10, [sp, #44]",  # half a chunk
    "mov r9, r0",
    "mov r7, r1",
    "mov r1, r3",
    "mov r5, r2",
    "1: ldmia r7!, {r0, r2, r4, r6}",
    "mov r3, r5",
    "wls lr, r8, 3f",
    "2: vldrb.8 q0, [r3], #16",
    *_products("s8", 16, _ONE),
    "le lr, 2b",
    "3: cmp r10, #0",
    "beq 4f",
    "vldrb.s16 q0, [r3]",
    *_products("s16", 8, _ONE),
    "4: vmov q0[2], q0[0], r0, r4",
    "vmov q0[3], q0[1], r2, r6",
    "vstrw.32 q0, [r9], #16",
    "subs r11, r11, #1",
    "bne 1b",
    "pop {r4, r5, r6, r7, r8, r9, r10, r11, pc}",
]

_MATVEC_X2 = [
    "push {r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, lr}",
    "mov r9, r0",
    "ldr r1, [sp, #52]",  # weights
    "ldr r11, [sp, #60]",  # fours
    "1: ldr r7, [sp, #4]",
    "ldmia r7!, {r0, r2, r4, r6}",
    "str r7, [sp, #4]",
    "mov r8, r0",
    "mov r10, r2",
    "mov r12, r4",
    "mov lr, r6",
    "ldrd r3, r5, [sp, #8]",
    "ldr r7, [sp, #56]",  # chunks
    "cbz r7, 3f",
    "2: vldrb.8 q0, [r3], #16",
    "vldrb.8 q1, [r5], #16",
    *_products("s8", 16, _TWO),
    "subs r7, r7, #1",
    "bne 2b",
    "3: ldr r7, [sp, #64]",  # half a chunk
    "cbz r7, 4f",
    "vldrb.s16 q0, [r3]",
    "vldrb.s16 q1, [r5]",
    *_products("s16", 8, _TWO),
    "4: vmov q0[2], q0[0], r0, r4",
    "vmov q0[3], q0[1], r2, r6",
    "vmov q1[2], q1[0], r8, r12",
    "vmov q1[3], q1[1], r10, lr",
    "vstrw.32 q0, [r9], #16",
    "vstrw.32 q1, [r9], #16",
    "subs r11, r11, #1",
    "bne 1b",
    "add sp, sp, #16",
    "pop {r4, r5, r6, r7, r8, r9, r10, r11, pc}",
]

_ONE_TAP = [
    "vldrb.8 q4, [%[values]], #16",
    "vldrb.8 q5, [%[weights]], #16",
    "vmullb.s8 q6, q4, q5",
    "vmullt.s8 q4, q4, q5",
]
# the sum of two products fits into 16 bits, as no weight is -128; there are no more registers, so values are read twice
_SECOND_TAP = [
    "vldrb.8 q5, [%[values]]",
    "vldrb.8 q7, [%[weights]], #16",
    "vmullb.s8 q5, q5, q7",
    "vadd.i16 q6, q6, q5",
    "vldrb.8 q5, [%[values]], #16",
    "vmullt.s8 q5, q5, q7",
    "vadd.i16 q4, q4, q5",
]
_ADD_TAPS = [
    "vmovlb.s16 q5, q6",
    "vadd.i32 q0, q0, q5",
    "vmovlt.s16 q6, q6",
    "vadd.i32 q2, q2, q6",
    "vmovlb.s16 q5, q4",
    "vadd.i32 q1, q1, q5",
    "vmovlt.s16 q4, q4",
    "vadd.i32 q3, q3, q4",
]
# lane i of register j is channel 4 * i + j: so products of even and odd bytes need not be put in order
_START = [f"vld4{part}.32 {{q0, q1, q2, q3}}, [%[start]]" for part in range(4)]
_SUMS = [f"vst4{part}.32 {{q0, q1, q2, q3}}, [%[sums]]" for part in range(4)]

_TAPS = [*_START, "dls lr, %[taps]", "1:", *_ONE_TAP, *_ADD_TAPS, "le lr, 1b", *_SUMS]
_PAIRED_TAPS = [
    *_START,
    "wls lr, %[pairs], 2f",
    "1:",
    *_ONE_TAP,
    *_SECOND_TAP,
    *_ADD_TAPS,
    "le lr, 1b",
    "2: cbz %[odd], 3f",
    *_ONE_TAP,
    *_ADD_TAPS,
    "3:",
    *_SUMS,
]


_ASSEMBLER = """\
#if defined(__ARM_FEATURE_MVE)
/* a function in assembler alone: compilers must not conclude from its body what it leaves alone */
#if defined(__clang__)
#define MLF_ASSEMBLER __attribute__((naked, noinline))
#else
#define MLF_ASSEMBLER __attribute__((naked, noipa))
#endif
#endif"""


def _matvec(count: int, lines: Sequence[str]) -> str:
    """Return the function of ``dots`` of `count` rows."""
    name = f"mlf_dots{count}"
    rows = ["x", "y"][:count]
    typed = [
        "int32_t *sums", "const int32_t *start", *(f"const int8_t *{row}" for row in rows), "const int8_t *weights",
        "int32_t chunks", "int32_t fours", "int32_t half",
    ]  # fmt: skip
    unused = [f"{param} __attribute__((unused))" for param in typed]
    sums = "".join(
        f"""
      for (int32_t i = 0; i < 4; ++i, ++sums) {{
        const int8_t *w = weights + 16 * i;
        int32_t sum = start[i];
        for (int32_t k = 0; k < size; ++k) {{
          sum += {row}[k] * w[k < 16 * chunks ? k % 16 + k / 16 * 64 : k + 48 * chunks - 8 * i];
        }}
        *sums = sum;
      }}"""
        for row in rows
    )
    return f"""\
/* for each four filters, for each row: start + sums of products; weights lie as chunks of 16 a filter, and a half */
#if defined(__ARM_FEATURE_MVE)
MLF_ASSEMBLER static void {name}(
    {("," + chr(10) + "    ").join(unused)}) {{
  __asm__ volatile(
{_assembler(lines)}
  );
}}
#else
static inline void {name}({", ".join(typed)}) {{
  const int32_t size = 16 * chunks + 8 * half;
  for (int32_t four = 0; four < fours; ++four, start += 4, weights += 4 * size) {{{sums}
  }}
}}
#endif"""


def _depthwise_mac(name: str, lines: Sequence[str], counts: str) -> str:
    """Return the function of ``taps`` or ``paired_taps``; `counts` are the assembler's operands to count by."""
    return f"""\
/* start + sums over taps of products, for each of 16 channels */
static inline void mlf_{name}(
    int32_t *sums, const int32_t *start, const int8_t *values, const int8_t *weights, int32_t taps) {{
#if defined(__ARM_FEATURE_MVE)
  __asm__ volatile(
{_assembler(lines)}
    : [values] "+r"(values), [weights] "+r"(weights)
    : [sums] "r"(sums), [start] "r"(start), {counts}
    : "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "lr", "memory");
#else
  for (int32_t channel = 0; channel < 16; ++channel) {{
    int32_t sum = start[channel];
    for (int32_t tap = 0; tap < taps; ++tap) {{
      sum += values[16 * tap + channel] * weights[16 * tap + channel];
    }}
    sums[channel] = sum;
  }}
#endif
}}"""


_COPY = """\
static inline void mlf_copy_run(int8_t *restrict to, const int8_t *restrict from, int32_t size) {
#if defined(__ARM_FEATURE_MVE)
  int32_t done = 0;
  for (; done + 16 <= size; done += 16) {
    vstrbq_s8(to + done, vldrbq_s8(from + done));
  }
  if (done < size) {
    const mve_pred16_t rest = vctp8q((uint32_t)(size - done));
    vstrbq_p_s8(to + done, vldrbq_z_s8(from + done, rest), rest);
  }
#else
  memcpy(to, from, (size_t)size);
#endif
}"""

_FILL = """\
static inline void mlf_fill_run(int8_t *to, int8_t value, int32_t size) {
#if defined(__ARM_FEATURE_MVE)
  const int8x16_t values = vdupq_n_s8(value);
  int32_t done = 0;
  for (; done + 16 <= size; done += 16) {
    vstrbq_s8(to + done, values);
  }
  if (done < size) {
    vstrbq_p_s8(to + done, values, vctp8q((uint32_t)(size - done)));
  }
#else
  memset(to, value, (size_t)size);
#endif
}"""

BLOCK_HELPERS: dict[str, tuple[tuple[str, ...], str]] = {
    "assembler": ((), _ASSEMBLER),
    "dots1": (("assembler",), _matvec(1, _MATVEC)),
    "dots2": (("assembler",), _matvec(2, _MATVEC_X2)),
    "taps": ((), _depthwise_mac("taps", _TAPS, '[taps] "r"(taps)')),
    "paired_taps": ((), _depthwise_mac("paired_taps", _PAIRED_TAPS, '[pairs] "r"(taps / 2), [odd] "l"(taps % 2)')),
    "copy_run": ((), _COPY),
    "fill_run": ((), _FILL),
}
"""The keys that each helper calls, and its text."""


BLOCK_INTRINSICS = {"run": "copy_run", **{name: name for name in block_intrinsics.NAMES if name != "run"}}
"""The helper of each intrinsic; after the addresses it takes the numbers of `block_intrinsics.counts`."""
