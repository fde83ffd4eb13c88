"""ONNX Runtime's ``InferenceSession``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.archive.loading import load
from mlfc.archive.read.load import IN_MEMORY, LOADING, kind_of_artifact
from mlfc.compat.onnxruntime.options import (
    CPU,
    Provider,
    ProviderOptions,
    chosen_provider,
    threads_and_ignored,
    warn_of,
)
from mlfc.compat.onnxruntime.values import IOBinding, NodeArg, OrtValue, on_host
from mlfc.errors import InputError, OptionError, required_for, unknown
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.runtime.tensor.ndarray import from_dlpack
from mlfc.runtime.threads import set_num_threads
from mlfc.support.tensor_info import Array, ContainerInfo, TensorInfo
from mlfc.support.text import Displayed

_CONTENT = (str, os.PathLike, bytes, bytearray, memoryview)
_INSTEAD = {
    "run_async": "Call run in a thread",
    "end_profiling": "Profile an archive: mlfc.load_profiled(path).profile(inputs)",
    "set_providers": "Create another session",
}


@dataclass(frozen=True)
class ModelMetadata(Displayed):
    """Facts that an ONNX model declares about itself."""

    producer_name: str = "mlfc"
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


class InferenceSession(Displayed, HasModel):
    """A model with the methods of ``onnxruntime.InferenceSession``.

    Models are compiled for this processor, once: sessions load the result from the cache.

    Parameters
    ----------
    path_or_bytes : path, bytes, onnx.ModelProto, CompiledModel or loaded model
        A model, which is compiled; an archive or a shared library, which is loaded, as a path or as bytes; or the
        result of `mlfc.compile` or `mlfc.load`.
    sess_options : SessionOptions, optional
        Those of mlfc or of ONNX Runtime. ``intra_op_num_threads`` is used; one warning names all settings that ONNX
        Runtime would follow and mlfc does not.
    providers : sequence, optional
        ``CPUExecutionProvider``, ``CUDAExecutionProvider``, ``OpenCLExecutionProvider``, or pairs of a name and
        options: the first one whose device exists. Others are skipped with a warning if one of these follows.
    provider_options : sequence of mapping, optional
        One per provider. ``device_id`` is used.
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
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Provider] | None = None,
        provider_options: ProviderOptions = None,
        *,
        intra_op_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        # the thread count applies to the process, except for kernels compiled for one thread
        is_shared = True
        options.pop("disabled_optimizers", None)
        threads, ignored = threads_and_ignored(sess_options)
        threads = threads if intra_op_num_threads is None else intra_op_num_threads
        self._provider, device, unused = chosen_provider(providers, provider_options)
        warn_of([*ignored, *unused], stacklevel=3)
        self._options, self._path_or_bytes = sess_options, path_or_bytes
        is_on_cpu = self._provider == CPU
        if hasattr(path_or_bytes, "run") and hasattr(path_or_bytes, "bind"):
            if options or not is_on_cpu:
                raise OptionError(
                    f"option {min([*options, 'providers'])} requires a model or a file, got a model that was compiled",
                    next_step="Omit it, or pass the model that it was compiled from",
                )
            self._source: Any = path_or_bytes
        elif _is_model(path_or_bytes):
            is_shared = threads != 1
            with required_for("compiling a model"):
                from mlfc.compat.onnxruntime.compiled import compiled

                self._source = compiled(path_or_bytes, device, {"parallel": None if is_shared else False, **options})
        else:
            self._source = load(path_or_bytes, devices=() if is_on_cpu else (device,), **options)
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
        return list(map(NodeArg.of, self.inputs))

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs in order."""
        return list(map(NodeArg.of, self.outputs))

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: weights are constants of the code."""
        return []

    def get_providers(self) -> list[str]:
        """Return the providers that the model runs on."""
        return [self._provider] if self._provider == CPU else [self._provider, CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return an empty mapping for each provider."""
        return {name: {} for name in self.get_providers()}

    def get_session_options(self) -> Any:
        """Return the options that the session was created with."""
        return self._options

    def disable_fallback(self) -> None:
        """Return at once: a session does not change its provider."""

    enable_fallback = disable_fallback

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of an ONNX model, which is read from its file; of others only a name."""
        source = self._path_or_bytes
        if not hasattr(source, "SerializeToString"):
            if not isinstance(source, _CONTENT) or not _is_model(source):
                return ModelMetadata(graph_name=getattr(source, "name", ""))
            import onnx

            data = Path(source).read_bytes() if isinstance(source, (str, os.PathLike)) else bytes(source)
            if data[4:8] == b"TFL3":
                return ModelMetadata()
            source = onnx.load_from_string(data)
        return ModelMetadata(
            source.producer_name,
            source.graph.name,
            source.domain,
            source.doc_string,
            source.graph.doc_string,
            source.model_version,
            {item.key: item.value for item in source.metadata_props},
        )

    def run(  # type: ignore[override]  # ONNX Runtime's, not this project's
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Run one inference.

        Parameters
        ----------
        output_names : sequence of str, optional
            None or empty: all outputs, in order.
        input_feed : mapping of str to array_like
            Arrays of numpy or of any DLPack library, lists or numbers, which are converted to the input's dtype.
        run_options : RunOptions, optional
            Accepted for compatibility.

        Returns
        -------
        list of ndarray
            Fresh arrays in the order of `output_names`.

        Raises
        ------
        InputError, ProblemsError
            If inputs are missing, unknown or of the wrong shape or dtype, or an output is unknown.
        """
        del run_options
        if not isinstance(input_feed, Mapping):
            raise InputError(f"expected a mapping from names to arrays, got {type(input_feed).__name__}")
        known = [info.name for info in self.outputs]
        for name in output_names or ():
            if name not in known:
                raise InputError(unknown("output", str(name), known))
        if any(isinstance(value, (list, tuple, bool, int, float, np.generic)) for value in input_feed.values()):
            infos = {info.name: info for info in self.inputs}
            input_feed = {name: _array(value, infos.get(name)) for name, value in input_feed.items()}
        results = self.model.run(input_feed)
        return [results[name] for name in output_names or known]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, OrtValue], run_options: Any = None
    ) -> list[OrtValue]:
        """Run one inference on tensors, and return tensors; otherwise as `run`."""
        feeds = {name: on_host(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(from_dlpack(value)) for value in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        """Return an object to which buffers are bound for `run_with_iobinding`."""
        return IOBinding([info.name for info in self.inputs], [info.name for info in self.outputs])

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run one inference on bound buffers; outputs are copied into those that have memory."""
        feeds = {name: on_host(value) for name, value in iobinding.feeds.items()}
        results = dict(zip(iobinding.targets, self.run(list(iobinding.targets), feeds, run_options), strict=False))
        for name, target in iobinding.targets.items():
            found = from_dlpack(results[name])
            iobinding.results[name] = OrtValue(found if target is None else found.copyto(target))

    def __getattr__(self, name: str) -> Any:
        step = _INSTEAD.get(name)
        raise AttributeError(
            f"mlfc.InferenceSession has no '{name}'. {step}" if step else f"InferenceSession has no attribute '{name}'"
        )


def _is_model(source: Any) -> bool:
    """Return whether an object must be compiled: it is not an archive, a library or objects."""
    if isinstance(source, (str, os.PathLike)) and not Path(source).is_file():
        return True  # the importers report what is wrong
    if not isinstance(source, _CONTENT):
        return True
    with required_for(LOADING, str(source) if isinstance(source, (str, os.PathLike)) else IN_MEMORY):
        return kind_of_artifact(source) == "model"


def _array(value: Any, info: TensorInfo | None) -> Any:
    """Return a list or number as an array of an input's dtype, if that does not change its values."""
    if info is None or isinstance(info, ContainerInfo) or isinstance(value, np.ndarray):
        return value
    found = np.asarray(value)
    is_exact = found.dtype.kind in "biu"
    if isinstance(value, np.generic) or not (is_exact or info.dtype.startswith(("float", "bfloat"))):
        return found
    converted = found.astype(info.numpy_dtype)
    return converted if not is_exact or np.array_equal(found, converted) else found
