"""The C only assumes that int has 16 bits: clang's code for an AVR shows the type of each expression."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.codegen.prelude import helper_source
from mlfc.errors import UnsupportedError
from mlfc.relay import ir
from mlfc.support.content import chunks_of
from mlfc.tir.intrinsics import INTRINSICS
from tests.conftest import need
from tests.native.test_operators_in_c import FAMILIES
from tests.native.test_operators_in_c import module_of as module_of_cases
from tests.tflite_cases import float_cases, quantized_cases
from tests.unit.test_tflite_ops import model_of

_AVR = ("--target=avr", "-mmcu=atmega2560", "-isystem", "/usr/lib/avr/include", "-std=c99")
_WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
# unoptimized, with the source line of each instruction
_AS_WRITTEN = ("-O0", "-gline-tables-only", "-fno-discard-value-names", "-S", "-emit-llvm", "-o", "-")
_LOCATION = re.compile(r"(!\d+) = !DILocation\(line: (\d+)")
_DEFINED = re.compile(r"\s+(%\S+) = (.*)")
_SIGNED = re.compile(r"(add|sub|mul) (?:nuw )?nsw i16 (\S+), ([^\s,]+)")
_WIDENED = re.compile(r"(sext|zext) i8 ")
_DOUBLES = re.compile(r"typedef char mlf_double_has_64_bits.*\n")
INT = range(-(2**15), 2**15)
# avr-libc lacks some of C99's math functions; the linker reports them to their users
_MISSING = "".join(f"float {name}(float);\n" for name in ("erff", "log2f", "asinhf", "acoshf", "atanhf"))


def overflows(source: Path, *options: str) -> list[str]:
    """Return the lines of a C file with computations in int that 16 bits may not represent."""
    command = [need("clang", "clang"), *_AVR, *_WARNINGS, *options, *_AS_WRITTEN, str(source)]
    printed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    places = {match[1]: int(match[2]) for line in lines if (match := _LOCATION.match(line))}
    text = source.read_text().splitlines()
    return [text[places[line.rpartition("!dbg ")[2]] - 1].strip() for line in _too_wide(lines)]


def _too_wide(lines: list[str]) -> Iterator[str]:
    values: dict[str, str] = {}

    def ends(operand: str) -> tuple[int, int]:
        """Return the range of an operand: of a widened byte, a constant, or any int."""
        if re.fullmatch(r"-?\d+", operand):
            return int(operand), int(operand)
        widened = _WIDENED.match(values.get(operand, ""))
        if widened is None:
            return INT[0], INT[-1]
        return (-128, 127) if widened[1] == "sext" else (0, 255)

    for line in lines:
        if line.startswith("define"):
            values = {}
        defined = _DEFINED.match(line)
        if defined is None:
            continue
        values[defined[1]] = defined[2]
        found = _SIGNED.match(defined[2])
        if found is None:
            continue
        low, high = ends(found[2]), ends(found[3])
        compute = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}[found[1]]
        if any(compute(a, b) not in INT for a in low for b in high):
            yield line


def written(module: ir.IRModule, params: dict[str, np.ndarray], target: str, folder: Path) -> Path:
    """Write the C of a module, and return the file with its operators."""
    code = mlfc.build(module, target, params, module_name="m").code.files
    for path, data in code.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"".join(chunks_of(data)))
    source = folder / "src" / "m_lib1.c"
    source.write_text(re.sub(r"(#include <stdint.h>\n)", rf"\1{_MISSING}", source.read_text(), count=1))
    return source


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_compute_in_types_of_known_width(family: str, tmp_path: Path) -> None:
    module, _ = module_of_cases(FAMILIES[family]())
    source = written(module, {}, "c -mcpu=cortex-m0", tmp_path)
    # this check would reject the file on an AVR
    source.write_text(_DOUBLES.sub("", source.read_text()))
    assert overflows(source, f"-I{tmp_path}/include") == []


# the Cortex-M4 code without intrinsics is plain C, too
@pytest.mark.parametrize(
    ("cases", "target"),
    [(quantized_cases, "avr"), (float_cases, "avr"), (quantized_cases, "cortex-m4")],
    ids=["quantized", "float", "packed"],
)
def test_tflite_operators_compute_in_types_of_known_width(cases, target: str, tmp_path: Path) -> None:
    module, params = mlfc.import_model(model_of(cases(7)))
    source = written(module, params, f"c -mcpu={target}", tmp_path)
    assert overflows(source, f"-I{tmp_path}/include") == []


def test_narrow_arithmetic_is_done_in_types_of_known_width(tmp_path: Path) -> None:
    variables, bodies = [], []
    for dtype in ("int8", "uint8", "int16", "uint16"):
        a, b = (ir.Var(f"{dtype}_{name}", ir.TensorType((40,), dtype)) for name in "ab")
        variables += [a, b]
        bodies += [ir.call(name, [a, b]) for name in ("add", "subtract", "multiply")]
        bodies += [ir.call(name, [a]) for name in ("negative", "abs")] if dtype.startswith("int") else []
        bodies.append(ir.call("power", [a, ir.const(np.asarray(3, dtype))]))
    names = tuple(f"y{index}" for index in range(len(bodies)))
    module = ir.IRModule({"main": ir.Function(tuple(variables), ir.Tuple(tuple(bodies)))}, names)
    assert overflows(written(module, {}, "c -mcpu=avr", tmp_path), f"-I{tmp_path}/include") == []


_WORDS = ("word:int8", "word:uint8")
_BODIES = [body.key for name in INTRINSICS for dtype, body in INTRINSICS.get(name).bodies.items() if dtype != "float64"]


def texts(key: str) -> list[str]:
    """Return the text of a helper, preceded by those of the helpers that it calls."""
    used, text = helper_source(key)
    return [*(other for name in used for other in texts(name)), text]


def test_helpers_compute_in_types_of_known_width(tmp_path: Path) -> None:
    source = tmp_path / "helpers.c"
    head = "#include <stdint.h>\n#include <string.h>\n#define MLF_DSP 0\n#define MLF_LITTLE_ENDIAN 0\n"
    functions = "\n".join(dict.fromkeys(text for key in (*_WORDS, *_BODIES) for text in texts(key)))
    # clang omits inline functions that are not called
    functions = functions.replace("static inline", "")
    source.write_text(head + re.sub(r"#if .*\n  return .*__.*\n#else", "#if 1", functions) + "\n")
    assert "__builtin" not in source.read_text()
    assert overflows(source, "-Wno-missing-prototypes") == []


def test_no_code_computes_with_doubles_that_are_floats(tmp_path: Path) -> None:
    x = ir.Var("x", ir.TensorType((4,), "float64"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call("exp", [x]))}, ("y",))
    with pytest.raises(UnsupportedError, match="float64, but double has 32 bits on the target"):
        mlfc.build(module, "c -mcpu=avr")
    command = [need("clang", "clang"), *_AVR, f"-I{tmp_path}/include", "-fsyntax-only"]
    source = written(module, {}, "c", tmp_path)
    refused = subprocess.run([*command, str(source)], check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "mlf_double_has_64_bits" in refused.stderr


def test_the_check_sees_products_and_sums_that_overflow(tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    wrong = ["return (uint8_t)(a * a);", "return (uint8_t)((int16_t)b + (int16_t)b);", "return (uint8_t)(b * 2);"]
    functions = [
        f"uint8_t f{index}(uint8_t a, int16_t b) {{\n  (void)a, (void)b;\n  {line}\n}}"
        for index, line in enumerate(wrong)
    ]
    right = "int32_t right(uint8_t a, int8_t b, int16_t c) {\n  return a + b + (int32_t)c * c + b * b;\n}"
    source.write_text("\n".join(["#include <stdint.h>", *functions, right, ""]))
    assert overflows(source) == wrong
