"""Modules that ONNX Runtime runs: operators or subgraphs of a model without generated code.

Stored form of the kind ``onnxruntime``, little-endian and without padding, as TVM stores modules of JSON runtimes:

| field | encoding |
|---|---|
| symbol: the name of the module's function | u64 length and UTF-8 bytes |
| model: an ONNX model | u64 length and bytes |

Nothing follows the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mlfc.errors import ArchiveError, InputError, ModelError, OptionError, RunError
from mlfc.runtime.modules.module import Function, Module, register_loader
from mlfc.support.stream import Cursor, encode_string
from mlfc.support.tensor_info import Array

_PLACE = "module of the kind 'onnxruntime'"


class OnnxRuntimeModule(Module):
    """An ONNX model as a module with one function.

    Parameters
    ----------
    model : bytes
        The ONNX model; ONNX Runtime reads it at the first run.
    symbol : str
        The function's name. It takes the inputs in the model's order and returns the outputs as a tuple; if arrays for
        the outputs follow the inputs, as executors call operators, it writes to them.
    """

    type_key = "onnxruntime"
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, model: bytes, symbol: str = "main") -> None:
        super().__init__()
        if not symbol or "\0" in symbol:
            raise OptionError("a function's name must not be empty nor hold a NUL", place=_PLACE)
        self.symbol = symbol
        self._model = model

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        return encode_string(self.symbol) + encode_string(self._model)

    def find_function(self, name: str) -> Function | None:
        """Return the function under its symbol, ``run`` under ``run``."""
        functions: dict[str, Function] = {"run": self.run, self.symbol: self._call}
        return functions.get(name)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model on inputs by name; return its outputs by name.

        Raises
        ------
        OptionError
            If ONNX Runtime is not installed.
        ModelError
            If it rejects the model.
        RunError
            If it rejects the inputs, or fails.
        """
        session = self._session
        names = [output.name for output in session.get_outputs()]
        try:
            results = session.run(names, dict(inputs))
        except Exception as error:  # its errors have no other common base class
            raise RunError(f"ONNX Runtime failed: {error}", place=self.symbol) from error
        return dict(zip(names, results, strict=True))

    def _call(self, *arrays: Any) -> tuple[Array, ...]:
        session = self._session
        names = [item.name for item in session.get_inputs()]
        count = len(session.get_outputs())
        targets: Sequence[Any] = arrays[len(names) :]
        if len(arrays) < len(names) or len(targets) not in (0, count):
            raise InputError(
                f"it takes {len(names)} inputs, and {count} outputs or none, not {len(arrays)} arrays",
                place=self.symbol,
            )
        given = [_shaped(array, item.shape) for array, item in zip(arrays, session.get_inputs(), strict=False)]
        results = tuple(self.run(dict(zip(names, given, strict=True))).values())
        for index, (target, result) in enumerate(zip(targets, results, strict=False)):
            if target.size != result.size or target.dtype != result.dtype:
                raise InputError(
                    f"output {index} is {result.dtype}{list(result.shape)}, not {target.dtype}{list(target.shape)}",
                    place=self.symbol,
                )
            np.copyto(target, result.reshape(target.shape))
        return results

    @cached_property
    def _session(self) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise OptionError(
                "modules of the kind 'onnxruntime' need ONNX Runtime, which is not installed",
                place=self.symbol,
                next_step="Run: pip install onnxruntime",
            ) from error
        try:
            return onnxruntime.InferenceSession(self._model, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no other common base class
            raise ModelError(f"ONNX Runtime rejects the model: {error}", place=self.symbol) from error


def _shaped(array: Any, shape: Sequence[Any]) -> Any:
    """Return an array in the shape declared by the model: executors may pass it in another shape."""
    fixed = all(isinstance(extent, int) for extent in shape)
    fits = fixed and isinstance(array, np.ndarray) and array.size == math.prod(shape)
    return array.reshape(tuple(shape)) if fits else array


@register_loader("onnxruntime")
def _load(data: bytes | memoryview) -> Module:
    take = Cursor(data, 0, _PLACE)
    symbol = take.text("the symbol")
    model = bytes(take.string("the model"))
    take.end("the model")
    if not symbol or "\0" in symbol:
        raise ArchiveError("the symbol is empty or holds a NUL", place=_PLACE)
    return OnnxRuntimeModule(model, symbol)
