"""TVM's ``tvm.relay.build_module``, ``tvm.relay.backend`` and ``tvm.relay.vm``: compilation of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from mlfc import compiler
from mlfc.archive.read.load import load_factory
from mlfc.compat.tvm.target import Given, Target
from mlfc.compat.tvm.transform import PassContext
from mlfc.errors import InputError, OptionError, unknown
from mlfc.factory import Factory
from mlfc.options import BuildOptions
from mlfc.relay.ir import IRModule
from mlfc.runtime.executors.vm.vm_module import VmModule
from mlfc.runtime.tensor.ndarray import array
from mlfc.support.text import Displayed
from mlfc.target.target import PORTABLE, device_kinds

build_config = PassContext
_ALIGNMENTS = ("workspace-byte-alignment", "constant-byte-alignment")


@dataclass(frozen=True)
class Executor(Displayed):
    """An executor: ``graph`` or ``aot``. Code for ``aot`` has both of TVM's interfaces, so options change nothing."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    known: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "graph": ("link-params",),
        "aot": ("link-params", "unpacked-api", "interface-api", *_ALIGNMENTS),
    }

    def __post_init__(self) -> None:
        kind = type(self).__name__.lower()
        if self.name not in self.known:
            raise OptionError(unknown(kind, self.name, self.known))
        for option in self.options:
            if option not in self.known[self.name]:
                raise OptionError(unknown(f"option of the {kind} '{self.name}'", option, self.known[self.name]))


class Runtime(Executor):
    """A runtime: ``cpp`` or ``crt``; ``crt`` with ``system-lib`` exports objects for programs with TVM's C runtime."""

    known: ClassVar[Mapping[str, tuple[str, ...]]] = {"cpp": ("system-lib",), "crt": ("system-lib",)}


def build(
    ir_mod: IRModule,
    target: Given | None = None,
    target_host: Given | None = None,
    executor: Executor | str = "graph",
    runtime: Runtime | str = "cpp",
    workspace_memory_pools: None = None,
    constant_memory_pools: None = None,
    params: Mapping[str, Any] | None = None,
    mod_name: str = "default",
) -> Factory:
    """Compile a module; the result unpacks as ``(graph_json, lib, params)``.

    `target` is by default that of the innermost ``with`` statement, and `target_host` its host. The executor is
    ``graph`` or ``aot``; memory pools are not supported.
    """
    if workspace_memory_pools is not None or constant_memory_pools is not None:
        raise OptionError("expected no memory pools", next_step="Use mlfc.build(mod, pools=[mlfc.Pool(...)])")
    wanted = runtime if isinstance(runtime, Runtime) else Runtime(runtime)
    chosen = _target(target)
    name = executor.name if isinstance(executor, Executor) else Executor(executor).name
    made = _built(ir_mod, chosen, target_host, params, executor=chosen.executor or name, module_name=mod_name)
    return replace(made, system_lib=wanted.name == "crt" and bool(wanted.options.get("system-lib")))


def compile(  # noqa: A001  # TVM's name
    mod: IRModule,
    target: Given | None = None,
    target_host: Given | None = None,
    params: Mapping[str, Any] | None = None,
) -> VmModule:
    """Return the executable of a module for `mlfc.runtime.VirtualMachine`."""
    return _built(mod, _target(target), target_host, params, executor="vm").runtime  # type: ignore[return-value]  # of vm


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: object = None,
    target: Given = "llvm",
    params: Mapping[str, Any] | None = None,
) -> Evaluator:
    """Return an object whose ``evaluate()`` is a function that runs a module on the devices of its target."""
    del device
    executor = None if kind == "debug" else kind
    return Evaluator(_built(mod, _target(target), None, params, executor=executor))


class Evaluator:
    """A compiled module; see `create_executor`."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def evaluate(self) -> Callable[..., Any]:
        """Return a function that runs the model on inputs, by position or name, and returns its tensor or tensors."""
        model, weights = load_factory(self._factory), self._factory.source_params
        names = [info.name for info in model.inputs]

        def run(*args: Any, **inputs: Any) -> Any:
            feeds = dict(zip(names, args, strict=False)) | inputs
            # weights are part of the code
            results = model.run({name: value for name, value in feeds.items() if name not in weights})
            found = [array(value) for value in results.values()]
            return found[0] if len(found) == 1 else found

        return run


def _target(target: Given | None) -> Target:
    if isinstance(target, Mapping) and "kind" not in target:  # targets by device
        kinds = [Target(item) for item in target.values()]
        return next((item for item in kinds if item.kind.name in device_kinds()), kinds[0])
    return Target.current() if target is None else Target(target)


def _built(
    mod: object, target: Target, host: Given | None, params: Mapping[str, Any] | None, **options: Any
) -> Factory:
    if not isinstance(mod, IRModule):
        step = "Pass the first result of relay.frontend.from_onnx"
        raise InputError(f"expected an IRModule, got {type(mod).__name__}", next_step=step)
    chosen = Target(host) if host is not None else target.host
    values = {name: np.asarray(value) for name, value in (params or {}).items()}
    return compiler.build_module(mod, values, BuildOptions(str(target), target_host=chosen or PORTABLE, **options))
