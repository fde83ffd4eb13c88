"""Attention decomposed by exporters: recognized forms, equal results, and graphs that stay unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import compose, parser

import mlfc
from mlfc import transform
from mlfc.relay import ir
from mlfc.relay.ir import Call, IRModule
from mlfc.relay.visitor import post_order
from mlfc.transform.recognize_attention import window_of
from tests.harness import loaded_by_llvm
from tests.merged import merge

Array = npt.NDArray[Any]
RNG = np.random.default_rng(17)


@dataclass
class Form:
    """The text of an ONNX graph on q, k, v and other inputs, its input values, and the attributes of its attention."""

    text: str
    inputs: dict[str, Array]
    attrs: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        params = ", ".join(
            f"{'bool' if value.dtype == bool else 'float'}[{','.join(map(str, value.shape))}] {name}"
            for name, value in self.inputs.items()
        )
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g ({params}) => (y) {{ {self.text} }}')
        tensors = [onnx.numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        model.graph.initializer.extend(tensors)
        return model


def reals(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def heads(queries: int = 5, keys: int = 7, groups: int = 2) -> dict[str, Array]:
    return {"q": reals(2, 2, queries, 4), "k": reals(2, groups, keys, 4), "v": reals(2, groups, keys, 4)}


def number(name: str, value: Any) -> str:
    return f"{name} = Constant <value_float: float = {value}> ()\n"


def integers(name: str, *values: int) -> str:
    return f"{name} = Constant <value_ints: ints = [{', '.join(map(str, values))}]> ()\n"


def mixed(scores: str, more: str = "") -> str:
    return f"p = Softmax <axis = -1> ({scores}) {more} y = MatMul (p, v)"


TURNED = "kt = Transpose <perm = [0, 1, 3, 2]> (k)\n"
RAW = TURNED + "s = MatMul (q, kt)\n"
CAUSAL = np.tril(np.ones((7, 7), bool))
# masks with equal weights in all heads; the first two queries have no key
HIDDEN = np.repeat(np.array([[True] * 7] * 2 + [[True] * 2 + [False] * 5] * 3)[None, None], 2, 0)


def torch_sdpa(mask: str) -> str:
    """Return PyTorch's export of scaled_dot_product_attention: each factor is multiplied by the root of the scale."""
    root = "r = Constant <value_floats: floats = [0.7071067811865476]> ()\n"
    return root + TURNED + f"qs = Mul (q, r) ks = Mul (kt, r) s = MatMul (qs, ks)\n{mask}"


