"""Operators that users declare in C, as compositions and as loops: on the host, in libraries, archives, firmware."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc import operators, registry
from mlfc.errors import MlfcError, OptionError, RunError, TextError
from mlfc.frontend.onnx.custom import CUSTOM
from mlfc.registry import recorded, remove
from mlfc.relay.text import to_text
from tests.emulator.conftest import need_board
from tests.tutorial import PAGES, blocks, run_page
from tests.unit.test_cli import mlfc as run_mlfc
from tests.unit.test_cli import succeeded

pytestmark = pytest.mark.usefixtures("quick_builds", "forgotten")

PAGE = "../how-to/own-operators.md"
FILES = {file: text for _, file, text in blocks(PAGE) if file}
FORMS = ("my_ops.py", "composed.py", "looped.py")
TITLE = "com.example.FancyAct"
X = np.random.default_rng(7).standard_normal((1, 3, 4, 4)).astype(np.float32)


@pytest.fixture(name="forgotten")
def _forgotten() -> Iterator[list[Any]]:
    with recorded() as entries:
        yield entries
    remove(entries)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with the files of the page and a model that uses the operator twice."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    weights = np.random.default_rng(8).standard_normal((2, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("FancyAct", ["a"], ["b"], "act", domain="com.example", alpha=0.5),
        helper.make_node("Sub", ["a", "b"], ["c"], "sub"),
        helper.make_node("FancyAct", ["c"], ["y"], "last", domain="com.example"),
    ]
    save("conv", nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": weights})
    return tmp_path


def save(name: str, nodes: list[Any], inputs: Any, outputs: Any, weights: Any = (), functions: Any = ()) -> None:
    given, made = ([helper.make_tensor_value_info(*item[:1], 1, item[1]) for item in each.items()]
                   for each in (inputs, outputs))  # fmt: skip
    constants = [numpy_helper.from_array(array, title) for title, array in dict(weights).items()]
    graph = helper.make_graph(nodes, name, given, made, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions), f"{name}.onnx")


def expected() -> Any:
    """Return the output of the model for X."""
    weights = numpy_helper.to_array(onnx.load("conv.onnx").graph.initializer[0])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(X[0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    conv = np.einsum("cyxhw,ochw->oyx", windows, weights)[None]
    left = conv - conv * np.tanh(0.5 * conv)
    return left * np.tanh(left)


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    need_board("mps2-an386")
    steps = run_page(PAGE, tmp_path, ".")
    assert [step.printed for step in steps if step.expected] == [step.expected for step in steps if step.expected]
    assert re.search(r"^ *y .* within tolerance$", steps[-1].printed, re.MULTILINE)
    assert list((tmp_path / "firmware").rglob("*FancyAct*/*.c"))
    (shown,) = re.findall(r"^    (error: .*)$", (PAGES / PAGE).read_text(), re.MULTILINE)
    for key in list(CUSTOM):
        remove([(CUSTOM, key)])
    assert run_mlfc("check", "fancy.onnx", cwd=tmp_path).stderr.strip() == shown


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_each_form_computes_the_same(folder: Path, form: str, target: str) -> None:
    assert mlfc.check("conv.onnx", operators=[form]) == []
    model = mlfc.compile("conv.onnx", target, operators=[form])
    transposes = [call.kernel.name for call in model.factory.program.calls if "transpose" in call.kernel.name]
    assert len(transposes) <= 2  # of the input and the output
    if form == "my_ops.py":
        model.export_library("conv.so")
        np.testing.assert_allclose(mlfc.load("conv.so").run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_allclose(model.run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-5)


def test_verify_compares_with_the_reference(folder: Path) -> None:
    found = mlfc.verify("conv.onnx", operators=["my_ops.py"], layers=True, samples=1)
    assert found.is_within
    assert {"a", "b", "c", "y"} == {item.tensor for item in found.layers}


INSIDE = """
<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
inside (float[3, 4] x, bool flag, int64 n, float scale) => (float[4] y, float[m, 4] rows, float[3, 4] z)
<float[4] zero = {0, 0, 0, 0}> {
  start = If (flag) <
    then_branch = act () => (float[4] a) { b = ReduceSum <keepdims = 0> (x, axes) a = com.example.FancyAct (b) },
    else_branch = none () => (float[4] c) { c = Identity (zero) }>
  y, rows = Loop (n, "", start) <body = step (int64 i, bool go, float[4] v) => (bool on, float[4] w, float[4] row) {
    on = Identity (go)
    d = com.example.FancyAct <alpha = 0.5> (v)
    w = Mul (d, scale)
    row = Identity (w)
  }>
  z = Scan <num_scan_inputs = 1, body = each (float[4] s) => (float[4] t) { t = com.example.FancyAct (s) }> (x)
}
"""


def test_verify_compares_operators_inside_branches_and_loops(folder: Path) -> None:
    text = INSIDE.replace("zero = {0, 0, 0, 0}", "zero = {0, 0, 0, 0}, int64[1] axes = {0}")
    onnx.save(onnx.parser.parse_model(text), "inside.onnx")
    values = {"x": X[0, :, 0], "flag": np.array(True), "n": np.array(3), "scale": np.float32(1.5)}
    np.savez("inputs.npz", **values)
    printed = succeeded("verify", "inside.onnx", "--op", "my_ops.py", "--inputs", "inputs.npz", cwd=folder)
    assert "outputs against ONNX Runtime and NumPy, 1 set of inputs" in printed
    (folder / "my_ops.py").write_text(FILES["my_ops.py"].replace("alpha * x)", "alpha + x)"))
    found = mlfc.verify("inside.onnx", operators=["my_ops.py"], inputs="inputs.npz")
    assert (found.reference, [item.is_within for item in found.outputs]) == ("ONNX Runtime and NumPy", [False] * 3)


def test_an_archive_is_built_elsewhere_and_compiled_again_with_the_declaration(folder: Path) -> None:
    succeeded("compile", "conv.onnx", "--op", "my_ops.py", "-o", "conv.tar", cwd=folder)
    remove([(registry_, key) for registry_ in registry._extensible for key in registry_ if "FancyAct" in key])
    Path("fancy_act.c").rename("elsewhere.c")
    assert mlfc.archive.validate("conv.tar") == []
    np.testing.assert_allclose(mlfc.load("conv.tar").run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-5)
    assert "option --op is not needed: a compiled model contains" in run_mlfc(
        "run", "conv.tar", "--op", "my_ops.py", cwd=folder
    ).stderr  # fmt: skip
    with pytest.raises(TextError, match="--op FILE"):
        mlfc.rebuild("conv.tar")
    Path("elsewhere.c").rename("fancy_act.c")
    Path("my_ops.py").write_text(FILES["my_ops.py"] + "\n")
    assert "conv" in succeeded("compile", "conv.tar", "--op", "my_ops.py", "-o", "again.tar", cwd=folder)
    np.testing.assert_allclose(mlfc.load("again.tar").run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-5)


SPLIT = """\
#include <stddef.h>
#include <stdint.h>
/* int nothing(int x) { */
int failed(int x) { return x; }
int split_float32(const float x[], const float *bias, float *restrict low, float *high, void *scratch, int64_t rows,
                  int64_t count)
{
  float *copy = scratch;
  if (count != 4 * rows) { return failed(1); }
  for (int64_t i = 0; i < count; ++i) { copy[i] = x[i] + (bias != NULL ? bias[0] : 0.0f); }
  for (int64_t i = 0; i < count; ++i) { low[i] = copy[i] < 0 ? copy[i] : 0; high[i] = copy[i] > 0 ? copy[i] : 0; }
  return failed(0);
}
"""


def test_c_includes_files_beside_it(folder: Path) -> None:
    text = (folder / "fancy_act.c").read_text().replace("#include <math.h>\n", '#include "parts/scale.h"\n')
    (folder / "parts").mkdir()
    (folder / "parts/scale.h").write_text('#pragma once\n#include "one.h"\n#include "one.h"\n')
    (folder / "parts/one.h").write_text("#include <math.h>\nfloat scaled(float x)\n{\n  return 1.0f * x;\n}\n")
    (folder / "fancy_act.c").write_text(text.replace("tanhf(alpha * x[i])", "tanhf(scaled(alpha * x[i]))"))
    model = mlfc.compile("conv.onnx", operators=["my_ops.py"])
    np.testing.assert_allclose(model.run({"x": X})["y"], expected(), rtol=1e-5, atol=1e-6)
    (folder / "parts/one.h").write_text((folder / "parts/one.h").read_text().replace("1.0f", "0.0f"))
    assert not mlfc.compile("conv.onnx", operators=["my_ops.py"]).run({"x": X})["y"].any()


def test_c_has_scratch_several_results_and_dynamic_dimensions(folder: Path) -> None:
    Path("split.c").write_text(SPLIT)

    def reference(x: Any, bias: Any = 0.0) -> Any:
        return np.minimum(x + bias, 0), np.maximum(x + bias, 0)

    operators.declare(
        "Split", domain="com.example", infer=lambda x, bias=None: (x, x), reference=reference,
        source=operators.CSource("split.c", {"float32": "split_float32"}, scratch=lambda x, *_: 4 * x.size,
                                 arguments=lambda x, *_: (x.shape[0], x.size)),
    )  # fmt: skip
    nodes = [helper.make_node("Split", ["x", "w"], ["a", "b"], "one", domain="com.example"),
             helper.make_node("Split", ["b"], ["", "d"], "two", domain="com.example"),
             helper.make_node("Sub", ["d", "a"], ["y"])]  # fmt: skip
    save("split", nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, {"w": np.array([0.5], np.float32)})
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    dynamic = mlfc.compile("split.onnx", dynamic=True)
    np.testing.assert_array_equal(dynamic.run({"x": x})["y"], np.abs(x + 0.5))
    assert dynamic.verify(samples=1).is_within
    calls = [call.kernel.name for call in dynamic.factory.program.calls]
    assert sum("Split" in name for name in calls) == 2  # once for each node
    factories = [mlfc.compile("split.onnx", "c", shapes={"x": (3, 4)}, module_name=name).factory for name in "uv"]
    mlfc.export_model_library_format(factories, "both.tar")
    np.testing.assert_array_equal(mlfc.load("both.tar", module="v").run({"x": x})["y"], np.abs(x + 0.5))


SIGNS = """\
#include <stdint.h>
int signs(const float *x, uint8_t *negative, int64_t *place, float *half, int8_t *sign, int64_t count)
{
  for (int64_t i = 0; i < count; ++i) {
    negative[i] = x[i] < 0; place[i] = i; half[i] = x[i] / 2; sign[i] = x[i] < 0 ? -1 : 1;
  }
  return 0;
}
"""


@pytest.mark.parametrize("shape", [(5,), ("n",)])
def test_results_of_several_dtypes_are_computed_at_once(folder: Path, shape: tuple[Any, ...]) -> None:
    Path("signs.c").write_text(SIGNS)
    operators.declare(
        "Signs", domain="com.example", source=operators.CSource("signs.c", {"float32": "signs"}), elementwise=True,
        infer=lambda x: [operators.TensorType(x.shape, dtype) for dtype in ("bool", "int64", "float32", "int8")],
        reference=lambda x: (x < 0, np.arange(x.size), x / 2, np.where(x < 0, -1, 1).astype(np.int8)),
    )  # fmt: skip
    save("signs", [helper.make_node("Signs", ["x"], ["a", "b", "c", "d"], domain="com.example")], {"x": shape},
         dict.fromkeys("abcd", shape))  # fmt: skip
    model = onnx.load("signs.onnx")
    for info, kind in zip(model.graph.output, (9, 7, 1, 3), strict=True):
        info.type.tensor_type.elem_type = kind
    compiled = mlfc.compile(model, "c", dynamic=shape == ("n",))
    assert sum("Signs" in call.kernel.name for call in compiled.factory.program.calls) == 1
    x = np.array([3, -1, 0, -7, 2], np.float32)
    found = compiled.run({"x": x})
    for name, wanted in zip("abcd", (x < 0, np.arange(5), x / 2, np.sign(x + 0.5).astype(np.int8)), strict=True):
        assert (found[name].dtype, found[name].tolist()) == (wanted.dtype, wanted.tolist())


SHARED_FILE = """\
#include <stdint.h>
#define EACH for (int i = 0; i < n; ++i)
int half_int8(const int8_t *x, int8_t *y, int64_t n) { EACH { y[i] = (int8_t)(x[i] / 2); } return 0; }
int half_float32(const float *x, float *y, int64_t n) { EACH { y[i] = x[i] / 2; } return 0; }
int checked_float32(const float *x, float *y, int64_t n) { EACH { y[i] = x[i]; } return x[0] > 4; }
"""


def test_dtypes_select_the_function_and_its_result_is_checked(folder: Path) -> None:
    Path("shared.c").write_text(SHARED_FILE)
    names = {"int8": "half_int8", "float32": "half_float32"}
    for name, known in (("Half", names), ("Checked", {"float32": "checked_float32"})):
        source = operators.CSource("shared.c", known)
        operators.declare(name, domain="com.example", infer=lambda x: x, source=source)
    nodes = [helper.make_node("Half", ["x"], ["a"], domain="com.example"), helper.make_node("Cast", ["a"], ["b"], to=1),
             helper.make_node("Half", ["b"], ["c"], domain="com.example"),
             helper.make_node("Checked", ["c"], ["y"], domain="com.example")]  # fmt: skip
    save("halves", nodes, {"x": [4]}, {"y": [4]})
    model = onnx.load("halves.onnx")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    compiled = mlfc.compile(model, "c", executor="graph")
    x = np.array([9, -9, 4, 100], np.int8)
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], [2, -2, 1, 25])
    with pytest.raises(RunError):
        compiled.run({"x": x[::-1].copy()})


def test_a_declaration_replaces_a_function_of_the_model(folder: Path) -> None:
    opset = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Add", ["x", "x"], ["y"])]
    function = helper.make_function("com.example", "Twice", ["x"], ["y"], body, opset)
    save("twice", [helper.make_node("Twice", ["x"], ["y"], domain="com.example")], {"x": [4]}, {"y": [4]}, (),
         [function])  # fmt: skip

    def emit(ctx: Any, inputs: Any, _: Any, out: Any) -> None:
        with ctx.loops(out.shape) as at:
            out.store(at, inputs[0].read(at) * 2)

    operators.declare("Twice", domain="com.example", infer=lambda x: x, emit=emit)
    model = mlfc.compile("twice.onnx")
    assert "com.example.Twice" in to_text(model.factory.module)
    assert model.verify(samples=1).is_within  # against the function, which ONNX Runtime runs


def test_models_with_own_operators_are_quantized(folder: Path) -> None:
    pytest.importorskip("onnxruntime.quantization")
    np.savez("calibration.npz", x=np.random.default_rng(9).standard_normal((4, *X.shape)).astype(np.float32))
    printed = succeeded("quantize", "conv.onnx", "--calibrate", "calibration.npz", "--op", "my_ops.py", cwd=folder)
    assert re.search(r"^ +b +act +FancyAct ", printed, re.MULTILINE)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load("conv_int8.onnx").graph.node}
    assert mlfc.verify("conv_int8.onnx", operators=["my_ops.py"], samples=1).is_within


def test_verify_finds_wrong_code_and_asks_for_a_reference(folder: Path) -> None:
    wrong = FILES["my_ops.py"].replace("alpha * x)", "alpha + x)")
    Path("wrong.py").write_text(wrong)
    found = run_mlfc("verify", "conv.onnx", "--op", "wrong.py", "--samples", "1", cwd=folder)
    assert (found.returncode, "DIFFERS" in found.stdout) == (1, True)
    Path("wrong.py").write_text(re.sub(r".*reference.*\n", "", wrong))  # the file is read again
    refused = run_mlfc("verify", "conv.onnx", "--op", "wrong.py", cwd=folder)
    assert refused.returncode == 2
    assert f"the operator {TITLE} has no reference" in refused.stderr
    Path("wrong.py").write_text(wrong.replace("np.tanh", "np.nope"))
    assert "the reference of com.example.FancyAct raises AttributeError" in run_mlfc(
        "verify", "conv.onnx", "--op", "wrong.py", cwd=folder
    ).stderr  # fmt: skip


def test_a_file_adds_a_generator(folder: Path) -> None:
    Path("fast.py").write_text(
        "from mlfc.byoc import GENERATORS, Composite, Generator\n"
        "from mlfc.byoc.pattern import anything, op\n"
        "from mlfc.tir.ir import External\n"
        "text = 'for (int i = 0; i < 32; ++i) { ${output}[i] = ${input0}[i] - ${input1}[i]; }'\n"
        "table = (Composite('sub', op('subtract', anything(), anything())),)\n"
        "GENERATORS.add('fast', Generator('fast', table, lambda part: External('fast', text)))\n"
    )
    succeeded("compile", "conv.onnx", "--op", "my_ops.py", "--op", "fast.py", "--byoc", "fast", cwd=folder)
    assert {"fast", "com_example_FancyAct"} <= {
        Path(name).parent.name for name in mlfc.inspect("conv.tar")["files"] for name in [name["path"]]
    }


def test_installed_packages_add_operators(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "fancy-1.0.dist-info").mkdir()
    (folder / "fancy-1.0.dist-info" / "METADATA").write_text("Name: fancy\nVersion: 1.0\n")
    entries = "[mlfc.operators]\na = broken_operators_of_test\nb = fancy_operators_of_test\n"
    (folder / "fancy-1.0.dist-info" / "entry_points.txt").write_text(entries)
    Path("broken_operators_of_test.py").write_text("1 / 0\n")
    Path("composed.py").rename("fancy_operators_of_test.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_loaded", False)
    with pytest.warns(UserWarning, match="a = broken_operators_of_test fails: division by zero"):
        assert mlfc.check("conv.onnx") == []


DECLARE = "operators.declare('FancyAct', domain='com.example', "
RULE = "attributes={'alpha': 1.0}, infer=lambda x: x, "
C = "source=operators.CSource('fancy_act.c', {'float32': 'fancy_act_float32'})"
COMPOSED = "attributes={'alpha': 1.0}, compose=lambda call, x: "
FAULTS = [
    ("x = (", "op.py:3: expected a Python file: '(' was never closed"),
    ("1 / 0", "op.py:3: the file raises ZeroDivisionError: division by zero"),
    ("x = 1", "op.py: the file declares no operator and no external code generator"),
    ("operators.declare('Relu', compose=lambda call, x: x)", "the operator 'Relu' is supported already"),
    (f"{DECLARE}{COMPOSED}x)\n{DECLARE}{COMPOSED}x)", f"the operator '{TITLE}' is declared twice, first in op.py"),
    (f"{DECLARE}{RULE})", "expected one of compose, element, emit, source, got none"),
    (f"{DECLARE}{C})", "a type rule, infer, is required"),
    (f"{DECLARE}attributes={{'a': None}}, infer=id, {C})", "expected a number, a string, a list or a type"),
    (f"{DECLARE}{RULE}source=operators.CSource('no.c', {{}}))", "no.c: the file cannot be read"),
    (f"{DECLARE}{RULE}{C.replace('_float32', '')})", "does not define the function 'fancy_act' for float32"),
    (f"{DECLARE}{RULE}{C.replace('float32', 'int8', 1)})", "has no C function for float32, only for int8"),
    (f"{DECLARE}{RULE}{C[:-1]}, arguments=lambda x: x.shape))",
     "float *, int64_t, int64_t), got int fancy_act_float32(const float *, float *, int64_t, float)"),
    (f"{DECLARE}{RULE}{C[:-1]}, arguments=lambda x: 'a'))", "expected integers and finite floats as arguments"),
    (f"{DECLARE}infer=lambda x: x, {C})", f"unknown attribute 'alpha' of {TITLE}"),
    (f"{DECLARE}{RULE.replace('}', ', chr(98): int}')}{C})", f"{TITLE} requires the attribute 'b'"),
    (f"{DECLARE}{RULE.replace('1.0', '1')}{C})", f"expected an integer as attribute 'alpha' of {TITLE}, got 0.5"),
    (f"{DECLARE}{RULE.replace('lambda x', 'lambda x, y')}{C})", f"expected 2 inputs of {TITLE}, got 1"),
    (f"{DECLARE}{RULE.replace('x: x', 'x: x.shape')}{C})", f"expected a TensorType from the type rule of {TITLE}"),
    (f"{DECLARE}{RULE.replace('x: x', 'x: x.no')}{C})", f"the type rule of {TITLE} raises AttributeError"),
    (f"{DECLARE}{RULE.replace('x: x', 'x: operators.TensorType((1, *x.shape), x.dtype)')}{C})",
     f"{TITLE} declares the shape (1, 1, 64), the model (1, 64). Check its type rule in op.py"),
    (f"{DECLARE}{RULE}{C}, elementwise=True)".replace("x: x", "x: operators.TensorType((1, 64, 1), x.dtype)"),
     f"{TITLE} is elementwise: expected equal shapes"),
    (f"{DECLARE}{RULE}element=lambda of, x: 'a')", f"expected float32 from the element rule of {TITLE}, got 'a'"),
    (f"{DECLARE}{RULE}element=lambda of, x: x.no)", f"the element rule of {TITLE} raises AttributeError"),
    (f"{DECLARE}{RULE}emit=lambda *_: 1 / 0)", f"the loop-level rule of {TITLE} raises ZeroDivisionError"),
    (f"{DECLARE}{COMPOSED}call('no', x))", f"the composition of {TITLE} raises OptionError: unknown operator 'no'"),
    (f"{DECLARE}{COMPOSED}3)", f"expected expressions from the composition of {TITLE}, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_of_declarations_have_one_clear_message(folder: Path, text: str, message: str) -> None:
    node = helper.make_node("FancyAct", ["x"], ["y"], "act", domain="com.example", alpha=0.5)
    save("fancy", [node], {"x": [1, 64]}, {"y": [1, 64]})
    Path("op.py").write_text(f"from mlfc import operators\n\n{text}\n")
    try:
        problems = mlfc.check("fancy.onnx", operators=["op.py"])
    except OptionError as error:
        problems = [error]
    assert [type(error) for error in problems if isinstance(error, MlfcError)]
    assert message in str(problems[0])
    assert TITLE not in CUSTOM or text.startswith(DECLARE)


@pytest.mark.parametrize(("change", "message"), [
    (lambda: Path("my_ops.py").unlink(), "my_ops.py: the file cannot be read: No such file or directory"),
    (lambda: Path("my_ops.py").write_bytes(b"\xff\xfe"), "my_ops.py: expected UTF-8 text"),
])  # fmt: skip
def test_files_that_cannot_be_read_are_refused(folder: Path, change: Callable[[], object], message: str) -> None:
    change()
    found = run_mlfc("compile", "conv.onnx", "--op", "my_ops.py", cwd=folder)
    assert (found.returncode, list(folder.glob("*.tar"))) == (2, [])
    assert message in found.stderr
