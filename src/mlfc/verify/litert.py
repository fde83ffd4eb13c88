"""Reference results of TFLite models: LiteRT with its reference kernels and all tensors preserved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError, ModelError, ToolchainError
from mlfc.support.tensor_info import Array


def reference(model: str | Path | bytes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a TFLite model with LiteRT's reference kernels; see `LiteRtReference` for operators without one.

    `model`: the model file or its contents.
    `inputs`: a value for each input, by tensor name. A shape that differs from the file's resizes the input.

    Returns the value of every activation tensor by name (a tensor without a name is ``tensor_<index>``); constants and
    scratch tensors are omitted. Raises ToolchainError if LiteRT is not installed; InputError if the inputs do not match
    the model; ModelError if LiteRT rejects the model.
    """
    return LiteRtReference(model).run(inputs)


class LiteRtReference:
    """A TFLite model opened by LiteRT; `run` may be called many times.

    LiteRT lacks reference kernels for some float operators (ELU, CEIL, ROUND, ...). A model with one of them runs with
    the built-in kernels instead, without delegates.
    """

    def __init__(self, model: str | Path | bytes, signature: str | None = None) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter, OpResolverType
        except ImportError:
            raise ToolchainError(
                "LiteRT is not installed", next_step='Install it in a checkout of mlfc: pip install ".[verify]"'
            ) from None
        self._place = None if isinstance(model, bytes) else str(model)
        self._data = model if isinstance(model, bytes) else Path(model).read_bytes()
        self._make, self._signature = Interpreter, signature
        self._resolvers = [OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES]
        self.begin()

    def begin(self) -> None:
        """Open the model again, which resets its variables."""
        failures = []
        for resolver in self._resolvers:
            try:
                self._interpreter = self._make(
                    model_content=self._data,
                    experimental_op_resolver_type=resolver,
                    experimental_preserve_all_tensors=True,
                )
                return
            except (RuntimeError, ValueError) as error:
                failures.append(str(error))
        raise ModelError(f"LiteRT cannot open the model: {failures[-1]}", place=self._place)

    def _details(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the details of the inputs or outputs, of the chosen signature if any."""
        if self._signature is not None:
            return [*getattr(self._interpreter.get_signature_runner(self._signature), f"get_{kind}_details")().values()]
        return [*getattr(self._interpreter, f"get_{kind}_details")()]

    @property
    def input_names(self) -> frozenset[str]:
        """The names of the model's inputs."""
        return frozenset(_name(detail) for detail in self._details("input"))

    @property
    def output_names(self) -> frozenset[str]:
        """The names of the model's outputs."""
        return frozenset(_name(detail) for detail in self._details("output"))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return every activation tensor by name for the given inputs; see `reference`."""
        interpreter = self._interpreter
        if self._signature is not None:  # outputs by the names of their tensors
            runner = interpreter.get_signature_runner(self._signature)
            taken = {key: inputs[_name(detail)] for key, detail in runner.get_input_details().items()}
            names = {key: _name(detail) for key, detail in runner.get_output_details().items()}
            return {names[key]: value for key, value in runner(**taken).items()}
        details = {_name(detail): detail for detail in interpreter.get_input_details()}
        if set(inputs) != set(details):
            missing = sorted(set(details) - set(inputs))
            raise InputError(
                f"expected the inputs {', '.join(details)}, got {', '.join(inputs)}",
                place=self._place,
                next_step=f"Set the value that it was compiled with: --value {missing[0]}=..." if missing else None,
            )
        for name, detail in details.items():
            if tuple(detail["shape"]) != np.shape(inputs[name]):
                interpreter.resize_tensor_input(detail["index"], np.shape(inputs[name]))
        try:
            interpreter.allocate_tensors()
            for name, detail in details.items():
                interpreter.set_tensor(detail["index"], np.asarray(inputs[name]))
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"LiteRT cannot run the model with these inputs: {error}", place=self._place) from None
        # outputs may be constants
        written = {item["index"] for item in (*interpreter.get_input_details(), *interpreter.get_output_details())}
        for operator in interpreter._get_ops_details():
            written.update(int(index) for index in operator["outputs"])
        return {
            _name(detail): interpreter.get_tensor(detail["index"])
            for detail in interpreter.get_tensor_details()
            if detail["index"] in written and detail["dtype"] is not np.object_  # handles of variables have no array
        }


def _name(detail: Mapping[str, Any]) -> str:
    return str(detail["name"]) or f"tensor_{detail['index']}"
