"""A model file in, a compiled model out: what `mlfc.compile` does and returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.memory_map import MemoryMap, memory_map
from mlfc.archive.read.load import load_factory
from mlfc.archive.stored import StoredModel
from mlfc.archive.write.export import export_model_library_format
from mlfc.compiler import build
from mlfc.errors import OptionError, ToolchainError, unknown
from mlfc.frontend import Model, import_for_run, model_name, opened
from mlfc.frontend.captured import Captured
from mlfc.frontend.shapes import leaves_to_run
from mlfc.frontend.torch import is_torch_model
from mlfc.library.export import cached_library
from mlfc.runtime.executors.vm.vm_model import VmModel
from mlfc.runtime.modules.restoring import Reduced, kept_by, restore
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.specializing import SpecializingModel
from mlfc.support.arrays import Array
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import Displayed
from mlfc.target.defaults import EVERY_CPU
from mlfc.target.target import llvm_here
from mlfc.transform import specialized

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.verify import Comparison


AUTO = "auto"


def compile(  # noqa: A001 (users write mlfc.compile)
    model: Model,
    target: str = EVERY_CPU,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    module_name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
    states: Mapping[str, str] | None = None,
    state_init: Mapping[str, npt.ArrayLike] | str | None = None,
    numerics: str = "litert",
    signature: str | None = None,
    byoc: Sequence[str] = (),
    limit_factor: float = 1.0,
    specialize: Sequence[Mapping[str, int]] | str = (),
    **options: Any,
) -> CompiledModel:
    """Compile a model.

    Parameters
    ----------
    model : str, Path, bytes, onnx.ModelProto or torch.nn.Module
        A TFLite, ONNX or Relay text model: a file, its content, or what the onnx package loaded. Or a PyTorch module,
        ``ExportedProgram`` or ``ONNXProgram``.
    target : str
        A target string, as for `build`. By default the model is as fast here as this processor allows, its libraries
        are fast on every processor of this kind, and archives have C for all of them, as of the target ``c``.
    example_inputs : tuple, mapping, Tensor or ndarray, optional
        For a PyTorch module, which requires them: what its ``forward`` takes.
    dynamic_shapes : tuple or mapping, optional
        Of its inputs, dimensions that stay open: ``({0: torch.export.Dim("batch", min=1, max=32)},)``.
    module_name : str, optional
        Goes into every symbol; default: from the file's name or the module's class, or ``model``.
    shapes, values, states, state_init, numerics, signature, byoc, limit_factor
        As for `import_model`.
    specialize : sequence of mapping, or ``auto``
        Values of open dimensions that get code of their own: ``[{"batch": 1}, {"batch": 8}]``. ``auto``: in this
        process, shapes that come back get code of their own while the model runs; what is exported has none.
    **options
        Any other option of `build`: ``executor="graph"``, ``optimize="size"``, ``pools=...``, ...

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
    if is_torch_model(model) and not isinstance(target, str):
        raise OptionError(
            f"expected a target string, got {type(target).__name__}",
            next_step="Name example inputs: mlfc.compile(module, example_inputs=(x,))",
        )
    model = opened(model, example_inputs, dynamic_shapes)
    if isinstance(model, Captured):
        states, state_init = model.with_own(states, state_init)
        shapes = {**model.shapes, **(shapes or {})}
    if isinstance(specialize, str) and specialize != AUTO:
        raise OptionError(unknown("specialization", specialize, (AUTO,)), place="specialize")
    name, is_auto = model_name(model), specialize == AUTO
    dynamic = leaves_to_run(options.get("executor"), target, shapes)
    imported: dict[str, Any] = {
        "shapes": shapes, "values": values, "states": states, "state_init": state_init, "numerics": numerics,
        "signature": signature, "byoc": byoc, "limit_factor": limit_factor,
    }  # fmt: skip
    module, params = import_for_run(model, name=name, target=target, dynamic=dynamic, **imported)
    special = () if isinstance(specialize, str) else specialize
    factory = build(
        module,
        target,
        params,
        module_name=module_name or name,
        limit_factor=limit_factor,
        specialize=special,
        **options,
    )
    if is_auto and factory.executor == "vm" and factory.program.states:
        raise OptionError(
            "specialize='auto' excludes state: code that is made later would have states of its own",
            place="specialize",
            next_step='Name the values of open dimensions: specialize=[{"batch": 1}]',
        )
    built = {"limit_factor": limit_factor, "specialize": special, **options}
    return CompiledModel(factory, model, imported, built, specializes=is_auto)


