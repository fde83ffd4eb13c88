"""ONNX Runtime's session interface, for programs that were written for it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mlfc.archive.loading import load
from mlfc.archive.read.load import kind_of_artifact
from mlfc.compiled_model import CompiledModel
from mlfc.compiled_model import compile as compile_model
from mlfc.errors import DeviceError, InputError, OptionError, unknown
from mlfc.frontend import Model
from mlfc.runtime.devices.device import Device
from mlfc.runtime.devices.device import device as device_of
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.runtime.threads import set_num_threads
from mlfc.support.arrays import Array
from mlfc.support.containers import ANY_RANK, ContainerInfo
from mlfc.support.platforms import DEVICE_KINDS
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed
from mlfc.target.target import device_kinds

__all__ = ["InferenceSession", "NodeArg"]

Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"
_CPU = "CPUExecutionProvider"
_PROVIDER = "ExecutionProvider"
# ONNX's names of types that differ from numpy's
_TYPES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}
# unsupported fields of ONNX Runtime's SessionOptions: their neutral values, and what to do instead
_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "inter_op_num_threads": ((0, 1), "Operators run one after another; intra_op_num_threads shares each among threads"),
    "enable_profiling": ((False,), "Profile an archive: mlfc.load_profiled(path).profile(inputs)"),
    "optimized_model_filepath": (("",), "Write what was compiled: mlfc.compile(model).export(path)"),
    "use_per_session_threads": ((True,), "mlfc.set_num_threads sets the threads of the process"),
}
_PARALLEL_MODE = "ORT_PARALLEL"
_INSTEAD = {
    "io_binding": "Bind buffers once: session.model.bind(inputs, outputs)",
    "run_with_iobinding": "Bind buffers once: session.model.bind(inputs, outputs)",
    "run_with_ort_values": "run takes the arrays of any DLPack library",
    "run_with_ortvaluevector": "run takes the arrays of any DLPack library",
    "run_async": "Call run in a thread",
    "end_profiling": "Profile an archive: mlfc.load_profiled(path).profile(inputs)",
    "get_modelmeta": "mlfc.inspect(path) describes archives and libraries",
    "set_providers": "Create another session",
}


@dataclass(frozen=True)
class NodeArg(Displayed):
    """An input or output of a session.

    Attributes
    ----------
    name : str
    shape : list
        Numbers; names or None for dynamic dimensions.
    type : str
        In ONNX Runtime's notation: ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str


class InferenceSession(Displayed, HasModel):
    """A model with the methods of ``onnxruntime.InferenceSession``.

    Parameters
    ----------
    path_or_bytes : path, bytes, onnx.ModelProto, CompiledModel or loaded model
        A model, which is compiled; an archive or a shared library, which is loaded, as a path or as bytes; or the
        result of `mlfc.compile` or `mlfc.load`.
    sess_options : onnxruntime.SessionOptions, optional
        Or any object with its attributes. ``intra_op_num_threads`` is used; settings that only tune ONNX Runtime itself
        are ignored, and settings that would change the results of a run are refused.
    providers : sequence, optional
        ``CPUExecutionProvider``, ``CUDAExecutionProvider``, ``OpenCLExecutionProvider``: the first one whose device
        exists. Others are skipped with a warning if one of these follows.
    provider_options : sequence, optional
        Must be empty: providers have no options.
    intra_op_num_threads : int, optional
        Threads that share the work of a kernel. 1 compiles kernels for one thread. A larger number applies to the
        process, as set by `mlfc.set_num_threads`. Default, and 0: the number set there.
    **options
        Options of `mlfc.compile`, for a model: ``shapes``, ``values``, ``target``, ...; of `mlfc.load` for an archive:
        ``module``.

    Attributes
    ----------
    model : Runnable
        The model that runs, with ``run``, ``bind`` and ``state``.

    Raises
    ------
    MlfcError
        If the model cannot be compiled or loaded, or an option is not supported.

    Examples
    --------
    >>> session = mlfc.InferenceSession("model.onnx", intra_op_num_threads=1)   # doctest: +SKIP
    >>> (scores,) = session.run(None, {session.get_inputs()[0].name: image})    # doctest: +SKIP
    """

    def __init__(
        self,
        path_or_bytes: Model | CompiledModel | Runnable,
        sess_options: Any = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        intra_op_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        # the thread count applies to the process, except for kernels compiled for one thread
        is_shared = True
        threads = _threads(sess_options) if intra_op_num_threads is None else intra_op_num_threads
        self._provider = _chosen(providers, provider_options)
        target = _targets().get(self._provider)
        if hasattr(path_or_bytes, "run") and hasattr(path_or_bytes, "bind"):
            if options or target:
                raise OptionError(
                    f"option {min([*options, 'providers'])} requires a model or a file, got a model that was compiled",
                    next_step="Omit it, or pass the model that it was compiled from",
                )
            self._source: Any = path_or_bytes
        elif _is_model(path_or_bytes):
            is_shared = threads != 1
            given = {"parallel": None if is_shared else False, **({"target": target} if target else {}), **options}
            self._source = compile_model(path_or_bytes, **given)
        else:
            devices: tuple[Device, ...] = (device_of(target, 0),) if target else ()
            self._source = load(path_or_bytes, devices=devices, **options)  # type: ignore[arg-type]  # no model
        if threads and is_shared:
            set_num_threads(threads)

    @property
    def model(self) -> Runnable:
        """The model that runs."""
        return self._source.model if isinstance(self._source, HasModel) else self._source

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": self.inputs, "outputs": self.outputs, "providers": self.get_providers()}

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs in order."""
        return list(map(_node_arg, self.inputs))

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in order."""
        return list(map(_node_arg, self.outputs))

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: weights are constants of the code."""
        return []

    def get_providers(self) -> list[str]:
        """Return the providers that the model runs on."""
        return [self._provider] if self._provider == _CPU else [self._provider, _CPU]

    def run(  # type: ignore[override]  # ONNX Runtime's, not this project's
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Run one inference.

        Parameters
        ----------
        output_names : sequence of str, optional
            None or empty: all outputs, in order.
        input_feed : mapping of str to array
            Arrays of numpy or of any DLPack library.
        run_options : None
            Not supported.

        Returns
        -------
        list of ndarray
            Fresh arrays in the order of `output_names`.

        Raises
        ------
        InputError, ProblemsError
            If inputs are missing, unknown or of the wrong shape or dtype, or an output is unknown.
        """
        if run_options is not None:
            raise OptionError("a run has no options", place="run_options", next_step="Omit it")
        if not isinstance(input_feed, Mapping):
            raise InputError(f"expected a mapping from names to arrays, got {type(input_feed).__name__}")
        known = [info.name for info in self.outputs]
        for name in output_names or ():
            if name not in known:
                raise InputError(unknown("output", str(name), known))
        results = self.model.run(input_feed)
        return [results[name] for name in output_names or known]

    def __getattr__(self, name: str) -> Any:
        step = _INSTEAD.get(name)
        raise AttributeError(
            f"mlfc.InferenceSession has no '{name}'. {step}" if step else f"InferenceSession has no attribute '{name}'"
        )


def _is_model(source: Any) -> bool:
    """Return whether an object must be compiled: it is not an archive, a library or objects."""
    if isinstance(source, (str, os.PathLike)) and not Path(source).is_file():
        return True  # the importers report what is wrong
    is_content = isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview))
    return not is_content or kind_of_artifact(source) == "model"


