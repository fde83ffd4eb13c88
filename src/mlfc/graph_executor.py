"""Replacement for ``tvm.contrib.graph_executor``: programs written for it only change their import.

>>> from mlfc import graph_executor                                      # doctest: +SKIP
>>> module = graph_executor.GraphModule(lib["default"](mlfc.cpu(0)))     # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from mlfc.errors import InputError, OptionError, unknown
from mlfc.runtime.devices.device import Device, require_device
from mlfc.runtime.executors.aot_module import AotExecutor
from mlfc.runtime.executors.graph_executor import GraphExecutor
from mlfc.runtime.executors.profile import BenchmarkResult, evaluate
from mlfc.runtime.modules.module import Module
from mlfc.runtime.tensor.ndarray import NDArray, from_dlpack
from mlfc.support.text import Displayed

__all__ = ["GraphModule", "create"]

Executor: TypeAlias = "GraphExecutor | AotExecutor"
_SHOWN = 3
"""Ignored inputs that a warning names."""


def create(
    graph_json_str: str, libmod: Module, device: Device | Sequence[Device] = (), *, ctx: Device | None = None
) -> GraphModule:
    """Return an executor of a graph; its parameters are set if the library has them.

    Parameters
    ----------
    graph_json_str : str
    libmod : Module
        The functions of the graph.
    device : Device or sequence of Device
        Default: those of the graph.
    ctx : Device, optional
        The name of `device` before TVM 0.8.
    """
    return GraphModule(GraphExecutor(graph_json_str, libmod, ctx or device))


class GraphModule(Displayed):
    """An executor with the methods of TVM's ``GraphModule``; outputs are tensors, with ``numpy()``.

    Parameters
    ----------
    module : GraphExecutor or AotExecutor
        The result of a factory's function: ``lib["default"](mlfc.cpu(0))``.

    Attributes
    ----------
    executor : GraphExecutor or AotExecutor
    """

    _shows = ("executor",)

    def __init__(self, module: Executor) -> None:
        if not isinstance(module, (GraphExecutor, AotExecutor)):
            raise InputError(
                f"expected an executor, got {type(module).__name__}", next_step='Pass lib["default"](mlfc.cpu(0))'
            )
        self.executor = module

    @property
    def module(self) -> GraphModule:
        """The object with `time_evaluator` and the functions by name, which is this one."""
        return self

    def __getitem__(self, name: str) -> Callable[..., Any]:
        found = getattr(self, name, None) or getattr(self.executor, name, None)
        if name.startswith("_") or not callable(found):
            raise OptionError(f"the executor has no function '{name}'")
        return found  # type: ignore[no-any-return]  # an attribute

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Copy values into inputs or parameters: one by name or index, others by name.

        Parameters
        ----------
        key : str or int, optional
        value : array, optional
            The value of the input `key`.
        **params
            Further inputs by name. As in TVM, names that the model lacks are ignored, with a warning.

        Raises
        ------
        InputError
            If the input `key` does not exist, or an array does not match its input.
        """
        known = self._known(params)
        if key is None:
            self.executor.set_input(**known)
        else:
            self.executor.set_input(key, value, **known)

    def _known(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs that the model has; warn about the others."""
        known = {name: value for name, value in params.items() if self.executor.get_input_index(name) >= 0}
        ignored = [name for name in params if name not in known]
        if ignored:
            names = list(self.executor.get_input_info())
            causes = "; ".join(unknown("input", name, names) for name in ignored[:_SHOWN])
            more = f"; and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
            warnings.warn(f"ignored {causes}{more}", stacklevel=3)
        return known

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Bind an input to the caller's memory; as `GraphExecutor.set_input_zero_copy`."""
        self._graph().set_input_zero_copy(key, value)

    def set_output_zero_copy(self, key: str | int, value: Any) -> None:
        """Bind an output to the caller's memory; as `GraphExecutor.set_output_zero_copy`."""
        self._graph().set_output_zero_copy(key, value)

    def run(self, **input_dict: Any) -> None:
        """Set inputs, if there are any, and run; names that the model lacks are ignored, with a warning."""
        self.executor.run(**self._known(input_dict))

    def get_output(self, index: int, out: Any = None) -> Any:
        """Return an output as a new tensor, or write it to `out`."""
        return from_dlpack(self.executor.get_output(index)) if out is None else self.executor.get_output(index, out)

    def get_input(self, index: str | int) -> NDArray:
        """Return an input, by name or index, as a new tensor."""
        return from_dlpack(self.executor.get_input(index))

    def get_num_outputs(self) -> int:
        """Return the number of outputs."""
        return self.executor.get_num_outputs()

    def get_num_inputs(self) -> int:
        """Return the number of inputs; those of a graph include parameters."""
        return self.executor.get_num_inputs()

    def get_input_index(self, name: str) -> int:
        """Return the index of an input, -1 if it is unknown."""
        return self.executor.get_input_index(name)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return the shapes and the dtypes of the inputs, by name."""
        infos = self.executor.get_input_info()
        return {name: info.shape for name, info in infos.items()}, {name: info.dtype for name, info in infos.items()}

    def load_params(self, params_bytes: bytes | memoryview) -> None:
        """Load parameters from the content of a parameter file."""
        self._graph().load_params(params_bytes)

    def share_params(self, other: GraphModule, params_bytes: bytes | memoryview) -> None:
        """Share another executor's parameters without a copy: those whose names are in a parameter file."""
        self._graph().share_params(other._graph(), params_bytes)

    def time_evaluator(
        self, func_name: str, dev: Device, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0, **cooling: Any
    ) -> Callable[[], BenchmarkResult]:
        """Return a function that measures the duration of ``run``.

        Parameters
        ----------
        func_name : str
            ``run``.
        dev : Device
            The device of the executor.
        number, repeat, min_repeat_ms, **cooling
            As for `mlfc.runtime.executors.profile.evaluate`.
        """
        require_device(dev)
        if func_name != "run":
            raise OptionError(f"expected the function 'run', got '{func_name}'", place="func_name")
        return partial(
            evaluate, self.executor.run, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms, **cooling
        )

    def benchmark(
        self,
        device: Device,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: float = 0,
        end_to_end: bool = False,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        **kwargs: Any,
    ) -> BenchmarkResult:
        """Measure the duration of a run on the inputs in `kwargs`, or on those that are set.

        With `end_to_end`, the time includes setting these inputs and getting all outputs. Other parameters are as for
        `time_evaluator`.
        """
        cooling: dict[str, Any] = {
            "cooldown_interval_ms": cooldown_interval_ms,
            "repeats_to_cooldown": repeats_to_cooldown,
        }
        if not end_to_end:
            self.set_input(**kwargs)
            return self.time_evaluator(func_name, device, number, repeat, min_repeat_ms, **cooling)()
        require_device(device)
        inputs = self._known(kwargs)

        def whole() -> None:
            self.executor.run(**inputs)
            for index in range(self.get_num_outputs()):
                self.executor.get_output(index)

        return evaluate(whole, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms, **cooling)

    def _graph(self) -> GraphExecutor:
        if not isinstance(self.executor, GraphExecutor):
            raise OptionError(
                "a model compiled ahead of time has its parameters in its code",
                next_step="Compile it with executor='graph'",
            )
        return self.executor
