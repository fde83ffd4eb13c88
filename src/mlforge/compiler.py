"""The story in one screen: import -> passes -> lower -> plan -> emit.

`build` takes what `import_model` returns and gives a `Factory`, which unpacks as
``(graph_json, lib, params)`` and is what the exporters write to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

import mlforge.ops  # noqa: F401  (registers the operators)
from mlforge import codegen, memory, transform
from mlforge.errors import BudgetError, InternalError, OptionError
from mlforge.library.host import HostLibrary
from mlforge.relay import ir as relay
from mlforge.relay.ir import IRModule
from mlforge.runtime.aot_module import AotModule, loaded_pools
from mlforge.runtime.factory import FactoryModule
from mlforge.runtime.graph_module import GraphModule
from mlforge.runtime.module import Function, Module
from mlforge.runtime.runnable import Runnable
from mlforge.support.c_names import module_name as checked_module_name
from mlforge.target.features import Features
from mlforge.target.target import Target, parse_target
from mlforge.tir.ir import Program, Value
from mlforge.transform.lower import LoweredGroup
from mlforge.transform.lower_stage import Stage

EXECUTORS = ("aot", "graph")


@dataclass(frozen=True, eq=False)
class Factory:
    """A compiled module; unpacks as ``(graph_json, lib, params)``.

    Attributes
    ----------
    module_name : str
    target : Target
    executor : str
    options : dict of str to str
        ``numerics`` and ``optimize``, for the record in metadata.
    module : IRModule
        The model as it was imported.
    source_params : dict of str to ndarray
        The model's own weights by name.
    unit : codegen.Unit
        What its code is made from: program, plan, names.
    code : codegen.GeneratedCode
        Of the module alone; `link` gives the code of several.
    placement : memory.Placement
        Where its memory was asked to lie.
    """

    module_name: str
    target: Target
    executor: str
    options: Mapping[str, str]
    module: IRModule
    source_params: Mapping[str, npt.NDArray[Any]]
    unit: codegen.Unit
    code: codegen.GeneratedCode
    placement: memory.Placement = field(default_factory=memory.Placement)

    @property
    def program(self) -> Program:
        """The kernels, and the calls of them in order."""
        return self.unit.program

    @property
    def plan(self) -> memory.Plan:
        """Where intermediates lie."""
        return self.unit.plan

    @property
    def graph_json(self) -> str:
        """The graph executor's configuration; empty for AOT."""
        return self.code.graph.text if self.code.graph else ""

    @property
    def graph_constants(self) -> dict[str, Value]:
        """The graph executor's constants by the names of their nodes; empty for AOT, which has them in its code."""
        return dict(self.code.graph.params) if self.code.graph else {}

    @property
    def params(self) -> dict[str, npt.NDArray[Any]]:
        """What the executor has to load: the elements of `graph_constants`."""
        return {name: _data(value) for name, value in self.graph_constants.items()}

    @property
    def storages(self) -> tuple[tuple[int, int, str | None], ...]:
        """The graph executor's blocks: id, bytes, and the node of the input or constant that has it for good."""
        if self.code.storages is None or self.code.graph is None:
            return ()
        return tuple(
            (number, size, self.code.graph.bindings.get(number)) for number, size in enumerate(self.code.storages.sizes)
        )

    @cached_property
    def lib(self) -> HostLibrary:
        """The code as a module: it builds itself for this machine when a function is asked for.

        What it imports goes into archives with it.
        """
        return HostLibrary(self.code.files, params=self.params)

    @property
    def imported_modules(self) -> tuple[Module, ...]:
        """The code, as the one module that a factory imports."""
        return (self.lib,)

    @cached_property
    def runtime(self) -> FactoryModule:
        """What runs it in this process; its code is built when an executor is first asked for."""
        return FactoryModule(
            self.module_name, self.lib, self._executable, graph_json=self.graph_json, params=self.params
        )

    def _executable(self) -> Runnable:
        description = self.interface()
        if self.graph_json:
            return GraphModule.described(self.graph_json, self.lib, description)
        return AotModule(self.lib.path, description, loaded_pools(description, self.code.files))

    def __getitem__(self, name: str) -> Function:
        """Return a function of `runtime`: ``factory["default"](mlforge.cpu(0))`` is an executor."""
        return self.runtime[name]

    def interface(self, code: codegen.GeneratedCode | None = None) -> dict[str, Any]:
        """Return what callers must know, as metadata have it: entry, inputs, outputs, memory.

        Parameters
        ----------
        code : GeneratedCode, optional
            The module's code where it is linked with others; default its own.
        """
        code = code or self.code
        return {
            "executor": self.executor,
            "entry": code.entry,
            "external_workspace": code.external_workspace,
            "workspace_peers": list(code.workspace_peers),
            **self._placed(code),
            "inputs": [self._tensor(value) for value in self.program.inputs],
            "outputs": [self._tensor(value) for value in self.program.outputs],
            "memory": {
                "workspace_bytes": code.sizes.workspace,
                "workspace_lower_bound_bytes": self.plan.lower_bound,
                "constants_bytes": code.sizes.constants,
                "io_bytes": code.sizes.io,
            },
        }

    def _placed(self, code: codegen.GeneratedCode) -> dict[str, Any]:
        """Return what callers must know of memory that was asked to lie elsewhere; nothing where it was not."""
        placed: dict[str, Any] = {}
        if self.placement.workspace_io:
            placed["workspace_io"] = True
        if self.plan.spans:
            placed["pools"] = [
                {
                    "name": pool.name,
                    "bytes": pool.nbytes,
                    "base": pool.base,
                    "lower_bound_bytes": pool.lower_bound,
                }
                for pool in self.plan.spans
            ]
        if "stripes" in self.program.meta:
            placed["stripes"] = self.program.meta["stripes"]
        if self.placement.constants:
            placed["constant_pools"] = codegen.constant_pools(self.unit, code)
        return placed

    def _tensor(self, value: Value) -> dict[str, Any]:
        known = self.module.quantization.get(value.name)
        return {
            "name": value.name,
            "shape": list(value.shape),
            "dtype": value.dtype,
            "scale": known and known.scale,
            "zero_point": known and known.zero_point,
        }

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))