class CompiledModel(Displayed, HasModel):
    """A compiled model: runs in this process, and is written as an archive or library.

    Parameters
    ----------
    factory : Factory
        What `build` returned.
    source : str, Path, bytes, onnx.ModelProto or Captured
        The model that was compiled.
    imported : mapping
        The options that it was imported with.
    built : mapping
        The options that it was built with.
    specializes : bool
        Whether shapes that come back get code of their own in this process.

    Attributes
    ----------
    factory : Factory
        Unpacks as ``(graph_json, lib, params)``.
    inputs, outputs : tuple of TensorInfo
    """

    def __init__(
        self,
        factory: Factory,
        source: Model,
        imported: Mapping[str, Any],
        built: Mapping[str, Any],
        *,
        specializes: bool = False,
    ) -> None:
        self.factory = factory
        self._specializes = specializes
        self._source = source
        self._imported, self._built = imported, built
        self._model: Runnable | None = None

    @property
    def name(self) -> str:
        """The name of the module."""
        return self.factory.module_name

    @property
    def model(self) -> Runnable:
        """The model in this process; its code is built when it is first asked for."""
        if self._model is None:
            self._model = load_factory(self.factory)
            if self._specializes and isinstance(self._model, VmModel) and not self._model.has_containers:
                self._model = SpecializingModel(self._model, self._specialized)
        return self._model

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference; as `AotModule.run`."""
        return (self.model if self._model is None else self._model).run(*inputs)

    @cached_property
    def _portable(self) -> Factory:
        """The module for archives: instead of several levels of processors, for all of them."""
        if self.factory.target.mcpu != AUTO:
            return self.factory
        params = dict(self.factory.source_params)
        options = {name: value for name, value in self._built.items() if name != "tuned"}  # of this processor
        every = str(self.factory.target.at_level(None))
        return build(self.factory.module, every, params, module_name=self.name, **options)

    def _specialized(self, extents: Mapping[str, int]) -> Runnable:
        """Return the model for certain extents, in this process without a C compiler; the bits are the same."""
        made = build(
            specialized(self.factory.module, extents),
            llvm_here(self.factory.target),
            dict(self.factory.source_params),
            module_name=self.name,
            optimize=self.factory.optimize,
            parallel=self.factory.parallel,
        )
        return load_factory(made)

    def export(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a Model Library Format archive; options as for `export_model_library_format`."""
        return export_model_library_format(self._portable, path, **options)

    def export_library(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write a shared library; options as for `Factory.export_library`."""
        return self.factory.export_library(path, **options)

    @cached_property
    def _bytes(self) -> bytes:
        """A library with everything that running takes; an archive where nothing links libraries."""
        try:
            return cached_library(self.factory.runtime).read_bytes()
        except ToolchainError:
            with TemporaryFolder() as folder:
                return self.export(Path(folder, "model.tar")).read_bytes()

    def __reduce__(self) -> Reduced:
        """Pickle the compiled code and the states, without what it was compiled from: as a `StoredModel`."""
        return StoredModel, (self.name, self._bytes), self._kept()

    def __copy__(self) -> CompiledModel:
        made = CompiledModel(self.factory, self._source, self._imported, self._built, specializes=self._specializes)
        if kept := self._kept():
            restore(made.model, kept)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        return self.__copy__()  # all but the model itself never changes

    def _kept(self) -> dict[str, Any]:
        return {} if self._model is None else kept_by(self._model)

    def inspect(self) -> dict[str, Any]:
        """Return what `mlfc.inspect` says of the archive that `export` writes."""
        with TemporaryFolder() as folder:
            return inspect(self.export(Path(folder, f"{self.name}.tar")))

    def memory_map(self) -> MemoryMap:
        """Return what the memory of the archive that `export` writes is for."""
        with TemporaryFolder() as folder:
            return memory_map(self.export(Path(folder, f"{self.name}.tar")))

    def verify(self, *, layers: bool = False, **options: Any) -> Comparison:
        """Compare this very code, as it runs in this process, with the reference: LiteRT or ONNX Runtime.

        Parameters
        ----------
        layers : bool
            Compare every layer, too; for that the model is compiled once more, with every tensor as an output.
        **options
            Of `mlfc.verify`: ``samples``, ``seed``, ``inputs``, ``labels``, ``rtol``, ``atol``.
        """
        from mlfc.verify import verify

        if layers:
            made = {**self._imported, "optimize": self.factory.optimize, **options}
            return verify(self._source, layers=True, target=str(self.factory.target), **made)
        known = {name: self._imported[name] for name in ("values", "numerics", "signature", "limit_factor")}
        return verify(self._source, self, **known, **options)

    def _facts(self) -> Mapping[str, object]:
        sizes = self.factory.code.sizes
        return {
            "name": self.name,
            "target": ", ".join(map(str, self.factory.targets)),
            "executor": self.factory.executor,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "workspace": f"{sizes.workspace:,} bytes",
            "constants": f"{sizes.constants:,} bytes",
        }
