"""Implementation of `mlfc.compile`, and the compiled model that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.memory_map import MemoryMap, memory_map
from mlfc.archive.loading import StoredModel
from mlfc.archive.read.load import load_factory
from mlfc.archive.write.export import archive_files, export_model_library_format
from mlfc.archive.write.options import ExportOptions
from mlfc.compiler import build_module
from mlfc.errors import OptionError, ToolchainError, unknown
from mlfc.frontend import Model, import_for_run, model_name, opened
from mlfc.frontend.torch import is_torch_model
from mlfc.library.export import cached_library
from mlfc.options import AUTO, BuildOptions, CompileOptions, ImportOptions
from mlfc.runtime.executors.vm.vm_model import VmModel
from mlfc.runtime.modules.runnable import HasModel, Reduced, Runnable, kept_by, restore
from mlfc.specializing import SpecializingModel
from mlfc.support.keywords import keywords_of, option_names, with_keywords
from mlfc.support.tar import write_tar
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed
from mlfc.target.target import llvm_here
from mlfc.transform import specialized

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.verify import Comparison


@with_keywords(CompileOptions)
def compile(model: Model, options: CompileOptions) -> CompiledModel:  # noqa: A001 (users write mlfc.compile)
    """Compile a model.

    Parameters
    ----------
    model : str, Path, bytes, onnx.ModelProto or torch.nn.Module
        A TFLite, ONNX or Relay text model: a file, its content, or what the onnx package loaded. Or a PyTorch module,
        ``ExportedProgram`` or ``ONNXProgram``.

    Returns
    -------
    CompiledModel

    Raises
    ------
    MlfcError
        If the model cannot be read or compiled, or an option does not exist.

    Examples
    --------
    >>> model = mlfc.compile("kws.tflite", "c -mcpu=cortex-m4")     # doctest: +SKIP
    >>> model.run(samples)["scores"]                                # doctest: +SKIP
    >>> model.export("kws.tar")                                     # doctest: +SKIP
    >>> mlfc.compile(net, example_inputs=(torch.zeros(1, 3, 32, 32),))  # doctest: +SKIP
    """
    if is_torch_model(model) and not isinstance(options.target, str):
        raise OptionError(
            f"expected a target string, got {type(options.target).__name__}",
            next_step="Pass example inputs by name: mlfc.compile(module, example_inputs=(x,))",
        )
    model, options = opened(model, options)
    is_auto = options.specialize == AUTO
    if isinstance(options.specialize, str) and not is_auto:
        raise OptionError(unknown("specialization", options.specialize, (AUTO,)), place="specialize")
    name = model_name(model)
    options = replace(
        options, name=name, module_name=options.module_name or name, specialize=() if is_auto else options.specialize
    )
    factory = build_module(*import_for_run(model, options, options.executor), options)
    if is_auto and factory.executor == "vm" and factory.program.states:
        raise OptionError(
            "specialize='auto' does not support state: code that is generated later would have separate states",
            place="specialize",
            next_step='Specify the values of dynamic dimensions: specialize=[{"batch": 1}]',
        )
    return CompiledModel(factory, model, options, specializes=is_auto)


class CompiledModel(Displayed, HasModel):
    """A compiled model, which runs in this process and can be exported as an archive or library.

    Parameters
    ----------
    factory : Factory
        The result of `build`.
    source : str, Path, bytes, onnx.ModelProto or Captured
        The model that was compiled.
    options : CompileOptions
        The options that it was compiled with.
    specializes : bool
        Generate specialized code in this process for shapes that recur.

    Attributes
    ----------
    factory : Factory
        Unpacks as ``(graph_json, lib, params)``.
    inputs, outputs : tuple of TensorInfo
    """

    def __init__(self, factory: Factory, source: Model, options: CompileOptions, *, specializes: bool = False) -> None:
        self.factory = factory
        self._specializes = specializes
        self._source = source
        self._options = options
        self._model: Runnable | None = None

    @property
    def name(self) -> str:
        """Name of the module."""
        return self.factory.module_name

    @property
    def model(self) -> Runnable:
        """The model in this process; its code is built on first access."""
        if self._model is None:
            self._model = load_factory(self.factory)
            if self._specializes and isinstance(self._model, VmModel) and not self._model.has_containers:
                self._model = SpecializingModel(self._model, self._specialized)
        return self._model

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; see `AotModule.run`."""
        return (self.model if self._model is None else self._model).run(*inputs, real=real)

    @cached_property
    def _portable(self) -> Factory:
        """The module for archives, with code for all CPU levels instead of those of this processor."""
        if self.factory.target.mcpu != AUTO:
            return self.factory
        every = str(self.factory.target.at_level(None))
        # a tuning log is specific to this processor
        options = replace(self._options, target=every, module_name=self.name, tuned=None)
        return build_module(self.factory.module, self.factory.source_params, options)

    def _specialized(self, extents: Mapping[str, int]) -> Runnable:
        """Return the model for given dynamic dimension sizes, built without a C compiler; results are identical."""
        options = BuildOptions(
            llvm_here(self.factory.target),
            module_name=self.name,
            optimize=self.factory.optimize,
            parallel=self.factory.parallel,
        )
        module = specialized(self.factory.module, extents)
        return load_factory(build_module(module, self.factory.source_params, options))

    def export(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a Model Library Format archive; options as for `export_model_library_format`."""
        return export_model_library_format(self._portable, path, **options)

    def export_library(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a shared library; options as for `Factory.export_library`."""
        return self.factory.export_library(path, **options)

    @cached_property
    def _bytes(self) -> bytes:
        """The model as a self-contained library, or as an archive if no linker is available."""
        try:
            return cached_library(self.factory.runtime).read_bytes()
        except ToolchainError:
            with TemporaryFolder() as folder:
                return self.export(Path(folder, "model.tar")).read_bytes()

    def __reduce__(self) -> Reduced:
        """Pickle the compiled code and the states, without the source model, as a `StoredModel`."""
        return StoredModel, (self.name, self._bytes), self._kept()

    def __copy__(self) -> CompiledModel:
        made = CompiledModel(self.factory, self._source, self._options, specializes=self._specializes)
        if kept := self._kept():
            restore(made.model, kept)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        return self.__copy__()  # only the state of the model is mutable

    def _kept(self) -> dict[str, Any]:
        return {} if self._model is None else kept_by(self._model)

    def inspect(self) -> dict[str, Any]:
        """Return the result of `mlfc.inspect` for the archive that `export` writes.

        The archive has code for all levels of processors, whose memory may differ from that of `memory_map`.
        """
        with TemporaryFolder() as folder:
            return inspect(self.export(Path(folder, f"{self.name}.tar")))

    def memory_map(self) -> MemoryMap:
        """Return the memory map of this code, as it runs in this process."""
        with TemporaryFolder() as folder:
            path = Path(folder, f"{self.name}.tar")
            with path.open("wb") as file:  # may contain kernels for several processors, which cannot be exported
                write_tar(file, archive_files([self.factory], ExportOptions(), 0), 0)
            return memory_map(path)

    def verify(self, *, layers: bool = False, **options: Any) -> Comparison:
        """Compare this code, as it runs in this process, with the reference: LiteRT or ONNX Runtime.

        Parameters
        ----------
        layers : bool
            Compare every layer, too; the model is compiled once more for that, with every tensor as an output.
        **options
            Options of `mlfc.verify`: ``samples``, ``seed``, ``inputs``, ``labels``, ``rtol``, ``atol``.
        """
        from mlfc.verify import verify

        known = ("values", "numerics", "signature", "limit_factor")
        if not layers:
            return verify(self._source, self, **keywords_of(self._options, known), **options)
        made = {"optimize": self.factory.optimize, **keywords_of(self._options, option_names(ImportOptions)), **options}
        return verify(self._source, layers=True, **{**made, "target": str(self.factory.target)})

    def _facts(self) -> Mapping[str, object]:
        sizes, vm = self.factory.code.sizes, self.factory.interface().vm
        is_unbounded = vm is not None and vm.arena_bytes is None
        return {
            "name": self.name,
            "target": ", ".join(map(str, self.factory.targets)),
            "executor": self.factory.executor,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "workspace": "no bound" if is_unbounded else f"{sizes.workspace:,} bytes",
            "constants": f"{sizes.constants:,} bytes",
        }
