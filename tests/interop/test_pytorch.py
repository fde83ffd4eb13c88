"""PyTorch modules, captured in memory and compiled, compared with PyTorch; and the page about frameworks."""

from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import mlfc
from mlfc.errors import InputError, MlfcError, ModelError, OptionError, UnsupportedError
from mlfc.micro.run.project_run import run_selftest
from mlfc.transform import pipeline
from tests import torch_models
from tests.emulator.conftest import need_board
from tests.onnx_models import Array
from tests.relay_run import operators
from tests.torch_models import Cnn, Decoder, Gru, Names, Vit, after_linear, one_registry, seeded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pytorch-keras-jax.md"
# check that the program's result is correct; the model's only output is that of `net`
AGREES = """
import numpy
x = numpy.random.default_rng(0).standard_normal(model.inputs[0].shape).astype("float32")
(found,) = model.run({model.inputs[0].name: x}).values()
numpy.testing.assert_allclose(found, numpy.asarray(RESULT), rtol=1e-6, atol=1e-6)
"""
# too large for CI, as the page explains
OTHERS = {"keras": ("keras", "net(x).detach().numpy()"), "jax": ("jax2onnx", "net(x)")}
INSTALLED = [section for section, (package, _) in OTHERS.items() if find_spec(package) is not None]


# float32; outputs are of order 1
TOLERANCE = 2e-6
EXAMPLES: dict[type[nn.Module], dict[str, tuple[int, ...]]] = {
    Cnn: {"image": (1, 3, 16, 16)},
    Vit: {"image": (1, 3, 16, 16)},
    Gru: {"x": (1, 5, 6), "h": (4, 1, 8)},
}


@pytest.fixture(scope="module", autouse=True)
def _one_registry() -> Generator[None, None, None]:
    with one_registry():
        yield


