"""The public API: importable names, the result of `mlfc.compile`, and the representation of objects."""

from __future__ import annotations

import inspect as python_inspect
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mlfc
from mlfc.errors import InputError, ModelError, OptionError
from mlfc.support.text import Displayed, html_table

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
IMAGE = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)


@pytest.fixture(scope="module")
def model() -> mlfc.CompiledModel:
    return mlfc.compile(DIGITS / "digits_int8.tflite")


def classes(package: object) -> list[type]:
    found = (getattr(package, name) for name in package.__all__)  # type: ignore[attr-defined]
    return [item for item in found if python_inspect.isclass(item) and not issubclass(item, BaseException)]


@pytest.mark.parametrize("package", [mlfc, mlfc.runtime], ids=["mlfc", "runtime"])
def test_every_public_class_shows_itself(package: object) -> None:
    protocols = {mlfc.runtime.Runnable}
    assert [item for item in classes(package) if not issubclass(item, Displayed) and item not in protocols] == []


def test_functions_have_precedence_over_packages_of_their_names() -> None:
    from mlfc.verify import Tolerance  # imports the package

    assert Tolerance
    assert python_inspect.isfunction(mlfc.verify)
    assert python_inspect.isfunction(mlfc.validate)
    assert {"compile", "verify", "runtime"} <= set(dir(mlfc))
    with pytest.raises(AttributeError, match="module 'mlfc' has no attribute 'complie'"):
        mlfc.complie  # noqa: B018


def test_documentation_names_what_is_public_alone() -> None:
    page = (DIGITS.parents[1] / "docs" / "reference" / "python.md").read_text()
    modules = ("byoc", "compat.onnxruntime", "errors", "onnx_backend", "runtime", "torch", "verify")
    public = {"mlfc", *(f"mlfc.{name}" for name in modules)}
    assert {*re.findall(r"(?:from|import) (mlfc[\w.]*)", page)} <= public
    attributes = {*re.findall(r"\bmlfc\.(runtime\.\w+|(?!runtime\b|tar\b)\w+)", page)} - {"byoc", "compat", "torch"}
    listed = {*mlfc.__all__, *(f"runtime.{name}" for name in mlfc.runtime.__all__)}
    assert attributes <= listed


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (mlfc.import_model, {"shapes", "values", "numerics", "byoc", "limit_factor"}),
        (mlfc.check, {"shapes", "values", "byoc", "target"}),
        (mlfc.build, {"target", "params", "executor", "pools", "parallel"}),
        (mlfc.compile, {"target", "shapes", "numerics", "executor", "specialize"}),
        (mlfc.verify, {"artifact", "shapes", "board", "samples", "rtol"}),
        (mlfc.tune, {"target", "output", "trials", "shapes"}),
    ],
)
def test_functions_list_and_document_their_options(function: Any, options: set[str]) -> None:
    parameters = python_inspect.signature(function).parameters
    assert options < set(parameters)
    documented = re.findall(r"^(\w+) : ", python_inspect.getdoc(function).partition("\nReturns\n")[0], re.MULTILINE)
    assert documented == list(parameters)
    near = max(options, key=len)
    with pytest.raises(OptionError, match=f"unknown option '{near}x' of {function.__name__}; nearest: '{near}'"):
        function("model.onnx", **{f"{near}x": 1})


def test_an_archive_is_compiled_again_with_known_options_alone() -> None:
    with pytest.raises(OptionError, match="unknown option 'optimise' of rebuild; nearest: 'optimize'"):
        mlfc.rebuild("model.tar", optimise="size")


def test_modules_and_parameters_are_arguments_by_position_or_name() -> None:
    module, params = mlfc.import_model(model=DIGITS / "digits_int8.tflite")
    by_name = mlfc.build(mod=module, params=params, target="c", module_name="digits", dry_run=True)
    assert by_name.target == mlfc.build(module, "c", params, module_name="digits", dry_run=True).target
    with pytest.raises(OptionError, match=r"specialize='auto' requires mlfc\.compile"):
        mlfc.build(module, "c", params, specialize="auto")


def test_annotations_are_for_type_checkers() -> None:
    assert resources.files("mlfc").joinpath("py.typed").is_file()


def test_a_compiled_model_runs_and_is_written(model: mlfc.CompiledModel, tmp_path: Path) -> None:
    expected = model.run(IMAGE)["probabilities"]
    archive = model.export(tmp_path / "digits.tar")
    library = model.export_library(tmp_path / "digits.so")
    for path in (archive, library):
        np.testing.assert_array_equal(mlfc.load(path).run(IMAGE)["probabilities"], expected)
    scores = np.empty_like(expected)
    assert model.bind({"image": IMAGE}, {"probabilities": scores})() == 0
    np.testing.assert_array_equal(scores, expected)
    assert model.inspect() == mlfc.inspect(archive)
    assert not mlfc.validate(archive)