FORMS = {
    "plain": Form(number("c", 0.5) + RAW + "t = Mul (s, c)" + mixed("t"), heads(), {"scale": 0.5}),
    "no scale, a bias of heads": Form(
        RAW + "t = Add (b, s)" + mixed("t"), heads(), {"scale": 1.0, "extras": ("bias",)}, {"b": reals(1, 2, 5, 7)}
    ),
    "PyTorch": Form(torch_sdpa(mixed("s")), heads(), {"extras": ()}),
    "PyTorch, causal": Form(
        torch_sdpa("t = Add (s, m)" + mixed("t")), heads(7), {"extras": (), "right": 0, "offset": 0},
        {"m": np.where(CAUSAL, np.float32(0), np.float32(-np.inf))},
    ),
    "PyTorch, with a mask that hides all keys": Form(
        torch_sdpa(
            number("zero", 0) + "mm = Where (m, zero, low) t = Add (s, mm) e = Softmax <axis = -1> (t)"
            " nan = IsNaN (e) p = Where (nan, zero, e) y = MatMul (p, v)"
        ),
        {**heads(), "m": ~HIDDEN}, {"extras": ("bias",), "zero_nan": True}, {"low": np.array(-np.inf, np.float32)},
    ),
    "PyTorch, groups": Form(
        integers("five", 2, 1, 2, 7, 4) + integers("one", 2) + integers("four", 2, 2, 7, 4)
        + "k5 = Unsqueeze (k0, one) k6 = Expand (k5, five) k = Reshape (k6, four)\n"
        "v5 = Unsqueeze (v0, one) v6 = Expand (v5, five) v = Reshape (v6, four)\n" + torch_sdpa(mixed("s")),
        {"q": reals(2, 2, 5, 4), "k0": reals(2, 1, 7, 4), "v0": reals(2, 1, 7, 4)},
    ),
    "GPT-2": Form(
        "a, b, c = Split <axis = 2, num_outputs = 3> (x)\n" + integers("split", 2, 7, 2, 4) + integers("join", 2, 7, 8)
        + "a4 = Reshape (a, split) b4 = Reshape (b, split) c4 = Reshape (c, split)\n"
        "q = Transpose <perm = [0, 2, 1, 3]> (a4) kt = Transpose <perm = [0, 2, 3, 1]> (b4)"
        " v = Transpose <perm = [0, 2, 1, 3]> (c4) s = MatMul (q, kt)\n" + number("root", 2.0) + "d = Div (s, root)\n"
        "t = Where (seen, d, low) p = Softmax <axis = -1> (t) w = MatMul (p, v)"
        " wt = Transpose <perm = [0, 2, 1, 3]> (w) y = Reshape (wt, join)",
        {"x": reals(2, 7, 24)}, {"right": 0, "extras": (), "orders": ("BNHD",) * 4, "scale": 0.5},
        {"seen": CAUSAL[None, None], "low": np.array(-1e10, np.float32)},
    ),
    "BERT": Form(
        number("one", 1) + number("much", -10000.0) + number("root", 2.0) + RAW
        + "d = Div (s, root) h = Sub (one, m) b = Mul (h, much) t = Add (d, b)" + mixed("t"),
        {**heads(), "m": np.array([[1, 1, 1, 1, 1, 0, 0], [0] * 7], np.float32).reshape(2, 1, 1, 7)},
        {"extras": ("bias",)},
    ),
    "hidden scores become a number": Form(
        number("low", -1e9) + RAW + "t = Where (m, low, s)" + mixed("t"), {**heads(), "m": HIDDEN},
        {"extras": ("mask",), "fill": -1e9, "zero_rows": False},
    ),
    "cap": Form(
        number("c", 3.0) + RAW + "a = Div (s, c) b = Tanh (a) t = Mul (b, c)" + mixed("t"), heads(),
        {"softcap": 3.0, "scale": 1.0},
    ),
    "windows of a picture": Form(
        integers("by_window", 2, 2, 2, 5, 5) + integers("all", 4, 2, 5, 5) + RAW
        + "t = Add (s, b) t5 = Reshape (t, by_window) u5 = Add (t5, m) u = Reshape (u5, all)" + mixed("u"),
        {name: reals(4, 2, 5, 4) for name in "qkv"}, {"extras": ("bias", "bias")},
        {"b": reals(2, 5, 5), "m": reals(1, 2, 1, 5, 5)},
    ),
    "heads and batch in one": Form(
        number("c", 0.5) + "qs = Mul (q, c) kt = Transpose <perm = [0, 2, 1]> (k) s = MatMul (qs, kt)" + mixed("s"),
        {name: reals(6, 5, 4) for name in "qkv"},
    ),
    "positions first": Form(
        integers("flat", 5, 6, 4) + integers("out", 5, 2, 12) + integers("whole", 2, 3, 5, 5) + integers("one", 6, 5, 5)
        + "a = Reshape (x, flat) q = Transpose <perm = [1, 0, 2]> (a) kt = Transpose <perm = [1, 2, 0]> (a)\n"
        "s = MatMul (q, kt) t = Reshape (s, whole) e = Softmax <axis = -1> (t) p = Reshape (e, one)\n"
        "v = Transpose <perm = [1, 0, 2]> (a) w = MatMul (p, v) wt = Transpose <perm = [1, 0, 2]> (w)"
        " y = Reshape (wt, out)",
        {"x": reals(5, 2, 12)}, {"orders": ("NBHD",) * 4},
    ),
    "rows that are not a number": Form(
        RAW + "t = Add (s, b)" + mixed("t"), heads(), {"extras": ("bias",), "zero_rows": False},
        {"b": np.where(HIDDEN, np.float32(-np.inf), np.float32(0))},
    ),
}  # fmt: skip


