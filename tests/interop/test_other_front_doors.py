"""Programs written for ONNX Runtime and TVM that change only an import: sessions and graph executors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import DeviceError, InputError, MlfcError, OptionError
from mlfc.runtime.executors.profile import evaluate
from mlfc.support.params import save_params

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
IMAGE = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
# float32, one softmax
TOLERANCE = 1e-6


def described(items: Sequence[Any]) -> list[tuple[str, str, Any]]:
    # ONNX Runtime reports no shape for a sequence
    return [(item.name, item.type, item.shape if item.type.startswith("tensor") else None) for item in items]


def open_model() -> onnx.ModelProto:
    """Return a model with named and unnamed dynamic dimensions, several dtypes, and a sequence."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Cast", ["x"], ["z"], to=TensorProto.DOUBLE),
            helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0),
        ],
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("z", TensorProto.DOUBLE, ["batch", 4]),
            helper.make_tensor_sequence_value_info("rows", TensorProto.FLOAT, [1, 4]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_session_has_the_answers_of_onnxruntime() -> None:
    for model, feed in ((onnx.load(DIGITS), {"image": IMAGE}), (open_model(), {"x": IMAGE.reshape(16, 4)})):
        data = model.SerializeToString()
        theirs, ours = (
            onnxruntime.InferenceSession(data),
            mlfc.InferenceSession(data, providers=["CPUExecutionProvider"]),
        )
        assert described(ours.get_inputs()) == described(theirs.get_inputs())
        assert described(ours.get_outputs()) == described(theirs.get_outputs())
        assert ours.get_providers() == theirs.get_providers()
        assert ours.get_overridable_initializers() == []
        for found, wanted in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    (again,) = ours.run(["z"], feed)
    assert again.dtype == np.float64
    np.testing.assert_array_equal(ours.run(["z", "y"], feed)[1], np.maximum(feed["x"], 0))


def test_a_session_takes_whatever_can_run(tmp_path: Path) -> None:
    model = mlfc.compile(DIGITS)
    archive, library = model.export(tmp_path / "digits.tar"), model.export_library(tmp_path / "digits.so")
    (wanted,) = model.run(IMAGE).values()
    sources: list[Any] = [
        str(DIGITS), onnx.load(DIGITS), model, mlfc.load(archive), archive, archive.read_bytes(), str(library),
        library.read_bytes(),
    ]  # fmt: skip
    for source in sources:
        session = mlfc.InferenceSession(source)
        np.testing.assert_allclose(session.run([], {"image": IMAGE})[0], wanted, rtol=TOLERANCE, atol=TOLERANCE)
    scores = np.empty_like(wanted)
    assert session.bind({"image": IMAGE}, [scores])() == 0
    np.testing.assert_array_equal(scores, wanted)


def test_threads_of_a_session() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    before = mlfc.get_num_threads()
    single = mlfc.InferenceSession(DIGITS, options)
    assert mlfc.get_num_threads() == before, "those of other models"
    try:
        several = mlfc.InferenceSession(DIGITS, intra_op_num_threads=2)
        assert mlfc.get_num_threads() == 2
    finally:
        mlfc.set_num_threads(before)
    np.testing.assert_array_equal(*(session.run(None, {"image": IMAGE})[0] for session in (single, several)))


REFUSED: dict[str, tuple[dict[str, Any], type[MlfcError], str]] = {
    "unknown": ({"providers": ["CPU"]}, OptionError, "unknown provider 'CPU'"),
    "absent": ({"providers": ["TensorrtExecutionProvider"]}, DeviceError, "Add 'CPUExecutionProvider'"),
    "count": ({"provider_options": [{}, {}]}, OptionError, "expected options of 1 providers, got 2"),
    "threads": ({"intra_op_num_threads": -1}, OptionError, "a number of threads"),
    "option": ({"shape": {}}, OptionError, "unknown option 'shape' of compile; nearest: 'shapes'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_session_does_not_have_is_refused(case: str) -> None:
    options, kind, reason = REFUSED[case]
    with pytest.raises(kind, match=reason):
        mlfc.InferenceSession(DIGITS, **options)


def test_faults_of_runs_are_named() -> None:
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider: not available"):
        session = mlfc.InferenceSession(DIGITS, providers=["TensorrtExecutionProvider", "CPUExecutionProvider"])
    for names, feed, reason in (
        (["scores"], {"image": IMAGE}, "unknown output 'scores'"),
        (None, {}, "image: the input is missing"),
        (None, [IMAGE], "expected a mapping"),
        (None, {"image": [1.5, 2]}, r"its shape is \(2,\), not"),
    ):
        with pytest.raises(InputError, match=reason):
            session.run(names, feed)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"no 'run_async'. Call run in a thread"):
        session.run_async()
    assert not hasattr(session, "nonsense")
    with pytest.raises(OptionError, match="got a model that was compiled"):
        mlfc.InferenceSession(session, target="llvm")


@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_a_program_for_tvm_runs(executor: str) -> None:
    from mlfc import debug_executor, graph_executor

    mod, params = mlfc.import_model(DIGITS)
    lib = mlfc.build(mod, "llvm", params, executor=executor)
    wanted = next(iter(mlfc.compile(DIGITS, "llvm").run(IMAGE).values()))
    device = mlfc.cpu(0)
    module = graph_executor.GraphModule(lib["default"](device))
    module.set_input("image", mlfc.runtime.array(IMAGE))
    module.run()
    found = module.get_output(0)
    np.testing.assert_array_equal(found.numpy(), wanted)
    out = np.empty_like(wanted)
    module.set_input(0, np.zeros_like(IMAGE))
    module.run(image=IMAGE)
    assert module.get_output(0, out) is out
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(module.get_input("image").numpy(), IMAGE)
    shapes, dtypes = module.get_input_info()
    assert (shapes["image"], dtypes["image"]) == ((1, 1, 8, 8), "float32")
    assert (module.get_input_index("image"), module.get_num_outputs()) == (0, 1)
    assert module["get_num_outputs"]() == 1
    for results in (
        module.module.time_evaluator("run", device, number=2, repeat=3)(),
        module.benchmark(device, repeat=3, number=1, end_to_end=True, image=IMAGE),
    ):
        assert len(results.results) == 3
        assert results.min <= results.median <= results.max
        assert "mean=" in repr(results)
    with pytest.raises(InputError, match=r'Pass lib\["default"\]'):
        graph_executor.GraphModule(lib)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=r"^ignored unknown input 'imag'; nearest: 'image'$") as caught:
        module.set_input(imag=IMAGE, image=IMAGE)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="ignored unknown input 'imag'"):
        module.run(image=IMAGE, imag=IMAGE)
    with pytest.raises(InputError, match="no such input"):
        module.set_input("imag", IMAGE)
    if executor == "graph":
        debugged = debug_executor.GraphModuleDebug(lib["debug_create"]("default", device), [device], lib.graph_json)
        debugged.run(image=IMAGE)
        np.testing.assert_array_equal(debugged.get_output(0).numpy(), wanted)
        with pytest.raises(OptionError, match="unknown module 'other'"):
            lib["debug_create"]("other", device)
        module.set_output_zero_copy(0, out)
        out[...] = 0
        module.run()
        np.testing.assert_array_equal(out, wanted)
        created = graph_executor.create(lib.graph_json, lib.lib, device)
        created.load_params(save_params(lib.params))
        created.run(image=IMAGE)
        np.testing.assert_array_equal(created.get_output(0).numpy(), wanted)
    else:
        with pytest.raises(OptionError, match="executor='graph'"):
            lib["debug_create"]("default", device)
        with pytest.raises(OptionError, match="executor='graph'"):
            module.load_params(b"")


def test_repetitions_are_as_long_as_asked_for() -> None:
    calls: list[None] = []
    # each call takes a millisecond; the first is a warm-up, and repetitions grow to `min_repeat_ms`
    found = evaluate(
        lambda: calls.append(None), number=1, repeat=2, min_repeat_ms=3, clock=lambda: 1e-3 * len(calls) + 1e-9
    )
    np.testing.assert_allclose(found.results, 1e-3)
    assert len(calls) == 1 + 1 + 4 + 4
    with pytest.raises(OptionError, match="at least 1 call"):
        evaluate(lambda: None, number=0, repeat=1)