def _threads(sess_options: Any) -> int | None:
    """Return the thread count in ONNX Runtime's options; raise OptionError for settings that are not supported."""
    if sess_options is None:
        return None
    for name, (neutral, step) in _NEUTRAL.items():
        value = getattr(sess_options, name, neutral[0])
        if value not in neutral:
            raise OptionError(f"sessions do not support {name}={value!r}", place="sess_options", next_step=step)
    if getattr(getattr(sess_options, "execution_mode", None), "name", None) == _PARALLEL_MODE:
        cause, step = f"sessions do not support execution_mode={_PARALLEL_MODE}", _NEUTRAL["inter_op_num_threads"][1]
        raise OptionError(cause, place="sess_options", next_step=step)
    threads = getattr(sess_options, "intra_op_num_threads", None)
    return None if threads is None else int(threads)


def _targets() -> dict[str, str]:
    """Return the targets of devices by ONNX Runtime's provider names."""
    return {f"{DEVICE_KINDS[kind][1]}{_PROVIDER}": kind for kind in device_kinds()}


def _chosen(providers: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the first provider whose device exists."""
    pairs = [(item, {}) if isinstance(item, str) else item for item in providers or (_CPU,)]
    if any(given for _, given in pairs) or any(options or ()):
        raise OptionError("providers have no options", place="provider_options", next_step="Omit them")
    names = [name for name, _ in pairs]
    targets = _targets()
    known = (_CPU, *targets)
    for name in names:
        if name not in known and not name.endswith(_PROVIDER):
            raise OptionError(unknown("provider", name, known), place="providers")
    for number, name in enumerate(names):
        if name == _CPU or (name in targets and device_of(targets[name], 0).exists):
            if number:
                warnings.warn(f"{', '.join(names[:number])}: not available; the model runs on {name}", stacklevel=3)
            return name
    raise DeviceError(
        f"none of the providers is available: {', '.join(names)}", place="providers", next_step=f"Add '{_CPU}'"
    )


def _node_arg(info: TensorInfo) -> NodeArg:
    kind = f"tensor({_TYPES.get(info.dtype, info.dtype)})"
    if isinstance(info, ContainerInfo):
        kind = f"seq({kind})" if info.is_sequence else kind
        kind = f"optional({kind})" if info.may_be_none else kind
    if info.shape == ANY_RANK:
        return NodeArg(info.name, [], kind)  # as in ONNX Runtime
    return NodeArg(info.name, [None if extent == "?" else extent for extent in info.shape], kind)
