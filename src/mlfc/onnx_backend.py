"""ONNX's backend interface ``onnx.backend.base``: models and nodes compiled in this process.

A model is compiled when it is prepared, as far as its shapes are static. If it requires values of inputs, or static
shapes of dynamic inputs, it is compiled for these when it is run, and the compiled versions are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.backend import base

from mlfc.compiled_model import CompiledModel
from mlfc.compiled_model import compile as compile_model
from mlfc.errors import DeviceError, InputError, MlfcError, OptionError, ProblemsError
from mlfc.frontend.common import NoFittingShapesError
from mlfc.frontend.onnx.table import NEWEST_OPSET
from mlfc.runtime.devices.device import device as device_of
from mlfc.support.text import Displayed
from mlfc.target.target import device_kinds

__all__ = ["Backend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

Array: TypeAlias = npt.NDArray[Any]

_KEPT = 8  # number of versions of a model for different shapes and values
_ASKED = ("--shape", "--value")  # remedies that the inputs of a run provide
_ROUNDS = 4  # values may be required once shapes are known
# ONNX's test runner also passes tolerances to `prepare`
_OF_TESTS = ("rtol", "atol")
_CONTAINERS = ("sequence_type", "optional_type")


class PreparedModel(Displayed, base.BackendRep):  # type: ignore[misc]  # onnx has no types
    """A model that is ready to run; `Backend.prepare` returns it.

    Parameters
    ----------
    model : onnx.ModelProto
    target : str
        A target string, as for `mlfc.compile`.
    **options
        Any other option of `mlfc.compile`.

    Attributes
    ----------
    input_names, output_names : tuple of str

    Raises
    ------
    MlfcError
        If the model cannot be compiled for any shapes and values of its inputs.
    """

    def __init__(self, model: onnx.ModelProto, target: str, **options: Any) -> None:
        weights = {item.name for item in model.graph.initializer}
        self.input_names = tuple(item.name for item in model.graph.input if item.name not in weights)
        self.output_names = tuple(item.name for item in model.graph.output)
        self._containers = {item.name for item in model.graph.input if item.type.WhichOneof("value") in _CONTAINERS}
        self._model = model
        self._target = target
        self._options = {name: value for name, value in options.items() if name not in _OF_TESTS}
        self._versions: OrderedDict[tuple[object, ...], CompiledModel] = OrderedDict()
        self._open: set[str] = set()  # inputs whose shapes are taken from each run
        self._asked: set[str] = set()  # inputs whose values are taken from each run
        try:
            self._version({})
        except MlfcError as error:
            self._ask(error)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs in order; they are also attributes and keys of the result by name.

        Parameters
        ----------
        inputs : sequence of array_like, array or dict of str to array_like
            In the order of `input_names`, a single one, or by name. Sequences are lists, optionals may be None.
        **kwargs
            Not supported: pass options to `Backend.prepare`.

        Raises
        ------
        InputError
            For inputs that are missing, unknown, or not tensors of the model's types.
        UnsupportedError
            If the model cannot be compiled for the shapes and values of its inputs.
        """
        if kwargs:
            raise OptionError(f"unknown option '{min(kwargs)}' of run", next_step="Pass options to prepare")
        arrays = self._arrays(inputs)
        version = self._fitting(arrays)
        known = {info.name for info in version.inputs} | self._containers
        results = version.run({name: value for name, value in arrays.items() if name in known})
        outputs: tuple[Array, ...] = base.namedtupledict("Outputs", list(results))(*results.values())
        return outputs

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": self.input_names, "outputs": self.output_names, "target": self._target}

    def _arrays(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        else:
            listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(listed) != len(self.input_names):
                raise InputError(f"expected {len(self.input_names)} inputs, got {len(listed)}")
            named = dict(zip(self.input_names, listed, strict=True))
        for name in self.input_names:
            if name not in named:
                raise InputError(f"the input '{name}' is missing")
        arrays = {}
        for name, value in named.items():
            if name not in self.input_names:
                raise InputError(f"unknown input '{name}'; the model has: {', '.join(self.input_names)}")
            if name in self._containers:
                arrays[name] = value
                continue
            if value is None or isinstance(value, (list, tuple, str)):
                raise InputError(f"expected a tensor as the input '{name}', got {type(value).__name__}")
            arrays[name] = np.asarray(value)
        return arrays

    def _fitting(self, arrays: Mapping[str, Any]) -> CompiledModel:
        """Return the model compiled for the shapes and values of these inputs that it requires."""
        for _ in range(_ROUNDS):
            try:
                return self._version(arrays)
            except MlfcError as error:
                self._ask(error)
        return self._version(arrays)

    def _version(self, arrays: Mapping[str, Any]) -> CompiledModel:
        shapes = {name: _shape(arrays[name]) for name in sorted(self._open)}
        values = {name: arrays[name] for name in sorted(self._asked)}
        key = (*shapes.items(), *((name, value.shape, value.tobytes()) for name, value in values.items()))
        if key in self._versions:
            self._versions.move_to_end(key)
            return self._versions[key]
        given = dict(self._options)
        given["shapes"] = {**shapes, **(given.get("shapes") or {})}
        given["values"] = {**values, **(given.get("values") or {})}
        version = compile_model(self._model, self._target, **given)
        self._versions[key] = version
        if len(self._versions) > _KEPT:
            self._versions.popitem(last=False)
        return version

    def _ask(self, error: MlfcError) -> None:
        """Record the inputs that a refusal requires; raise it if it requires anything else, or nothing new."""
        if isinstance(error.__cause__, NoFittingShapesError):  # it lists the inputs with dynamic shapes
            error = error.__cause__
        problems = error.problems if isinstance(error, ProblemsError) else (error,)
        known = len(self._open) + len(self._asked)
        for problem in problems:
            asked = {option: {item.subject for item in problem.remedies if item.option == option} for option in _ASKED}
            if not any(asked.values()):
                raise error
            self._open |= asked["--shape"]
            self._asked |= asked["--value"]
        if len(self._open) + len(self._asked) == known:
            raise error


class Backend(base.Backend):  # type: ignore[misc]  # onnx has no types
    """An ONNX backend that compiles models in this process: ``prepare(model).run(inputs)``.

    Examples
    --------
    >>> import onnx, onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Relu(x) }'
    >>> run_model(onnx.parser.parse_model(text), [np.array([-1, 0, 2], np.float32)])[0].tolist()
    [0.0, 0.0, 2.0]
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether `prepare` accepts a model for a device."""
        try:
            cls.prepare(model, device, **kwargs)
        except MlfcError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Return a model that is ready to run.

        Parameters
        ----------
        model : onnx.ModelProto
        device : str
            ``CPU``, ``CUDA`` or ``OPENCL``: the first device of that kind.
        **kwargs
            Options of `mlfc.compile`; `target` is the target of the device's code.

        Raises
        ------
        MlfcError
            For devices that do not exist, and models that cannot be compiled; `mlfc.examine` suggests remedies.
        """
        if not cls.supports_device(device):
            known = ", ".join(_targets())
            raise DeviceError(f"expected one of the devices {known}, which exists here, got '{device}'")
        target = kwargs.pop("target", _targets()[device.partition(":")[0]])
        return PreparedModel(model, target, **kwargs)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs of a model; parameters are those of `prepare` and `PreparedModel.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Return the outputs of one node.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence of array_like
            In the order of the node's inputs, without omitted ones.
        device : str
            As for `prepare`.
        outputs_info : sequence of (dtype, shape), optional
            Types of the outputs; required if their shapes depend on values.
        **kwargs
            ``opset_version``, of the node's domain, and options of `mlfc.compile`.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        given = [np.asarray(value) for value in ([inputs] if isinstance(inputs, np.ndarray) else inputs)]
        if len(given) != len(names):
            raise InputError(f"expected {len(names)} inputs, got {len(given)}")
        version = int(kwargs.pop("opset_version", 1 if node.domain else NEWEST_OPSET))
        model = _node_model(node, dict(zip(names, given, strict=True)), outputs_info, version)
        return cls.run_model(model, given, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device exists: ``CPU``, ``CUDA``, ``OPENCL``, or the first of a kind as ``CUDA:0``."""
        kind, _, number = device.partition(":")
        if kind not in _targets() or number not in ("", "0"):
            return False
        return kind == "CPU" or device_of(kind.lower(), 0).exists


def _shape(value: Any) -> tuple[int | None, ...]:
    """Return the shape of an array; for a sequence, dynamic dimensions of the rank of its tensors."""
    if isinstance(value, (list, tuple)):
        return (None,) * (np.ndim(value[0]) if value else 1)
    return tuple(np.shape(value))


def _targets() -> dict[str, str]:
    """Return the targets of devices by ONNX's device names."""
    return {"CPU": "llvm", **{kind.upper(): kind for kind in device_kinds()}}


def _node_model(
    node: onnx.NodeProto,
    inputs: Mapping[str, Array],
    outputs: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    version: int,
) -> onnx.ModelProto:
    """Return a model of one node."""

    def typed(name: str, dtype: npt.DTypeLike, shape: Sequence[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    if outputs is not None:
        results = [typed(item.name, *facts) for item, facts in zip(results, outputs, strict=True)]
    arguments = [typed(name, array.dtype, array.shape) for name, array in inputs.items()]
    domains = {"": NEWEST_OPSET, node.domain: version}
    opsets = [helper.make_opsetid(*item) for item in domains.items()]
    return helper.make_model(helper.make_graph([node], "node", arguments, results), opset_imports=opsets)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
