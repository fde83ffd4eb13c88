"""The transformer operators of ONNX Runtime's domain, compiled and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import compose

import mlfc
from mlfc.errors import MlfcError
from mlfc.frontend.onnx.table import MICROSOFT
from tests.attention_models import single_node
from tests.harness import loaded_by_llvm
from tests.merged import merge

Array = npt.NDArray[Any]
RNG = np.random.default_rng(11)
BATCH, STEPS, KEYS, HEADS, SIZE = 2, 3, 5, 2, 4
WIDTH = HEADS * SIZE


def reals(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def bits(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.int32)


@dataclass
class Case:
    """A node, and the number of defined rows in its caches; later rows are undefined."""

    operator: str
    inputs: dict[str, Array | None]
    attributes: dict[str, Any]
    outputs: Sequence[str] = ("y",)
    constants: Sequence[str] = ()
    rows: Sequence[int] = field(default=())

    def model(self) -> onnx.ModelProto:
        return single_node(
            self.operator, self.inputs, self.outputs, domain=MICROSOFT, opset=17, constants=self.constants,
            **self.attributes,
        )  # fmt: skip

    def run_time(self) -> dict[str, Array]:
        return {name: value for name, value in self.inputs.items() if value is not None and name not in self.constants}

    def shown(self, name: str, value: Array) -> Array:
        if name == "y" or not self.rows:
            return value
        value = value.copy()
        for index, rows in enumerate(self.rows):
            value[index, :, rows:] = 0
        return value


def multi_head(*outputs: str, queries: int = STEPS, **more: Any) -> Case:
    names: tuple[str, ...] = ("unidirectional", "scale", "mask_filter_value")
    attributes = {name: more.pop(name) for name in names if name in more}
    parts = {"q": reals(BATCH, queries, WIDTH), "k": reals(BATCH, KEYS, WIDTH), "v": reals(BATCH, KEYS, WIDTH)}
    places = dict.fromkeys(("bias", "mask", "added", "past_k", "past_v"))
    return Case("MultiHeadAttention", {**parts, **places, **more}, {"num_heads": HEADS, **attributes}, ("y", *outputs))


def attention(*outputs: str, **more: Any) -> Case:
    names = ("unidirectional", "qkv_hidden_sizes")
    attributes = {name: more.pop(name) for name in names if name in more}
    width = sum(attributes.get("qkv_hidden_sizes", (3 * WIDTH,)))
    inputs = {"x": reals(BATCH, STEPS, 6), "w": reals(6, width), "b": reals(width), "mask": None, "past": None}
    return Case("Attention", {**inputs, **more}, {"num_heads": HEADS, **attributes}, ("y", *outputs), ("w", "b"))


COS, SIN = np.cos(reals(12, 8)), np.sin(reals(12, 8))


def grouped(steps: int, past: int, last: Sequence[int], total: int, **more: Any) -> Case:
    heads, groups, size = 4, 2, 16
    names: tuple[str, ...] = ("added", "sink")
    own = {name: more.pop(name) for name in names if name in more}
    inputs: dict[str, Array | None] = {
        "q": reals(BATCH, steps, heads * size), "k": reals(BATCH, steps, groups * size),
        "v": reals(BATCH, steps, groups * size), "past_k": reals(BATCH, groups, past, size) if past else None,
        "past_v": reals(BATCH, groups, past, size) if past else None, "last": np.array(last, np.int32),
        "total": np.array(total, np.int32), "cos": None, "sin": None, "ids": None, "added": None, "sink": None, **own,
    }  # fmt: skip
    if more.get("do_rotary"):
        inputs |= {"cos": COS, "sin": SIN}
    if more.pop("packed", False):
        inputs["q"] = np.concatenate([inputs[name] for name in "qkv"], 2)
        inputs |= {"k": None, "v": None}
    attributes = {"num_heads": heads, "kv_num_heads": groups, **more}
    rows = [index + 1 for index in last]
    return Case("GroupQueryAttention", inputs, attributes, ("y", "keys", "values"), ("total",), rows)


def rotary(shape: Sequence[int], ids: Array, columns: int = 4, **attributes: Any) -> Case:
    inputs: dict[str, Array | None] = {"x": reals(*shape), "ids": ids, "cos": COS[:, :columns], "sin": SIN[:, :columns]}
    return Case("RotaryEmbedding", inputs, attributes, constants=("cos", "sin"))


def norm(operator: str, count: int, *outputs: str, **attributes: Any) -> Case:
    vectors = {f"c{index}": reals(8) for index in range(count)}
    return Case(operator, {"x": reals(2, 3, 8), "skip": reals(2, 3, 8), **vectors}, attributes, ("y", *outputs))


PAST: dict[str, Any] = {"past_k": reals(BATCH, HEADS, 4, SIZE), "past_v": reals(BATCH, HEADS, 4, SIZE)}
NEW: dict[str, Any] = {"k": reals(BATCH, STEPS, WIDTH), "v": reals(BATCH, STEPS, WIDTH)}
OTHER: dict[str, Any] = {"k": reals(BATCH, HEADS, KEYS, SIZE), "v": reals(BATCH, HEADS, KEYS, SIZE)}
IDS = RNG.integers(0, 10, (2, 3))
CASES = {
    "multi-head": multi_head(),
    "bias and scale": multi_head(bias=reals(3 * WIDTH), scale=0.3),
    "lengths": multi_head(mask=np.array([3, 5], np.int32)),
    "padding": multi_head(mask=np.array([[1, 1, 0, 1, 0], [0] * 5], np.int32), mask_filter_value=-50.0),
    "padding by query": multi_head(mask=bits(BATCH, STEPS, KEYS)),
    "added": multi_head(added=reals(1, HEADS, STEPS, KEYS)),
    "causal with padding": multi_head(queries=KEYS, mask=bits(BATCH, KEYS), unidirectional=1),
    "past": multi_head("keys", "values", **NEW, **PAST),
    "past and causal": multi_head("keys", "values", **NEW, **PAST, unidirectional=1),
    "keys by heads": multi_head(**OTHER, bias=reals(3 * WIDTH)),
    "wide values": multi_head(v=reals(BATCH, KEYS, 2 * WIDTH)),
    "scores": multi_head("", "", "scores", mask=np.array([3, 5], np.int32), added=reals(1, HEADS, STEPS, KEYS)),
    "projected": attention(),
    "projected, causal": attention(mask=np.array([[1, 1, 0], [0, 1, 1]], np.int32), unidirectional=1),
    "projected, ends": attention(mask=np.array([1, 3], np.int32)),
    "projected, ends and begins": attention(mask=np.array([3, 2, 1, 0], np.int32)),
    "projected, by query": attention(mask=bits(BATCH, STEPS, STEPS)),
    "projected, wide values": attention(qkv_hidden_sizes=[WIDTH, WIDTH, 2 * WIDTH]),
    "projected, past": attention("present", past=reals(2, BATCH, HEADS, 2, SIZE), unidirectional=1),
    "prompt": grouped(4, 0, [3, 3], 4, do_rotary=1),
    "prompt in a cache": grouped(4, 8, [3, 3], 4, do_rotary=1),
    "next token": grouped(1, 8, [5, 3], 6, do_rotary=1),
    "next token, interleaved": grouped(1, 8, [5, 3], 6, do_rotary=1, rotary_interleaved=1),
    "growing cache": grouped(1, 5, [5, 5], 6),
    "window": grouped(1, 8, [5, 3], 6, local_window_size=2),
    "window over a prompt": grouped(4, 0, [3, 3], 4, local_window_size=2),
    "soft cap": grouped(1, 8, [5, 3], 6, softcap=1.5),
    "packed": grouped(1, 8, [5, 3], 6, do_rotary=1, packed=True),
    "added to groups": grouped(1, 8, [5, 3], 6, added=reals(1, 1, 1, 6)),
    "sink": grouped(1, 8, [5, 3], 6, sink=reals(4)),
    "smooth": grouped(4, 0, [3, 3], 4, smooth_softmax=1),
    "all keys": grouped(4, 0, [3, 3], 4, causal=0),
    "rotary": rotary((2, 3, 32), IDS),
    "rotary by heads": rotary((2, 4, 3, 8), IDS, interleaved=1),
    "rotary from a position": rotary((2, 3, 32), np.array([2])),
    "rotary of a part": rotary((2, 3, 32), IDS, 2, num_heads=4, rotary_embedding_dim=4),
    "embedded": Case(
        "EmbedLayerNormalization",
        {
            "ids": IDS.astype(np.int32),
            "segments": None,
            "words": reals(10, 8),
            "places": reals(5, 8),
            "kinds": None,
            "gamma": reals(8),
            "beta": reals(8),
            "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
        },
        {"epsilon": 1e-5},
        ("y", "", "sum"),
        ("words", "places"),
    ),
    "skip": norm("SkipLayerNormalization", 3, "", "", "sum", epsilon=1e-5),
    "skip, simplified": norm("SkipSimplifiedLayerNormalization", 2, "", "", "sum", epsilon=1e-5),
}


def test_results_are_those_of_onnx_runtime(quick_builds: None) -> None:
    imported = []
    for index, case in enumerate(CASES.values()):
        imported.append(mlfc.import_model(compose.add_prefix(case.model(), f"c{index}_").SerializeToString()))
    module, params, firsts = merge(imported)
    inputs = {
        f"c{index}_{name}": value
        for index, case in enumerate(CASES.values())
        for name, value in case.run_time().items()
    }
    found = list(loaded_by_llvm(module, params).run(inputs).values())
    for (name, case), first in zip(CASES.items(), firsts, strict=True):
        session = onnxruntime.InferenceSession(case.model().SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = session.run(None, case.run_time())
        outputs = [output for output in case.outputs if output]
        for output, ours, theirs in zip(outputs, found[first:], wanted, strict=False):
            assert ours.shape == theirs.shape, (name, output)
            pair = case.shown(output, ours), case.shown(output, theirs)
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=2e-6, err_msg=f"{name}: {output}")


def test_caches_of_any_length() -> None:
    """Use runtime lengths as exporters write them: the mask has as many columns as there are keys."""
    size, width = 8, 8 * HEADS
    nodes = [
        onnx.helper.make_node("Cast", ["mask"], ["ints"], to=onnx.TensorProto.INT32),
        onnx.helper.make_node("ReduceSum", ["ints", "axis"], ["length"], keepdims=0),
        onnx.helper.make_node("Sub", ["length", "one"], ["last"]),
        onnx.helper.make_node("Shape", ["mask"], ["sizes"]),
        onnx.helper.make_node("Gather", ["sizes", "axis"], ["total64"]),
        onnx.helper.make_node("Cast", ["total64"], ["total"], to=onnx.TensorProto.INT32),
        onnx.helper.make_node("GroupQueryAttention", ["x", "x", "x", "pk", "pv", "last", "total"], ["a", "nk", "nv"],
                              domain=MICROSOFT, num_heads=HEADS, kv_num_heads=HEADS),
        onnx.helper.make_node("Attention", ["a", "w", "", "ints", "past"], ["y", "present"], domain=MICROSOFT,
                              num_heads=HEADS, unidirectional=1),
    ]  # fmt: skip
    shapes = {"x": ("b", "s", width), "mask": ("b", "t"), "past": (2, "b", HEADS, "p", size)}
    shapes |= dict.fromkeys(("pk", "pv"), ("b", HEADS, "p", size))
    constants = {"w": reals(width, 3 * width), "axis": np.array([1]), "one": np.array(1, np.int32)}
    graph = onnx.helper.make_graph(
        nodes, "g",
        [onnx.helper.make_tensor_value_info(name, 7 if name == "mask" else 1, shape) for name, shape in shapes.items()],
        [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("y", "present", "nk", "nv")],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(MICROSOFT, 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = mlfc.compile(model, "llvm")
    for steps, past in ((1, 5), (3, 2), (4, 0)):
        feeds = {"x": reals(1, steps, width), "mask": np.ones((1, steps + past), np.int64)}
        feeds |= {name: reals(1, HEADS, past, size) for name in ("pk", "pv")}
        feeds["past"] = reals(2, 1, HEADS, past, size)
        for ours, theirs in zip(compiled.run(feeds).values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6, err_msg=f"{steps} {past}")


def test_packed_tensors_are_what_they_are_apart() -> None:
    """Compare packed with separate tensors, as ONNX Runtime supports packed ones on GPUs only."""
    q, k, v = (reals(BATCH, KEYS, HEADS, SIZE) for _ in range(3))
    flat = {name: part.reshape(BATCH, KEYS, WIDTH) for name, part in zip("qkv", (q, k, v), strict=True)}
    forms: list[Mapping[str, Array]] = [
        flat, {"q": np.stack([q, k, v], 3)}, {"q": flat["q"], "k": np.stack([k, v], 3)}
    ]  # fmt: skip
    results = []
    for form in forms:
        model = Case("MultiHeadAttention", dict(form), {"num_heads": HEADS}).model()
        (result,) = mlfc.compile(model, target="llvm").run(dict(form)).values()
        results.append(result)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (multi_head(bias=reals(5)), "a bias of shape (5,) does not fit queries of 8 elements"),
        (multi_head(mask=bits(3, 7)), "with a mask of shape (3, 7) for scores of shape (2, 2, 3, 5) is not supported"),
        (multi_head(k=reals(BATCH, KEYS, 9)), "key of shape (2, 5, 9) has no 2 heads of equal size"),
        (multi_head(k=None, v=None), "Pass query, key and value separately"),
        (attention(w=reals(5, 24)), "weights of shape (5, 24) do not fit an input of shape (2, 3, 6)"),
        (attention(qkv_hidden_sizes=[8, 8, 9], w=reals(6, 24)), "are not those of Q, K and V of sizes (8, 8, 9)"),
        (
            attention(past=reals(2, BATCH, HEADS, 2, 5)),
            "expected a past of shape (2, 2, 2, ..., 4), got (2, 2, 2, 2, 5)",
        ),
        (grouped(1, 8, [5], 6), "expected 2 integers as seqlens_k, got int32 of shape (1,)"),
        (grouped(9, 8, [8, 8], 6), "expected at least 9 keys in all"),
        (grouped(1, 8, [5, 5], 6, k_quant_type="PER_TENSOR"), "with k_quant_type is not supported"),
        (rotary((2, 3, 32), IDS[:1]), "expected position ids of shape (2, 3), got (1, 3)"),
    ],
)
def test_what_does_not_fit_is_refused(case: Case, message: str) -> None:
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(case.model())
    assert message in str(caught.value)


def test_the_size_of_a_growing_cache_is_asked_for() -> None:
    case = grouped(1, 5, [5, 5], 6)
    case.constants = ()
    with pytest.raises(MlfcError, match="--value total=") as caught:
        mlfc.import_model(case.model())
    assert "'total_sequence_length' that is not constant" in str(caught.value)
    mlfc.import_model(case.model(), values={"total": np.array(6, np.int32)})
