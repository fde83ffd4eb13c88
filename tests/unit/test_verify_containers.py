"""Models with sequences or optionals as inputs or outputs are compared with ONNX Runtime, and described."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import InputError, LimitError
from mlfc.problems import examine
from mlfc.support.tensor_info import ContainerInfo, TensorInfo
from mlfc.verify import compare, verify
from mlfc.verify.inputs import Asked, made_up_sets

pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
N = helper.make_node


def _tensor(name: str, shape: Sequence[Any], dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _sequence(name: str, shape: Sequence[Any], *, optional: bool = False) -> onnx.ValueInfoProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, shape))
    return helper.make_value_info(name, helper.make_optional_type_proto(kind) if optional else kind)


def _optional(name: str, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, shape)))


def _save(folder: Path, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def _joined(folder: Path) -> Path:
    """Write a model that joins the rows of a sequence and a tensor, and splits the result again."""
    nodes = [
        N("SequenceInsert", ["s", "x"], ["t"]), N("ConcatFromSequence", ["t"], ["c"], axis=0),
        N("Softmax", ["c"], ["y"]), N("SplitToSequence", ["y"], ["o"], axis=0), N("SequenceLength", ["t"], ["n"]),
    ]  # fmt: skip
    outputs = [_tensor("y", [None, 4]), _sequence("o", [1, 4]), _tensor("n", [], INT64)]
    return _save(folder, nodes, [_sequence("s", ["n", 4]), _tensor("x", ["m", 4])], outputs)


def _mapped(folder: Path) -> Path:
    """Write a model that applies tanh to each tensor of a sequence in a loop."""
    inner = [
        N("Identity", ["go"], ["go_on"]), N("SequenceAt", ["s", "i"], ["e"]), N("Tanh", ["e"], ["f"]),
        N("SequenceInsert", ["a", "f"], ["b"]),
    ]  # fmt: skip
    states = [_tensor("go_on", [], BOOL), _sequence("b", ["n"])]
    body = helper.make_graph(inner, "b", [_tensor("i", [], INT64), _tensor("go", [], BOOL), _sequence("a", ["n"])],
                             states)  # fmt: skip
    yes = helper.make_tensor("v", BOOL, [], [1])
    nodes = [
        N("SequenceLength", ["s"], ["k"]), N("Constant", [], ["yes"], value=yes), N("SequenceEmpty", [], ["none"]),
        N("Loop", ["k", "yes", "none"], ["o"], body=body),
    ]  # fmt: skip
    return _save(folder, nodes, [_sequence("s", ["n"])], [_sequence("o", ["n"])])


def _passed(folder: Path, make: Callable[[str], onnx.ValueInfoProto]) -> Path:
    nodes = [N("OptionalHasElement", ["p"], ["is_there"]), N("Identity", ["p"], ["q"])]
    return _save(folder, nodes, [make("p")], [_tensor("is_there", [], BOOL), make("q")])


def _passed_tensor(folder: Path) -> Path:
    return _passed(folder, lambda name: _optional(name, ["n"]))


def _passed_sequence(folder: Path) -> Path:
    return _passed(folder, lambda name: _sequence(name, ["n", 2], optional=True))


@pytest.mark.parametrize("make", [_joined, _mapped, _passed_tensor, _passed_sequence])
def test_sequences_and_optionals_equal_the_reference(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    result = verify(path, samples=3, target="llvm")
    assert result.is_within
    # random ones, three corner cases, and one set without tensors and values
    assert (result.samples, result.refused) == (7, 0)
    assert [item.tensor for item in result.outputs] == [item.name for item in onnx.load(path).graph.output]


def test_the_compiled_model_is_compared_as_it_ships(tmp_path: Path) -> None:
    assert mlfc.compile(_joined(tmp_path), "llvm").verify(samples=1).is_within


def test_layers_are_compared_and_loops_named(tmp_path: Path) -> None:
    result = verify(_mapped(tmp_path), samples=1, layers=True, target="llvm")
    assert result.is_within
    assert {item.tensor for item in result.layers} == {"k", "o"}
    assert result.unseen == ("Loop #3",)


def test_layers_of_open_dimensions_are_compared(tmp_path: Path) -> None:
    nodes = [N("Exp", ["x"], ["e"]), N("NonZero", ["x"], ["z"]), N("Softmax", ["e"], ["y"])]
    path = _save(tmp_path, nodes, [_tensor("x", ["n", 3])], [_tensor("y", ["n", 3]), _tensor("z", [2, None], INT64)])
    result = verify(path, samples=2, layers=True, target="llvm")
    assert result.is_within
    assert {item.tensor for item in result.layers} == {"e", "y", "z"}


def _counted(folder: Path) -> Path:
    """Write a model in which the size of an output is a runtime symbol."""
    nodes = [N("Add", ["x", "old"], ["new"]), N("NonZero", ["x"], ["z"]), N("Softmax", ["x"], ["y"])]
    outputs = [_tensor("y", ["n", 3]), _tensor("z", [2, None], INT64), _tensor("new", ["n", 3])]
    return _save(folder, nodes, [_tensor("x", ["n", 3]), _tensor("old", ["n", 3])], outputs)


def test_differences_are_judged_where_the_run_decides_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _verified(monkeypatch, _counted(tmp_path), lambda results: results.update(y=results["y"] + 1))
    assert result.first_differing.tensor == "y"
    assert result.first_differing.evidence is not None


def test_states_are_tied_where_the_run_decides_numbers(tmp_path: Path) -> None:
    model = mlfc.compile(_counted(tmp_path), "llvm", shapes={"x": (2, 3), "old": (2, 3)}, states={"old": "new"})
    one = np.ones((2, 3), np.float32)
    model.run({"x": one})
    model.run({"x": one})
    assert np.array_equal(model.state["old"], 2 * one)
    assert verify(tmp_path / "model.onnx", shapes={"x": (2, 3), "old": (2, 3)}, states={"old": "new"},
                  samples=1, target="llvm").is_within  # fmt: skip


def test_scores_by_label_are_compared_as_a_tensor(tmp_path: Path) -> None:
    kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    scores = helper.make_value_info("scores", helper.make_sequence_type_proto(kind))
    nodes = [
        N("Softmax", ["x"], ["p"]),
        N("ZipMap", ["p"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[7, 3, 5]),
    ]
    graph = helper.make_graph(nodes, "g", [_tensor("x", [2, 3])], [scores])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "model.onnx")
    result = verify(tmp_path / "model.onnx", samples=1, target="llvm")
    assert result.is_within
    assert [item.tensor for item in result.outputs] == ["scores"]


class _Changed:
    """A reference with changed results."""

    def __init__(self, reference: Any, change: Callable[[dict[str, Any]], None]) -> None:
        self.input_names, self.output_names = reference.input_names, reference.output_names
        self._reference, self._change = reference, change

    def begin(self) -> None:
        pass

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = self._reference.run(inputs)
        self._change(results)
        return results


def _verified(monkeypatch: pytest.MonkeyPatch, path: Path, change: Callable[[dict[str, Any]], None]) -> Any:
    real = compare.open_reference

    def changed(path: Path, **options: Any) -> tuple[str, Any]:
        title, reference = real(path, **options)
        return title, _Changed(reference, change)

    monkeypatch.setattr(compare, "open_reference", changed)
    return verify(path, samples=1, target="llvm")


def test_a_wrong_tensor_of_a_sequence_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(results: dict[str, Any]) -> None:
        if len(results["o"]) > 1:
            results["o"][1] = results["o"][1] + 1

    found = _verified(monkeypatch, _joined(tmp_path), change).first_differing
    assert found is not None
    assert (found.tensor, found.largest) == ("o", pytest.approx(1.0))
    assert found.note.startswith("in o.1")


@pytest.mark.parametrize(
    ("make", "change", "note"),
    [
        (_mapped, lambda results: results["o"].append(np.zeros(2, np.float32)), "a sequence of 2 tensors against"),
        (_passed_tensor, lambda results: results.update(q=None), "a tensor against no value"),
        (_passed_sequence, lambda results: results.update(q=None), "against no value"),
        (
            _passed_tensor,
            lambda results: results.update(is_there=results["is_there"].reshape(1)),
            "shape [] against [1]",
        ),
    ],
)
def test_another_form_differs(
    make: Callable[[Path], Path], change: Any, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _verified(monkeypatch, make(tmp_path), change)
    assert not result.is_within
    assert math.isinf(result.first_differing.largest)
    assert note in result.first_differing.note


def test_an_output_that_only_the_reference_has_is_an_error(tmp_path: Path) -> None:
    two = [N("Relu", ["x"], ["y"]), N("Neg", ["x"], ["z"])]
    x, y, z = (_tensor(name, [2]) for name in "xyz")
    mlfc.compile(_save(tmp_path, two, [x], [y]), "llvm").export(tmp_path / "one.tar")
    with pytest.raises(InputError, match="expected an output 'z', got 'y' from the compiled model"):
        verify(_save(tmp_path, two, [x], [y, z]), tmp_path / "one.tar", samples=0)


def test_scalars_come_from_a_file(tmp_path: Path) -> None:
    inner = [N("Identity", ["go"], ["go_on"]), N("Add", ["a", "one"], ["b"])]
    body = helper.make_graph(inner, "b", [_tensor("i", [], INT64), _tensor("go", [], BOOL), _tensor("a", [])],
                             [_tensor("go_on", [], BOOL), _tensor("b", [])])  # fmt: skip
    one = N("Constant", [], ["one"], value=helper.make_tensor("v", FLOAT, [], [1.0]))
    nodes = [one, N("Loop", ["", "more", "x"], ["y"], body=body)]
    path = _save(tmp_path, nodes, [_tensor("more", [], BOOL), _tensor("x", [])], [_tensor("y", [])])
    np.savez(tmp_path / "inputs.npz", more=np.array([False, False]), x=np.float32([2, 3]))
    result = verify(path, inputs=tmp_path / "inputs.npz", target="llvm")
    assert (result.samples, result.is_within) == (2, True)


def test_what_does_not_end_ends_by_the_limit_of_compiled_code() -> None:
    class Endless:
        inputs = outputs = ()

        def run(self, _: Any) -> Any:
            raise LimitError("too many turns")

    class Reference:
        def run(self, _: Any) -> Any:
            pytest.fail("the reference has no limit")

    comparing = compare._Comparing(Endless(), Reference(), [("set 0", {})], None, None)  # type: ignore[arg-type]
    with pytest.raises(LimitError, match="too many turns"):
        comparing.run()


# 1 element is too few for 2; if the 2 of the first set are too few as well, larger sizes are drawn
@pytest.mark.parametrize(("most", "counts"), [(2, (6, 2)), (3, (8, 0))])
def test_sizes_that_suit_neither_are_counted_or_drawn_larger(
    tmp_path: Path, most: int, counts: tuple[int, int]
) -> None:
    k = N("Constant", [], ["k"], value=helper.make_tensor("v", INT64, [1], [most]))
    outputs = [_tensor("y", [None]), _tensor("places", [None], INT64)]
    path = _save(tmp_path, [k, N("TopK", ["x", "k"], ["y", "places"])], [_tensor("x", ["n"])], outputs)
    result = verify(path, samples=5, target="llvm")
    assert result.is_within
    assert (result.samples, result.refused) == counts


def test_inputs_that_are_drawn_suit_tables_lengths_and_windows(tmp_path: Path) -> None:
    """Draw valid table indices (also behind arithmetic), lengths, and windows in a branch or loop that does not run."""
    weights = {
        "table": np.ones((5, 4), np.float32), "one": np.array(1), "rate": np.array(16000), "zero": np.float32(0),
        "w": np.ones((1, 1, 4096), np.float32), "v": np.ones((1, 1, 256), np.float32), "times": np.array(0),
    }  # fmt: skip
    then, other, body = (
        helper.make_graph(
            [N("Conv", ["audio", kernel], [f"{title}_c"], strides=[64]), N("ReduceSum", [f"{title}_c"], [f"{title}_s"],
             keepdims=0), *more], title, given, results,
        )
        for title, kernel, more, given, results in (
            ("then", "w", [], [], [_tensor("then_s", [])]),
            ("other", "v", [], [], [_tensor("other_s", [])]),
            (
                "body", "w", [N("Identity", ["go"], ["go_on"])],
                [_tensor("i", [], INT64), _tensor("go", [], BOOL), _tensor("before", [])],
                [_tensor("go_on", [], BOOL), _tensor("body_s", [])],
            ),
        )
    )  # fmt: skip
    nodes = [
        N("GatherND", ["table", "places"], ["a"]), N("Add", ["index", "one"], ["next"]),
        N("Gather", ["table", "next"], ["b"]), N("ReverseSequence", ["table", "lengths"], ["c"], time_axis=0),
        N("Equal", ["index0", "rate"], ["is_wide"]),
        N("If", ["is_wide"], ["d"], then_branch=then, else_branch=other),
        N("Sub", ["index0", "index0"], ["none"]), N("Loop", ["none", "", "zero"], ["e"], body=body),
    ]  # fmt: skip
    inputs = [
        _tensor("places", [3, 1], INT64), _tensor("index", [9], INT64), _tensor("lengths", [4], INT64),
        _tensor("index0", [], INT64), _tensor("audio", [1, 1, "samples"]),
    ]  # fmt: skip
    outputs = [_tensor(name, [None, None]) for name in "abc"] + [_tensor(name, []) for name in "de"]
    graph = helper.make_graph(
        nodes, "drawn", inputs, outputs, [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    )
    path = tmp_path / "drawn.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert [str(item) for item in examine(path).open_dimensions] == ["samples (256 or more) of 'audio'"]
    result = verify(path, samples=2, target="llvm")
    assert (result.samples, result.refused, result.is_within) == (5, 0, True)


def test_inputs_that_never_suit_are_named(tmp_path: Path) -> None:
    """Use table indices of at least 8."""
    node = N("Constant", [], ["eight"], value=helper.make_tensor("v", INT64, [], [8]))
    table = N("Constant", [], ["table"], value=helper.make_tensor("t", FLOAT, [3], [1.0, 2.0, 3.0]))
    nodes = [node, table, N("Add", ["i", "eight"], ["j"]), N("Gather", ["table", "j"], ["y"])]
    path = _save(tmp_path, nodes, [_tensor("i", [2], INT64)], [_tensor("y", [2])])
    with pytest.raises(
        InputError, match=r"generated inputs are invalid for the model: ONNX Runtime .*out of data bounds"
    ) as refused:
        verify(path, samples=1, target="llvm")
    step = "The values of 'i' were generated; pass accepted ones: --inputs FILE.npz or --value i=..."
    assert refused.value.next_step == step


def test_inputs_come_from_a_file(tmp_path: Path) -> None:
    path = _joined(tmp_path)
    arrays = {"s.0": np.ones((1, 4), np.float32), "s.1": np.zeros((3, 4), np.float32), "x": np.ones((2, 4), np.float32)}
    np.savez(tmp_path / "inputs.npz", **arrays)
    result = verify(path, inputs=tmp_path / "inputs.npz", target="llvm")
    assert (result.samples, result.is_within) == (1, True)
    (tmp_path / "inputs.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"require a \.npz file"):
        verify(path, inputs=tmp_path / "inputs.bin", target="llvm")


def _asked(elements: Mapping[str, Sequence[int | None]]) -> Asked:
    infos = [ContainerInfo("s", ("?", "?"), "float32"), TensorInfo("x", ("n", 4), "float32")]
    return Asked(infos, {"n": (1, 1 << 30)}, elements, 4, 0)


def test_made_up_sequences_are_of_a_form_that_is_accepted() -> None:
    def accepts(inputs: Mapping[str, Any]) -> bool:
        return len({len(item) for item in inputs["s"]}) < 2

    sets, refused = made_up_sets(_asked({"s": (None, 4)}), accepts)
    assert (len(sets), refused) == (8, 0)
    assert all(item.shape[1] == 4 for _, inputs in sets for item in inputs["s"])
    assert {len(inputs["s"]) for _, inputs in sets} >= {0, 1, 2, 3, 4}

    def accepts_equal(inputs: Mapping[str, Any]) -> bool:
        return bool(inputs["s"]) and {len(inputs["x"])} == {len(item) for item in inputs["s"]}

    sets, refused = made_up_sets(_asked({}), accepts_equal)
    assert (len(sets), refused) == (7, 1)
    with pytest.raises(InputError, match="rejects all 8 generated input sets") as caught:
        made_up_sets(_asked({}), lambda _: False)
    assert "s.0, s.1" in str(caught.value)


def test_commands_take_sequences(tmp_path: Path) -> None:
    path, runner = _joined(tmp_path), CliRunner()
    shown = runner.invoke(app, ["verify", str(path), "--samples", "1", "--layers", "--target", "llvm"])
    assert shown.exit_code == 0, shown.output
    mlfc.compile(path, "llvm").export(tmp_path / "model.tar")
    shown = runner.invoke(app, ["inspect", str(tmp_path / "model.tar")])
    assert "sequence of float32[?, ?]" in shown.output
    shown = runner.invoke(app, ["report", str(path), "-o", str(tmp_path / "page.html"), "--target", "llvm"])
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "page.html").read_text()
    assert "sequence of float32 (?, ?)" in page
    assert "Not for boards as it is" in page
    shown = runner.invoke(app, ["run", str(tmp_path / "model.tar"), "--shape", "s=2,4", "--shape", "x=1,4"])
    assert "o.4" in shown.output
    assert "o.5" not in shown.output