def test_a_compiled_model_is_compared_with_its_reference(model: mlfc.CompiledModel) -> None:
    pytest.importorskip("ai_edge_litert")
    with pytest.MonkeyPatch.context() as monkeypatch:  # without an export
        monkeypatch.setattr(mlfc.CompiledModel, "export", None)
        assert model.verify(samples=2).is_within
    assert mlfc.verify((DIGITS / "digits_int8.tflite").read_bytes(), samples=1).is_within
    assert mlfc.verify(DIGITS / "digits_int8.tflite", model.model, samples=1).is_within
    with pytest.raises(OptionError, match="expected a path or a loaded model, got 5"):
        mlfc.verify(DIGITS / "digits_int8.tflite", 5)
    with pytest.raises(OptionError, match="expected an archive to run on a board"):
        mlfc.verify(DIGITS / "digits_int8.tflite", model.model, board="mps2-an386")
    assert mlfc.verify(onnx.load(DIGITS / "digits.onnx"), samples=1, target="llvm").is_within
    with pytest.raises(ModelError, match=r"^model: ONNX Runtime cannot open the model: .*Load model from model failed"):
        mlfc.verify(b"")
    assert model.verify(samples=1, layers=True).layers


@pytest.mark.parametrize("form", ["path", "text", "bytes", "message"])
def test_models_are_taken_in_every_form(form: str) -> None:
    path = DIGITS / "digits.onnx"
    given = {"path": path, "text": str(path), "bytes": path.read_bytes(), "message": onnx.load(path)}[form]
    found = mlfc.compile(given, executor="graph", optimize="size")
    assert found.name == ("digits" if form in ("path", "text") else "model")
    assert found.factory.graph_json
    assert found.run(np.zeros((1, 1, 8, 8), np.float32))["probabilities"].shape == (1, 10)


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(ModelError, match=r"onnx\.ModelProto cannot be written: too large.*save_as_external_data=True"):
        mlfc.compile(TooLarge())
    with pytest.raises(InputError, match=r"an onnx\.ModelProto or a torch\.nn\.Module, got builtins\.int"):
        mlfc.compile(3)  # type: ignore[arg-type]


def test_a_graph_executor_of_an_aot_module_says_what_to_do(model: mlfc.CompiledModel) -> None:
    graph_json, lib, _ = model.factory
    with pytest.raises(OptionError, match=r"built for the AOT executor.*executor='graph'"):
        mlfc.runtime.GraphExecutor(graph_json, lib, mlfc.cpu(0))


class TooLarge:
    def SerializeToString(self) -> bytes:  # noqa: N802  (protobuf's)
        raise ValueError("too large")


class Checked(HTMLParser):
    """A parser that raises for tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(html: str) -> str:
    parser = Checked()
    parser.feed(html)
    assert not parser.open
    return parser.text


def test_objects_show_themselves(model: mlfc.CompiledModel, tmp_path: Path) -> None:
    profile = mlfc.load_profiled(model.export(tmp_path / "digits.tar")).profile({"image": IMAGE}, repeat=2)
    module, _ = mlfc.import_model(DIGITS / "digits_int8.tflite")
    executor = model.factory["default"](mlfc.cpu(0))
    objects = [
        model, model.factory, module, profile, profile.operators[0], model.inputs[0], mlfc.cpu(0), executor,
        model.model, model.bind({"image": IMAGE}), model.factory.lib, model.factory.runtime,
        mlfc.runtime.array([1, 2]), mlfc.load(model.export(tmp_path / "again.tar")), mlfc.cpu(0).api,
        model.memory_map(), model.factory.plan, mlfc.examine(b"nonsense"), mlfc.InferenceSession(model),
    ]  # fmt: skip
    for item in objects:
        assert type(item).__name__ in repr(item)
        assert len(repr(item)) < 400, repr(item)
        assert shown(item._repr_html_()) == shown(item._repr_html_())
    assert repr(model).startswith("<CompiledModel name=digits_int8 target=c -mcpu=auto -mtriple=")
    assert " executor=aot inputs=[image: int8[1, 8" in repr(model)
    assert "CONV_2D" in shown(profile._repr_html_())
    assert "MLF100" in shown(mlfc.examine(b"nonsense")._repr_html_())
    memory, archived = model.memory_map(), mlfc.memory_map(model.export(tmp_path / "map.tar"))
    assert archived.svg() != memory.svg()  # of code for any processor
    (workspace,) = re.findall(r"workspace=[\d,]+ bytes", repr(model))
    assert workspace in repr(memory)
    assert workspace not in repr(archived)
    assert memory.save(tmp_path / "map.svg").read_text() in memory._repr_html_()
    assert re.search(r"workspace=[\d,]+ bytes .*peak=[\d,]+ bytes in call \d", repr(memory))


def test_html_is_escaped_and_bounded() -> None:
    html = html_table("<a>", ["&"], [["<script>", "x" * 10_000, [1, 2]]])
    assert "<script>" not in html
    assert len(html) < 1000
    assert shown(html).startswith("<a>&<script>xxx")