def expected(module: nn.Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return PyTorch's results in inference mode."""
    was = module.training
    module.eval()
    with torch.no_grad():
        found = module(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    module.train(was)
    return {name: item.numpy() for name, item in (found if isinstance(found, dict) else {"output": found}).items()}


@pytest.mark.parametrize("make", EXAMPLES)
def test_a_module_computes_what_pytorch_computes(make: Callable[[], nn.Module]) -> None:
    shapes = EXAMPLES[make]  # type: ignore[index]
    module = seeded(make)
    model = mlfc.compile(module, "llvm", example_inputs={name: torch.zeros(shape) for name, shape in shapes.items()})
    assert model.name == make.__name__.lower()
    assert [(item.name, item.shape) for item in model.inputs] == list(shapes.items())
    rng = np.random.default_rng(1)
    for scale in (0.0, 1e-3, 1.0, 30.0):
        inputs = {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
        wanted = expected(module, inputs)
        found = model.run(inputs)
        # an output must not have the name of an input
        assert list(found) == [f"{name}_out" if name in shapes else name for name in wanted]
        for ours, theirs in zip(found.values(), wanted.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, scale))


def test_buffers_that_forward_writes_are_state(tmp_path: Path) -> None:
    module = seeded(Decoder)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train()
    model = mlfc.compile(module, "llvm", example_inputs=torch.tensor([[0]]))
    assert module.training, "the module is left as it was"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [(item.name, item.shape) for item in model.inputs] == [("token", (1, 1))]
    assert [item.name for item in model.outputs] == ["output"]
    loaded = model.model
    assert sorted(loaded.state) == ["bias", "count", "keys", "values"]
    assert (loaded.state["bias"] == -10).all(), "the first value is the buffer's"
    module.eval()
    for run in range(2):
        token = 3
        for _ in range(Decoder.LENGTH):
            wanted = expected(module, {"token": np.array([[token]])})["output"]
            found = loaded.run({"token": np.array([[token]])})["output"]
            np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
            token = int(wanted.argmax())
        loaded.reset_state()
        module.load_state_dict(before)
        assert run or (loaded.state["count"] == 0).all()
    comparison = model.verify(samples=1)
    assert comparison.reference == "ONNX Runtime"
    assert comparison.is_within


def test_hidden_states_are_tied_by_name() -> None:
    module = seeded(Gru)
    examples = {name: torch.zeros(shape) for name, shape in EXAMPLES[Gru].items()}
    model = mlfc.compile(module, "llvm", example_inputs=examples, states={"h": "h_out"})
    assert [item.name for item in (*model.inputs, *model.outputs)] == ["x", "scores"]
    held = np.zeros(EXAMPLES[Gru]["h"], np.float32)
    for x in np.random.default_rng(1).standard_normal((3, *EXAMPLES[Gru]["x"])).astype(np.float32):
        wanted = expected(module, {"x": x, "h": held})
        held = wanted["h"]
        np.testing.assert_allclose(model.run({"x": x})["scores"], wanted["scores"], rtol=TOLERANCE, atol=TOLERANCE)


class Projected(nn.Module):
    """Layers with projected states, bidirectional and without biases, and one without projection."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True, proj_size=3)
        self.bare = nn.LSTM(6, 5, bias=False, proj_size=2, batch_first=True)
        self.plain = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> dict[str, torch.Tensor]:
        all_steps, (hidden, cell) = self.both(x)
        shorter, (state, more) = self.bare(all_steps, (h, c))
        return {"y": self.plain(shorter)[0], "hidden": hidden, "cell": cell, "state": state, "more": more}


def test_projections_of_lstm_layers_become_steps() -> None:
    module = seeded(Projected)
    shapes = {"x": (1, 2, 4), "h": (1, 1, 2), "c": (1, 1, 5)}
    examples = {name: torch.zeros(shape) for name, shape in shapes.items()}
    imported, params = mlfc.import_model(module, example_inputs=examples)
    assert operators(imported).count("nn.lstm_steps") == 1
    rng = np.random.default_rng(4)
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = mlfc.build(imported, "llvm", params).runtime.run(inputs)
    for ours, theirs in zip(found.values(), expected(module, inputs).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


class Adaptive(nn.Module):
    """Adaptive pooling with windows of several sizes, of one size, and of at most one element."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        planes = x[:, :, 0]
        return {
            "line": nn.functional.adaptive_max_pool1d(planes[:, :, 0], 4),
            "planes": nn.functional.adaptive_max_pool2d(planes, (4, 3)),
            "volumes": nn.functional.adaptive_max_pool3d(x, (3, 2, 9)),
            "even": nn.functional.adaptive_max_pool2d(planes, (1, 7)),
            "means": nn.functional.adaptive_avg_pool3d(x, (2, 4, 3)),
        }


def test_adaptive_pooling_takes_windows_of_several_sizes() -> None:
    example = torch.from_numpy(np.random.default_rng(2).standard_normal((1, 2, 5, 6, 7)).astype(np.float32))
    model = mlfc.compile(Adaptive(), "llvm", example_inputs=example)
    for name, wanted in Adaptive()(example).items():
        np.testing.assert_allclose(model.run(example.numpy())[name], wanted.numpy(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("unoptimized_builds")
def test_a_decoder_generates_the_same_tokens_as_c_here_and_on_a_board(tmp_path: Path) -> None:
    board = need_board("mps3-an547")
    module = seeded(torch_models.Generator)
    model = mlfc.compile(module, "c -mcpu=cortex-m55", example_inputs=torch.tensor([[0]]))
    archive = model.export(tmp_path / "generator.tar", test_vectors=Decoder.LENGTH)
    first = np.array([[3]])
    wanted = [int(expected(module, {"first": first})["output"].item()) for _ in range(Decoder.LENGTH)]
    assert len(set(wanted)) > 2, "tokens that tell steps apart"
    loaded = mlfc.load(archive)
    assert [int(loaded.run({"first": first})["output"].item()) for _ in range(Decoder.LENGTH)] == wanted
    found = run_selftest(archive, board, cflags="-O1")
    assert found.passed, found.lines
    assert found.lines[-1] == f"PASS {Decoder.LENGTH} of {Decoder.LENGTH}, largest difference 0"


@pytest.mark.parametrize("make", [torch_models.Quantized, torch_models.QuantizedPt2e])
def test_quantized_modules_become_integers(make: Callable[[], nn.Module]) -> None:
    module = seeded(make)
    example = {"x": torch.zeros(1, 3, 8, 8)}
    lowered = operators(pipeline.run(*mlfc.import_model(module, example_inputs=example)))
    assert "qnn.conv2d+nn.bias_add+qnn.requantize" in lowered
    model = mlfc.compile(module, "llvm", example_inputs=example)
    rng = np.random.default_rng(1)
    for scale in (0.5, 1.0, 20.0):
        inputs = {"x": (scale * rng.standard_normal((1, 3, 8, 8))).astype(np.float32)}
        steps = (model.run(inputs)["output"] - expected(module, inputs)["output"]) / torch_models.Quantized.STEP
        # PyTorch multiplies by the reciprocal of the scale and rounds; ONNX and mlfc divide
        assert np.abs(steps).max() < 1.01
        assert (np.abs(steps) > 0.01).mean() <= 0.02


def test_names_are_those_of_the_module_and_bytes_do_not_depend_on_the_machine() -> None:
    from mlfc.frontend.torch.capture import capture

    module, image = seeded(Cnn), np.zeros((1, 3, 16, 16), np.float32)
    data = capture(module, image).data
    graph = onnx.load_from_string(data).graph
    nodes = {node.name for node in graph.node}
    # the exporter folds the normalization into the preceding convolution
    assert {"features.1/Conv", "features.2/Clip", "features.3/Conv", "head/Gemm", "LogSoftmax"} <= nodes
    _, params = mlfc.import_model(module, example_inputs=image)
    assert {*params} == {name for name in module.state_dict() if not name.startswith("features.1.")}
    assert str(Path(__file__).parent).encode() not in data
    assert str(Path(torch.__file__).parent).encode() not in data
    assert capture(module, image).data == data
    assert module.training
    assert all(part.training for part in module.modules())


def test_results_have_the_names_that_forward_gives_them() -> None:
    data, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([0.5])
    module = Names()
    given = {"w": torch.zeros(2, 3), "factor": 3, "bias": torch.zeros(1)}
    model = mlfc.compile(module, "llvm", example_inputs=given)
    assert [item.name for item in model.inputs] == ["w", "bias"]
    found = model.run({"w": data, "bias": bias})
    wanted = {
        "w_out_1": data * 6,
        "same": data,
        "weight": np.float32([2, 2, 2]),
        "sum": data + 5,
        "nested_0": data + 1,
        "nested_1_0": data + bias,
        "again": data,
        "w_out": data - 1,
    }
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def line_of(text: str) -> str:
    """Return the location in messages of the line of `tests/torch_models.py` that contains a text."""
    lines = inspect.getsource(torch_models).splitlines()
    return f"torch_models.py, line {next(i for i, line in enumerate(lines, 1) if text in line)}"


X = torch.ones(2, 3)
NO_EXPORT = "torch.export cannot capture the module: "
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "a branch": (torch_models.Branches(), X, f"Branches ({line_of('the line that messages name')}): {NO_EXPORT}"),
    "an inner branch": (
        after_linear(torch_models.Branches()),
        X,
        f"module '1' ({line_of('the line that messages name')}): {NO_EXPORT}forward depends on the values of a tensor",
    ),
    "other code": (torch_models.UsesNumpy(), X, f"UsesNumpy ({line_of('x.numpy()')}): {NO_EXPORT}.numpy()"),
    "shapes that do not fit": (nn.Sequential(nn.Linear(4, 4)), X, f"{NO_EXPORT}a and b must have same reduction dim"),
    "a missing argument": (Gru(), X, f"Gru: {NO_EXPORT}missing a required argument: 'h'"),
    "an operator without ONNX": (
        after_linear(torch_models.SingularValues()),
        X,
        f"module '1' ({line_of('svdvals')}): torch.onnx cannot convert the module: operator 'aten._linalg_svd.default'",
    ),
    "an operator that we do not have": (
        after_linear(torch_models.Positions()),
        X,
        f"node '1/NonZero' ({line_of('x.nonzero()')}): NonZero with an input 'X' that is not constant",
    ),
    "a written input": (torch_models.WritesInput(), X, "forward writes to its input 'x'. Return the new value"),
    "text": (torch_models.ReturnsText(), X, "expected forward to return tensors, got str"),
    "TorchScript": (torch.jit.script(nn.ReLU()), X, "expected a torch.nn.Module, got a TorchScript module"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled_gives_one_message(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    module, example, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        mlfc.compile(module, "llvm", example_inputs=example, executor="aot")
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""


def test_programs_that_were_exported_before() -> None:
    batch = torch.export.Dim("batch", min=2, max=32)
    program = torch.export.export(nn.Linear(3, 2).eval(), (X,), dynamic_shapes=({0: batch},))
    made = mlfc.compile(program, "llvm")
    assert made.outputs[0].shape == ("batch", 2)
    assert made.model.extents == {"batch": (2, 32)}  # type: ignore[attr-defined]
    stored = io.BytesIO()
    torch.export.save(program, stored)  # without the names of dimensions
    stored.seek(0)
    assert mlfc.compile(torch.export.load(stored), "llvm").model.extents == {"input_0": (2, 32)}  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match=r"require the virtual machine.*got the executor 'aot'.*--shape"):
        mlfc.compile(program, "llvm", executor="aot")
    assert mlfc.compile(program, "llvm", shapes={"input": (5, 3)}).outputs[0].shape == (5, 2)
    with pytest.raises(OptionError, match=r"option example_inputs requires a torch\.nn\.Module, got ExportedProgram"):
        mlfc.compile(program, example_inputs=X)
    training = torch.export.export(nn.BatchNorm1d(3), (X,))
    with pytest.raises(UnsupportedError, match=r"writes to the buffer 'running_mean'.*call module\.eval\(\) before"):
        mlfc.compile(training)
    converted = torch.onnx.export(nn.ReLU(), (X,), dynamo=True, verbose=False)
    assert mlfc.compile(converted, "llvm").run(X.numpy() - 2)["relu"].max() == 0


def test_misuse_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(3, 2)
    said: list[tuple[type[MlfcError], str, Callable[[], object]]] = [
        (OptionError, "Linear requires example inputs", lambda: mlfc.compile(module)),
        (OptionError, "expected a target string, got tuple", lambda: mlfc.compile(module, (X,))),  # type: ignore[arg-type]
        (OptionError, "expected example_inputs to be a tuple", lambda: mlfc.compile(module, example_inputs=3)),
        (OptionError, "example_inputs requires a torch", lambda: mlfc.compile("a.onnx", example_inputs=X)),
        (InputError, "Load the weights into their module", lambda: mlfc.compile(module.state_dict())),
        (InputError, "pass a torch.nn.Module with example_inputs", lambda: mlfc.compile(nn.Linear)),
    ]
    for kind, text, attempt in said:
        with pytest.raises(kind, match=text):
            attempt()
    assert [type(item) for item in mlfc.check(module)] == [OptionError]
    with monkeypatch.context() as patch:
        patch.setattr("mlfc.frontend.torch.capture._WEIGHTS_LIMIT", 31)
        with pytest.raises(ModelError, match=r"the weights have 32 bytes, more than the 31.*external_data=True"):
            mlfc.compile(module, example_inputs=X)
    monkeypatch.delitem(sys.modules, "mlfc.frontend.torch.capture")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(OptionError, match=r"requires the package onnxscript.*pip install '\.\[torch\]'"):
        mlfc.compile(module, example_inputs=X)


def program(section: str) -> str:
    return "\n".join(re.findall(rf"^```python {section}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.usefixtures("quick_builds")
def test_the_programs_for_pytorch_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    exec(program("torch"), names)
    np.testing.assert_array_equal(names["found"], np.full(4, 2, np.float32))
    net, image = names["net"], names["image"]
    assert isinstance(net, torch.nn.Module)
    assert isinstance(image, torch.Tensor)
    with torch.no_grad():
        wanted = net(image)["scores"].numpy()
    found = mlfc.load(tmp_path / "net.tar").run({"image": image})
    np.testing.assert_allclose(found["scores"], wanted, rtol=1e-5, atol=1e-6)


if INSTALLED:

    @pytest.mark.parametrize("section", INSTALLED)
    def test_the_programs_for_other_frameworks_run(
        section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        text = program(section) + AGREES.replace("RESULT", OTHERS[section][1])
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)


def test_every_section_has_a_program() -> None:
    assert all(program(section) for section in ("torch", *OTHERS))


class Masked(nn.Module):
    """Two inputs that share a dimension; one has another dynamic dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).sum(1) * mask


def test_dimensions_of_torch_export_keep_names_and_bounds() -> None:
    module = seeded(Masked)
    batch, time = torch.export.Dim("batch", min=1, max=32), torch.export.Dim("time", max=16)
    examples = (torch.zeros(3, 5, 4), torch.zeros(3, 3))
    made = mlfc.compile(module, "llvm", example_inputs=examples, dynamic_shapes=({0: batch, 1: time}, {0: batch}))
    assert [str(item) for item in made.inputs] == ["x: float32[batch, time, 4]", "mask: float32[batch, 3]"]
    symbols = {(item.name, item.low, item.high) for item in made.model.executable.symbols}  # type: ignore[attr-defined]
    assert symbols == {("batch", 1, 32), ("time", 1, 16)}
    rng = np.random.default_rng(5)
    for rows, steps in ((1, 1), (1, 16), (32, 2)):
        given = {"x": rng.standard_normal((rows, steps, 4), np.float32), "mask": rng.random((rows, 3), np.float32)}
        found = made.run(given)["output"]
        np.testing.assert_allclose(found, expected(module, given)["output"], rtol=1e-5, atol=1e-5)
    with pytest.raises(MlfcError, match="33"):
        made.run({"x": np.zeros((33, 5, 4), np.float32), "mask": np.zeros((33, 3), np.float32)})
    # by name, with an expression of a dimension, and with a dimension that PyTorch names
    half = torch.export.Dim("half", min=1, max=8)
    again, _ = mlfc.import_model(
        module,
        example_inputs={"x": torch.zeros(4, 5, 4), "mask": torch.zeros(4, 3)},
        dynamic_shapes={"x": {0: 2 * half, 1: torch.export.Dim.AUTO}, "mask": {0: 2 * half}},
    )
    assert [str(item.type.shape[0]) for item in again.main.params[:2]] == ["2 * half", "2 * half"]  # type: ignore[union-attr]
    assert str(again.main.params[0].type.shape[1]) == "x_1"  # type: ignore[union-attr]


class Fading(nn.Module):
    """A module that adds a running sum of the rows, which halves in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        self.h.copy_(self.h * 0.5 + x.sum(0, keepdim=True))
        return x * scale + self.h


def test_buffers_are_state_beside_open_dimensions() -> None:
    rows, x, scale = torch.export.Dim("rows", min=1, max=32), torch.zeros(3, 4), torch.ones(4)
    said: tuple[Any, ...] = (
        ((x, scale), ({0: rows}, None)),
        ({"scale": scale, "x": x}, {"x": {0: rows}, "scale": None}),
    )
    for examples, dynamic_shapes in said:
        made = mlfc.compile(Fading(), "llvm", example_inputs=examples, dynamic_shapes=dynamic_shapes)
        assert made.model.extents == {"rows": (1, 32)}  # type: ignore[attr-defined]
        module, rng = Fading(), np.random.default_rng(6)
        for count in (2, 1, 5):
            given = {"x": rng.standard_normal((count, 4), np.float32), "scale": np.full(4, 2, np.float32)}
            wanted = module(**{name: torch.from_numpy(array) for name, array in given.items()})
            np.testing.assert_allclose(made.run(given)["output"], wanted.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(made.state["h"], module.h.numpy(), rtol=1e-5)


def test_dynamic_shapes_that_do_not_fit_are_refused() -> None:
    examples, batch = (torch.zeros(3, 5, 4), torch.zeros(3, 3)), torch.export.Dim("batch")
    with pytest.raises(OptionError, match="2 arguments"):
        mlfc.compile(Masked(), example_inputs=examples, dynamic_shapes=({0: batch},))
    with pytest.raises(OptionError, match="dynamic_shapes"):
        mlfc.import_model(b"", dynamic_shapes=({0: batch},))


def test_averages_have_the_divisor_that_was_asked_for() -> None:
    """Check `divisor_override`, which PyTorch's exporter omits."""

    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        plane = nn.functional.avg_pool2d(
            x, (3, 2), (2, 3), 1, ceil_mode=True, count_include_pad=False, divisor_override=5
        )
        return plane, nn.functional.avg_pool3d(x[None], 2, divisor_override=-3), nn.functional.avg_pool2d(x, 2)

    module = type("Pools", (nn.Module,), {"forward": forward})()
    x = np.random.default_rng(5).standard_normal((2, 3, 7, 9)).astype(np.float32)
    found = mlfc.compile(module, "llvm", example_inputs=(x,)).run(x)
    for ours, theirs in zip(found.values(), module(torch.from_numpy(x)), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=TOLERANCE, atol=TOLERANCE)


def test_formulas_that_overflow_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.special_erfcx\.default' has no ONNX equivalent that is correct"):
        mlfc.compile(type("Erfcx", (nn.Module,), {"forward": lambda _, x: torch.special.erfcx(x)})(), example_inputs=X)