def _data(value: Value) -> npt.NDArray[Any]:
    if value.data is None:
        raise InternalError(f"the constant '{value.name}' has no value")
    return value.data


def build(
    mod: IRModule,
    target: str = "c",
    params: Mapping[str, npt.NDArray[np.generic]] | None = None,
    *,
    executor: str = "aot",
    module_name: str = "default",
    optimize: str = "speed",
    numerics: str = "litert",
    external_workspace: bool = False,
    workspace_io: bool = False,
    pools: Sequence[memory.Pool] = (),
    constants: Sequence[memory.ConstantPool] = (),
    ram: int | None = None,
) -> Factory:
    """Compile a Relay module to C.

    Parameters
    ----------
    mod : IRModule
        What `import_model` or the Relay parser returned.
    target : str
        A target string; see `mlforge.target.target.parse_target`.
    params : mapping of str to ndarray, optional
        Values of parameters of ``main``; the others are the model's inputs.
    executor : str
        ``aot``: one C function runs the model. ``graph``: the graph executor calls an operator at a time, with weights
        from a file of parameters.
    module_name : str
        Goes into every symbol; letters, digits and underscores.
    optimize : str
        ``speed`` or ``size``.
    numerics : str
        Whose integer rounding the importer chose; kept for the record.
    external_workspace : bool
        The caller of the generated code passes the workspace in, instead of a static array. Only for AOT, as is what
        follows: the graph executor allocates.
    workspace_io : bool
        Inputs and outputs lie in the workspace, where intermediates take their place when they are not needed.
    pools : sequence of Pool
        Memories that the workspace is spread over, the fastest first.
    constants : sequence of ConstantPool
        Memories that constants are spread over, the fastest first.
    ram : int, optional
        Bytes for the workspace, inputs and outputs. Where they are more, layers are computed in stripes, if that helps:
        more calls, the same results. It is no error if they still are more; see `archive.budget.check_budget`.

    Returns
    -------
    Factory

    Raises
    ------
    MlforgeError
        For options that do not exist, and for what cannot be compiled.
    """
    placement = memory.Placement(workspace_io, tuple(pools), tuple(constants))
    _check_executor(executor, placement, external_workspace=external_workspace)
    chosen = parse_target(target, optimize)
    name = checked_module_name(module_name)
    values = dict(params or {})
    fused = transform.run(mod, values)
    program, plan = _planned(fused, chosen.features, name, placement, ram if executor == "aot" else None)
    if "stripes" in program.meta:
        placement = replace(placement, ram=ram)
    places = memory.place_constants(program, placement.constants)
    small, vectors = optimize == "size", chosen.features.vector_bytes > 0
    unit = codegen.Unit(
        program,
        plan,
        name,
        executor,
        external_workspace,
        str(chosen),
        mod.quantization,
        workspace_io,
        places,
        small=small,
        packed_constants=small and not vectors,
    )
    options = {"numerics": numerics, "optimize": optimize}
    return Factory(name, chosen, executor, options, mod, values, unit, codegen.generate(unit), placement)


