"""Shapes with dynamic dimensions in user input: ``--shape``, ``build.toml``, ``mlfc.Dim``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

import mlfc
from mlfc.cli.build_file import read_options
from mlfc.cli.options import Inputs
from mlfc.errors import MlfcError, OptionError
from mlfc.frontend.shapes import check_bounds, parse_shapes
from mlfc.relay import ir
from mlfc.support.dims import LARGEST, Dim, Symbol
from tests.onnx_models import model as onnx_model
from tests.tflite_builder import Op, T, build


def bounds(extent: Any) -> tuple[str, int, int]:
    assert isinstance(extent, Dim)
    assert extent.symbol is not None
    return extent.symbol.name, extent.symbol.low, extent.symbol.high


def test_names_stay_open_with_their_bounds() -> None:
    shapes = parse_shapes(["a=b=batch:1..32, 3,?", "ids=batch,length:..7,k:4..,n:0..5", "y=2"])
    assert list(shapes) == ["a=b", "ids", "y"]
    batch, three, unnamed = shapes["a=b"]
    assert (bounds(batch), three, unnamed) == (("batch", 1, 32), 3, None)
    assert shapes["ids"][0] == batch
    wanted = [("batch", 1, 32), ("length", 1, 7), ("k", 4, LARGEST), ("n", 0, 5)]
    assert list(map(bounds, shapes["ids"])) == wanted
    assert bounds(parse_shapes(["x=n"])["x"][0]) == ("n", 1, LARGEST)
    assert parse_shapes(["x=1,3,224"]) == {"x": (1, 3, 224)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=a:32..1", "expected bounds such as 1..32 of the dimension 'a', got 32..1"),
        ("x=a:0..0", "expected bounds such as 1..32 of the dimension 'a', got 0..0"),
        ("x=a:1..9999999999", "got 1..9999999999"),
        ("x=a:1..99999999999", "expected NAME=1,3,224,224, got 'x=a:1..99999999999'"),
        ("x=a:..", "expected bounds such as 1..32, got 'a:..'"),
        ("x=a:1..2,a:1..3", "expected one pair of bounds for the dimension 'a', got 1..2 and 1..3"),
        ("x=a:3", "expected NAME=1,3,224,224, got 'x=a:3'"),
        ("x=a-b", "and for an open dimension a name"),
        ("x=0", "expected NAME=1,3,224,224"),
        ("x=1,,2", "expected NAME=1,3,224,224"),
        ("=n", "expected NAME=1,3,224,224"),
        (f"x={','.join('n' * 33)}", "33 dimensions are too many"),
    ],
)
def test_what_does_not_read_so_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=r"^--shape: ") as caught:
        parse_shapes([text])
    assert message in str(caught.value)


def test_names_in_python_have_bounds_and_arithmetic() -> None:
    batch = mlfc.Dim("batch", 1, 32)
    assert bounds(batch) == ("batch", 1, 32)
    assert (2 * batch + 1).bounds == (3, 65)
    check_bounds({"x": (batch, 3), "y": (mlfc.Dim("batch", 1, 32), mlfc.Dim("n"))})
    with pytest.raises(OptionError, match=r"dimension 'batch', got 1\.\.32 and 1\.\.\."):
        check_bounds({"x": (batch,), "y": (mlfc.Dim("batch"),)})
    for wrong in ((3,), ("a b",), ("",), ("n", 2, 1), ("n", -1), ("n", 1.0), ("n", True), ("n", 1, 1 << 31)):
        with pytest.raises(OptionError, match=r"^shapes: expected (a name|bounds)"):
            mlfc.Dim(*wrong)  # type: ignore[arg-type]


def test_build_files_give_them_too(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text('shape = ["x=batch:1..32,3", "y=batch"]\n')

    def command(shape: list[str] | None = None) -> None: ...

    context = typer.Context(typer.main.get_command(_app(command)))
    read_options(context, tmp_path / "build.toml")
    assert context.default_map is not None
    arguments = Inputs(context.default_map["shape"], None, None, None).keywords()
    assert {name: tuple(map(str, shape)) for name, shape in arguments["shapes"].items()} == {
        "x": ("batch", "3"),
        "y": ("batch",),
    }


def _app(command: Any) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)
    return app


def test_a_dimension_without_a_name_has_that_of_the_model() -> None:
    item = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [item("x", kind, ["rows", "?", 3])], [item("y", kind, None)]
    )
    data = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    for text, shown in (("x=?,?,3", "(rows, x_1, 3)"), ("x=?,k:2..4,3", "(rows, k, 3)"), ("x=?,?,?", "(rows, x_1, 3)")):
        module, _ = mlfc.import_model(data, shapes=parse_shapes([text]), dynamic=True)
        assert str(module.main.body.type) == f"Tensor[{shown}, float32]"
    with pytest.raises(OptionError, match="is 3, the given shape"):
        mlfc.import_model(data, shapes=parse_shapes(["x=?,?,n"]), dynamic=True)


SIZES = ["n", 1.5, True, (1, 2, 3), Symbol("n", 1, 8), ("n", 1, 8), np.int64(3)]


@pytest.mark.parametrize("size", SIZES, ids=repr)
@pytest.mark.parametrize("is_onnx", [True, False], ids=["onnx", "tflite"])
def test_sizes_that_python_passes_are_checked_alike(size: Any, *, is_onnx: bool) -> None:
    if is_onnx:
        model = onnx_model([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": (None, 4)}, ["y"]).SerializeToString()
    else:
        model = build([T("x", (1, 4)), T("y", (1, 4))], [Op("RELU", ["x"], ["y"])], ["x"], ["y"])

    def imported() -> str:
        module, _ = mlfc.import_model(model, dynamic=True, shapes={"x": (size, 4)})
        return str(ir.tensor_type(module.main.params[0]).shape[0])

    if isinstance(size, (np.int64, Symbol)) or size == ("n", 1, 8):
        assert imported() == ("3" if isinstance(size, np.int64) else "n")
    else:
        with pytest.raises(MlfcError, match=f"expected an extent or a range of extents, got {re.escape(repr(size))}"):
            imported()
