"""Modules: import trees without cycles, kinds with loaders, and modules that are only kept for the next export."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlfc.errors import ArchiveError, InputError, ModelError, OptionError, RunError
from mlfc.runtime import Module, OnnxRuntimeModule, OpaqueModule, load_from_bytes, register_loader


class Constants(Module):
    """A user-defined kind."""

    type_key = "constants"

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self.values = values

    def find_function(self, name: str) -> Any:
        return (lambda: self.values[name]) if name in self.values else None


def tree() -> tuple[Module, Module, Module]:
    root, left, right = Constants({"a": 1}), Constants({"b": 2}), Constants({"a": 3, "c": 4})
    root.import_module(left)
    left.import_module(right)
    return root, left, right


def test_functions_are_found_here_and_in_imports_when_asked() -> None:
    root, left, right = tree()
    assert root["a"]() == 1
    assert root.get_function("c", query_imports=True)() == 4
    assert left.get_function("a", query_imports=True)() == 3
    assert root.implements_function("b", query_imports=True)
    assert not root.implements_function("b")
    assert list(root.walk()) == [root, left, right]
    with pytest.raises(OptionError, match="module 'constants': unknown function 'b'"):
        root["b"]
    with pytest.raises(OptionError, match="and its imports: unknown function 'z'"):
        root.get_function("z", query_imports=True)


def test_a_cycle_is_refused_and_a_diamond_is_not() -> None:
    root, left, right = tree()
    for module in (root, left):
        with pytest.raises(OptionError, match="imports this 'constants' module already"):
            right.import_module(module)
    with pytest.raises(OptionError, match="already"):
        root.import_module(root)
    with pytest.raises(InputError, match=r"expected a module to import, got 'left.so'"):
        root.import_module("left.so")  # type: ignore[arg-type]
    root.import_module(right)
    assert list(root.walk()) == [root, left, right]


def test_abilities_of_a_plain_module_are_none() -> None:
    module = Constants({})
    assert (module.is_runnable, module.is_binary_serializable, module.is_dso_exportable) == (False, False, False)
    assert (module.format, module.get_source()) == ("bin", "")
    with pytest.raises(OptionError, match="'constants' cannot be stored as bytes"):
        module.save_to_bytes()


def test_a_kind_of_ones_own_is_loaded_by_its_loader() -> None:
    @register_loader("test-letters")
    def letters(data: bytes) -> Module:
        return Constants({letter: index for index, letter in enumerate(data.decode())})

    assert load_from_bytes("test-letters", b"xy")["y"]() == 1
    with pytest.raises(OptionError, match="a loader for modules of kind 'test-letters' is already registered"):
        register_loader("test-letters")


def test_an_unknown_kind_is_kept_and_says_what_it_is() -> None:
    module = load_from_bytes("neural-chip", b"\x01\x02", "elf")
    assert isinstance(module, OpaqueModule)
    assert (module.type_key, module.format, module.save_to_bytes()) == ("neural-chip", "elf", b"\x01\x02")
    assert not module.is_runnable
    assert module.is_binary_serializable
    with pytest.raises(OptionError, match=r"no loader for modules of kind 'neural-chip'.*register_loader"):
        module["main"]


@pytest.fixture(scope="module")
def model() -> bytes:
    """Return ``s, d = a + b, a - b`` on float32[2, 3]."""
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "absd"}
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Sub", ["a", "b"], ["d"])]
    graph = helper.make_graph(nodes, "g", [infos["a"], infos["b"]], [infos["s"], infos["d"]])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 0.5, np.float32)


def test_onnx_runtime_runs_a_module_before_and_after_storing(model: bytes) -> None:
    pytest.importorskip("onnxruntime")
    made = OnnxRuntimeModule(model, "both")
    stored = made.save_to_bytes()
    # the documented layout, written by hand
    assert stored == struct.pack("<Q4sQ", 4, b"both", len(model)) + model
    loaded = load_from_bytes("onnxruntime", stored)
    for module in (made, loaded):
        total, difference = module["both"](A, B)
        np.testing.assert_array_equal(total, A + B)
        np.testing.assert_array_equal(difference, A - B)
        np.testing.assert_array_equal(module["run"]({"b": B, "a": A})["d"], A - B)
        out = np.empty((2, 2, 3), np.float32)
        module["both"](A, B, out[0], out[1])
        np.testing.assert_array_equal(out, [A + B, A - B])
    assert loaded.save_to_bytes() == stored
    assert (loaded.type_key, loaded.is_runnable, loaded.is_binary_serializable) == ("onnxruntime", True, True)


def test_onnx_runtime_faults_are_ours(model: bytes) -> None:
    pytest.importorskip("onnxruntime")
    module = OnnxRuntimeModule(model)
    with pytest.raises(InputError, match="2 inputs, and 2 outputs or none, not 3 arrays"):
        module["main"](A, B, A)
    with pytest.raises(InputError, match=r"output 1 is float32\[2, 3\], not float64\[2, 3\]"):
        module["main"](A, B, A.copy(), A.astype(np.float64))
    with pytest.raises(RunError, match="ONNX Runtime failed"):
        module["main"](A, B[:1, :1, None])
    with pytest.raises(ModelError, match="rejects the model"):
        OnnxRuntimeModule(b"no model")["main"](A)
    with pytest.raises(OptionError, match="must not be empty"):
        OnnxRuntimeModule(model, "")


def test_a_missing_onnx_runtime_is_said_with_the_way_out(model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OptionError, match="Run: pip install onnxruntime"):
        OnnxRuntimeModule(model)["main"](A, B)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "length of the symbol"),
        (struct.pack("<Q", 1 << 60), "the symbol needs"),
        (struct.pack("<Q1sQ", 1, b"m", 9), "the model needs 9 bytes, 0 are left"),
        (struct.pack("<Q1sQ1s", 1, b"m", 0, b"x"), "1 bytes follow the model"),
        (struct.pack("<Q1sQ", 1, b"\xff", 0), "not UTF-8"),
        (struct.pack("<QQ", 0, 0), "the symbol is empty"),
    ],
)
def test_damaged_bytes_of_the_kind_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        load_from_bytes("onnxruntime", data)