def _check_executor(executor: str, placement: memory.Placement, *, external_workspace: bool) -> None:
    if executor not in EXECUTORS:
        raise OptionError(f"there is no executor '{executor}'", next_step=f"Executors: {', '.join(EXECUTORS)}")
    if external_workspace and executor != "aot":
        raise OptionError(
            "only the executor 'aot' takes its workspace from the caller", next_step="Leave one of the two options out"
        )
    if placement != memory.Placement() and executor != "aot":
        raise OptionError(
            "only the executor 'aot' lets you say where memory lies: the graph executor allocates it",
            next_step="Compile with --executor aot, or leave the memories out",
        )


def _planned(
    fused: IRModule, features: Features, name: str, placement: memory.Placement, ram: int | None
) -> tuple[Program, memory.Plan]:
    """Return the program with its inputs and outputs where they are to lie, and the proven plan of its workspace."""
    known: dict[relay.Function, LoweredGroup] = {}

    def lowered(stage: Stage | None = None) -> Program:
        program = transform.lower(fused, features, name, stage, known)
        return memory.with_workspace_io(program) if placement.workspace_io else program

    def planned(stage: Stage, limit: int) -> tuple[Program, memory.Plan]:
        program = lowered(stage)
        return program, plan_of(program, limit)

    def plan_of(program: Program, limit: int = 0) -> memory.Plan:
        if placement.pools:
            return memory.spread(program, placement.pools)
        return memory.plan(program, limit=limit)

    whole = lowered()
    other = whole if features.vector_bytes else memory.reordered(whole)
    plans = _plans([whole] if other is whole else [whole, other], plan_of)
    program, plan = min(plans, key=lambda item: item[1].workspace_bytes)
    if ram is not None and plans[0][0] is whole:
        lent = sum(value.nbytes for value in (*program.inputs, *program.outputs) if value.kind != "intermediate")
        if plan.workspace_bytes + lent > ram:
            fitted = transform.fit(fused, plans[0], max(0, ram - lent), planned)
            program, plan = min((program, plan), fitted, key=lambda item: item[1].workspace_bytes)
    memory.prove(program, plan)
    memory.prove_pools(program, plan, placement.pools)
    return program, plan


def _plans(programs: Sequence[Program], plan_of: Callable[[Program], memory.Plan]) -> list[tuple[Program, memory.Plan]]:
    """Return the programs whose workspace fits the pools, with their plans; raise the first's error if none does."""
    found: list[tuple[Program, memory.Plan]] = []
    refused: list[BudgetError] = []
    for program in programs:
        try:
            found.append((program, plan_of(program)))
        except BudgetError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def link(
    factories: Sequence[Factory], *, share_workspace: bool = False, share_weights: bool = False
) -> codegen.LinkedCode:
    """Return the code of modules that go into one archive or library.

    Parameters
    ----------
    factories : sequence of Factory
        Of different names.
    share_workspace, share_weights : bool
        See `codegen.generate_together`.

    Raises
    ------
    OptionError
        If two modules have one name.
    """
    units = [factory.unit for factory in factories]
    return codegen.generate_together(units, share_workspace=share_workspace, share_weights=share_weights)