def recognized(module: IRModule, params: dict[str, Array]) -> list[Call]:
    """Return the attention operators of a module after all passes but the last."""
    seen: list[Call] = []

    def look(name: str, after: IRModule) -> None:
        if name == "SinkDequantize":
            calls = [node for node in post_order(after.main.body) if isinstance(node, Call)]
            seen.extend(call for call in calls if ir.op_name(call) == "nn.attention")

    transform.run(module, params, after_each=look)
    return seen


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_exporters_are_recognized(name: str) -> None:
    (call,) = recognized(*mlfc.import_model(FORMS[name].model()))
    for attr, value in FORMS[name].attrs.items():
        assert call.attrs[attr] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)


def test_results_are_those_of_onnx_runtime(quick_builds: None) -> None:
    models = {name: form.model() for name, form in FORMS.items()}
    imported = [
        mlfc.import_model(compose.add_prefix(model, f"c{index}_")) for index, model in enumerate(models.values())
    ]
    module, params, firsts = merge(imported)
    inputs = {
        f"c{index}_{name}": value for index, form in enumerate(FORMS.values()) for name, value in form.inputs.items()
    }
    found = list(loaded_by_llvm(module, params).run(inputs).values())
    for (name, model), first in zip(models.items(), firsts, strict=True):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (wanted,) = session.run(None, FORMS[name].inputs)
        np.testing.assert_allclose(found[first], wanted, rtol=2e-6, atol=2e-6, err_msg=name)
    assert np.isnan(found[firsts[list(FORMS).index("rows that are not a number")]]).any()


OTHERS = {
    "the probabilities are read": RAW
    + "p = Softmax <axis = -1> (s) w = MatMul (p, v) u = ReduceMean (p) y = Add (w, u)",
    "the scores are read": RAW + "p = Softmax <axis = -1> (s) w = MatMul (p, v) u = ReduceMean (s) y = Add (w, u)",
    "softmax over queries": RAW + "p = Softmax <axis = -2> (s) y = MatMul (p, v)",
    "scale behind a mask": number("c", 0.5) + RAW + "t = Add (s, b) u = Mul (t, c)" + mixed("u"),
    "a factor for each key": RAW + "t = Mul (s, b)" + mixed("t"),
    "another function": RAW + "t = Sigmoid (s)" + mixed("t"),
    "a number for hidden scores, and a bias": number("low", -5.0) + RAW
    + "t = Where (m, low, s) u = Add (t, b)" + mixed("u"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name: str) -> None:
    inputs = {**heads(), "b": reals(7), "m": HIDDEN}
    assert not recognized(*mlfc.import_model(Form(OTHERS[name], inputs).model()))


def test_scores_that_are_an_output_stay() -> None:
    model = Form(RAW + mixed("s"), heads()).model()
    model.graph.output.append(onnx.ValueInfoProto(name="p"))
    assert not recognized(*mlfc.import_model(model))


def test_devices_multiply_tiles() -> None:
    module, params = mlfc.import_model(FORMS["plain"].model())
    body = transform.run(module, params, on_device=True).main.body
    groups = [node.op for node in post_order(body) if isinstance(node, Call) and isinstance(node.op, ir.Function)]
    names = {ir.op_name(part) for group in groups for part in post_order(group.body) if isinstance(part, Call)}
    assert "nn.softmax" in names
    assert "nn.attention" not in names


def test_windows_are_found_in_masks() -> None:
    at, key = np.arange(6)[:, None], np.arange(9)
    for end in range(-3, 11):
        for begin in range(-8, end + 1):
            seen = (key <= at + end) & (key >= at + begin)
            found = window_of(seen, needs_keys=False)
            if seen.all() or not seen.any():
                continue
            assert found is not None or not (seen[0].any() and seen[-1].any())
            if found is None:
                continue
            position = at + found["offset"]
            right, left = found["right"], found["left"]
            again = ((right < 0) | (key <= position + right)) & ((left < 0) | (key >= position - left))
            np.testing.assert_array_equal(again, seen)
    assert window_of(RNG.random((6, 9)) < 0.5, needs_keys=False) is None
    assert window_of(np.tril(np.ones((6, 9), bool), -1), needs_keys=True) is None
