"""The story in one screen: import -> passes -> lower -> plan -> emit.

`build` takes what `import_model` returns and gives a `Factory`, which unpacks as
``(graph_json, lib, params)`` and is what the exporters write to disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc.ops  # noqa: F401  (registers the operators)
from mlfc import codegen, memory, transform
from mlfc.byoc import find_generators, takes_modules
from mlfc.errors import BudgetError, InternalError, MlfcError, OptionError, ProblemsError
from mlfc.frontend import import_model
from mlfc.library.described import beside_code
from mlfc.library.device_modules import device_module
from mlfc.library.export import export_library
from mlfc.library.host import HostLibrary
from mlfc.relay import ir as relay
from mlfc.relay.ir import IRModule
from mlfc.relay.visitor import post_order
from mlfc.runtime.aot_module import AotModule, loaded_pools
from mlfc.runtime.device import Device
from mlfc.runtime.external_code import ExternalCode
from mlfc.runtime.factory import FactoryModule
from mlfc.runtime.factory_body import DEFAULT_KEY
from mlfc.runtime.graph_module import GraphModule
from mlfc.runtime.loaders import load_part
from mlfc.runtime.module import Function, Module
from mlfc.runtime.module_set import ModuleSet
from mlfc.runtime.runnable import Runnable
from mlfc.support.c_names import module_name as checked_module_name
from mlfc.support.content import Data
from mlfc.support.cost import limited, spend
from mlfc.target.features import Features
from mlfc.target.target import Target, parse_target
from mlfc.tir.ir import Program, Value
from mlfc.transform.lower import LoweredGroup
from mlfc.transform.lower_stage import Stage
from mlfc.transform.matching import flat_args
from mlfc.transform.places import Places

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
    placement : memory.Placement
        Where its memory was asked to lie.
    target_host : Target or None
        Of the code beside a device's.
    """

    module_name: str
    target: Target
    executor: str
    options: Mapping[str, str]
    module: IRModule
    source_params: Mapping[str, npt.NDArray[Any]]
    unit: codegen.Unit
    placement: memory.Placement = field(default_factory=memory.Placement)
    target_host: Target | None = None

    def __repr__(self) -> str:
        return f"<Factory {self.module_name}: {', '.join(map(str, self.targets))}, {self.executor}>"

    @property
    def targets(self) -> tuple[Target, ...]:
        """The device's target, if there is one, and the host's."""
        return (self.target,) if self.target_host is None else (self.target, self.target_host)

    @cached_property
    def code(self) -> codegen.GeneratedCode:
        """The code of the module alone; `link` gives that of several."""
        return codegen.generate(self.unit)

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

        What it imports goes into archives with it: the kernels of a device, and what external generators made.
        """
        beside = beside_code([self.unit], [self.code], {self.module_name: self.interface()})
        cpu = self.unit.target.mcpu
        if self.unit.target.kind == "llvm":
            from mlfc.library.llvm_library import llvm_library  # LLVM takes long to load

            library: HostLibrary = llvm_library(self.unit, self.code.files, params=self.params, beside=beside, cpu=cpu)
        else:
            library = HostLibrary(self.code.files, params=self.params, beside=beside, cpu=cpu)
        if self.code.device is not None:
            library.import_module(device_module(self.code.device, self.target))
        for part in self.code.external:
            library.import_module(load_part(part.generator, part.data, part.suffix, part.name))
        return library

    @property
    def imported_modules(self) -> tuple[Module, ...]:
        """The code, as the one module that a factory imports."""
        return (self.lib,)

    @cached_property
    def runtime(self) -> FactoryModule:
        """What runs it in this process; its code is built when an executor is first asked for."""
        return FactoryModule(
            self.module_name,
            self.lib,
            self._executable,
            graph_json=self.graph_json,
            params=self.params,
            key=DEFAULT_KEY,
        )

    def _executable(self, devices: Sequence[Device] = ()) -> Runnable:
        description = self.interface()
        if self.graph_json:
            return GraphModule.described(self.graph_json, self.lib, description, devices=devices)
        return AotModule(self.lib.executable(), description, loaded_pools(description, self.code.files))

    def __getitem__(self, name: str) -> Function:
        """Return a function of `runtime`: ``factory["default"](mlfc.cpu(0))`` is an executor."""
        return self.runtime[name]

    def export_library(self, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Path:
        """Write the model as a library that carries all it takes, graph and parameters too.

        Parameters
        ----------
        path, *arguments, **options
            As for `mlfc.library.export.export_library`.
        """
        return export_library(self.runtime, path, *arguments, **options)

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
            **self._timed(code),
            "inputs": [self._tensor(value) for value in self.program.inputs],
            "outputs": [self._tensor(value) for value in self.program.outputs],
            "memory": {
                "workspace_bytes": code.sizes.workspace,
                "workspace_lower_bound_bytes": self.plan.lower_bound,
                "constants_bytes": code.sizes.constants,
                "io_bytes": code.sizes.io,
            },
        }

    def _timed(self, code: codegen.GeneratedCode) -> dict[str, Any]:
        """Return what profiles tell of the operators of a graph; code compiled ahead of time is one function."""
        if self.executor != "graph":
            return {}
        operators = [
            {"function": code.function_of(call.kernel.name), "nodes": list(call.nodes), "macs": call.kernel.macs}
            for call in self.program.calls
        ]
        return {"operators": operators}

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
    target_host: str = "c",
    executor: str | None = None,
    module_name: str = "default",
    optimize: str = "speed",
    numerics: str = "litert",
    external_workspace: bool = False,
    workspace_io: bool = False,
    pools: Sequence[memory.Pool] = (),
    constants: Sequence[memory.ConstantPool] = (),
    ram: int | None = None,
    byoc: Sequence[str] = (),
    limit_factor: float = 1.0,
    dry_run: bool = False,
) -> Factory:
    """Compile a Relay module.

    Parameters
    ----------
    mod : IRModule
        What `import_model` or the Relay parser returned.
    target : str
        A target string; see `mlfc.target.target.parse_target`. For a device (``opencl``, ``cuda``) every group of
        operators runs there that can, others on the host; see `mlfc.transform.places`.
    params : mapping of str to ndarray, optional
        Values of parameters of ``main``; the others are the model's inputs.
    target_host : str
        The target of the code that launches a device's kernels, and computes what the device does not: ``c`` or
        ``llvm``.
    executor : str
        ``aot``: one C function runs the model. ``graph``: the graph executor calls an operator at a time, with weights
        from a file of parameters. Default: ``graph`` where a device or a runtime module of an external generator has a
        part, else ``aot``.
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
    byoc : sequence of str
        External code generators that take what they can of the model before the compiler does, in this order.
    limit_factor : float
        Multiplies the limits of what a model may cost beyond the size of its weights; see `mlfc.support.cost`.
    dry_run : bool
        Stop before the code is printed: all that can be refused has been by then.

    Returns
    -------
    Factory

    Raises
    ------
    MlfcError
        For options that do not exist, and for what cannot be compiled.
    """
    _require_what_is_compiled(mod, target, params)
    placement = memory.Placement(workspace_io, tuple(pools), tuple(constants))
    chosen = parse_target(target, optimize)
    host = _host(chosen, target_host, optimize)
    if executor is not None:  # before the work is done
        _check_executor(executor, chosen, placement, external_workspace=external_workspace)
    name = checked_module_name(module_name)
    values = dict(params or {})
    partition = transform.PartitionGraph(find_generators(byoc), host.features)
    with limited(sum(np.asarray(value).nbytes for value in values.values()), _tensor_count(mod), limit_factor):
        fused = transform.run(mod, values, partition=partition)
        if executor is None:
            executor = "graph" if chosen.device or takes_modules(fused.main.body) else "aot"
            _check_executor(executor, chosen, placement, external_workspace=external_workspace)
        on_device = transform.place(fused, chosen.device, chosen.features) if chosen.device else None
        program, plan = _planned(fused, host.features, name, placement, ram if executor == "aot" else None, on_device)
    if "stripes" in program.meta:
        placement = replace(placement, ram=ram)
    places = memory.place_constants(program, placement.constants)
    small, vectors = optimize == "size", host.features.vector_bytes > 0
    unit = codegen.Unit(
        program,
        plan,
        name,
        executor,
        external_workspace,
        host,
        mod.quantization,
        workspace_io,
        places,
        small=small,
        packed_constants=small and not vectors,
        device_target=chosen if chosen.device else None,
    )
    options = {"numerics": numerics, "optimize": optimize, **({"byoc": ",".join(byoc)} if byoc else {})}
    factory = Factory(name, chosen, executor, options, mod, values, unit, placement, host if chosen.device else None)
    if not dry_run:
        _ = factory.code
    return factory


def check(
    model: str | Path | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    numerics: str = "litert",
    name: str | None = None,
    byoc: Sequence[str] = (),
    target: str = "c",
    limit_factor: float = 1.0,
) -> list[MlfcError]:
    """Return every problem of a model at once; an empty list means that it can be compiled for the target.

    Everything happens that compiling it takes, but for the code's being printed.

    Parameters
    ----------
    model, shapes, numerics, name, byoc, limit_factor
        As for `import_model`.
    target : str
        As for `build`.
    """
    try:
        mod, params = import_model(
            model,
            shapes=shapes,
            numerics=numerics,
            name=name,
            byoc=byoc,
            target=target,
            limit_factor=limit_factor,
        )
        build(mod, target, params, numerics=numerics, byoc=byoc, limit_factor=limit_factor, dry_run=True)
    except ProblemsError as error:
        return list(error.problems)
    except MlfcError as error:
        return [error]
    return []


def _tensor_count(mod: IRModule) -> int:
    """Return how many tensors the calls of a graph read and make."""
    calls = (expr for expr in post_order(mod.main.body) if isinstance(expr, relay.Call))
    return sum(1 + len(flat_args(call)) for call in calls)


def _require_what_is_compiled(mod: object, target: object, params: object) -> None:
    """Raise OptionError where an argument stands in another's place."""
    if not isinstance(mod, IRModule):
        raise OptionError(
            f"what is compiled is a module, not an object of the class {type(mod).__name__}",
            next_step="Give the first of the two that mlfc.import_model(file) returns, and the second as params",
        )
    if not isinstance(target, str):
        raise OptionError(
            f"a target is text, not an object of the class {type(target).__name__}",
            next_step="The order is build(module, target, params): build(module, 'c', params)",
        )
    if not isinstance(params, Mapping | None):
        raise OptionError(
            f"params are arrays by their names, not an object of the class {type(params).__name__}",
            next_step="Give the second of the two that mlfc.import_model(file) returns",
        )


def _host(chosen: Target, target_host: str, optimize: str) -> Target:
    """Return the target of the host's code."""
    if not chosen.device:
        return chosen
    host = parse_target(target_host, optimize)
    if host.device:
        raise OptionError(
            f"the target of the host cannot be the device '{target_host}'", next_step="Use c, 'c -mcpu=NAME', or llvm"
        )
    return host


def _check_executor(executor: str, target: Target, placement: memory.Placement, *, external_workspace: bool) -> None:
    if executor not in EXECUTORS:
        raise OptionError(f"there is no executor '{executor}'", next_step=f"Executors: {', '.join(EXECUTORS)}")
    if target.device and executor != "graph":
        raise OptionError(f"the executor '{executor}' runs no code of devices", next_step="Use the executor graph")
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
    fused: IRModule,
    features: Features,
    name: str,
    placement: memory.Placement,
    ram: int | None,
    places: Places | None = None,
) -> tuple[Program, memory.Plan]:
    """Return the program with its inputs and outputs where they are to lie, and the proven plan of its workspace."""
    known: dict[relay.Function, LoweredGroup] = {}

    def lowered(stage: Stage | None = None) -> Program:
        program = transform.lower(fused, features, name, stage, known, places)
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
    spend("workspace", plan.workspace_bytes)
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
    factories: Sequence[Factory],
    *,
    share_workspace: bool = False,
    share_weights: bool = False,
    system_lib: bool = False,
) -> codegen.LinkedCode:
    """Return the code of modules that go into one archive or library.

    Parameters
    ----------
    factories : sequence of Factory
        Of different names.
    share_workspace, share_weights, system_lib : bool
        See `codegen.generate_together`.

    Raises
    ------
    OptionError
        If two modules have one name.
    """
    units = [factory.unit for factory in factories]
    return codegen.generate_together(
        units, share_workspace=share_workspace, share_weights=share_weights, system_lib=system_lib
    )


def library_root(factories: Sequence[Factory], *, share_workspace: bool = False, share_weights: bool = False) -> Module:
    """Return what a library of these modules has as its root: the factory of a single one, else a `ModuleSet`.

    Parameters
    ----------
    factories, share_workspace, share_weights
        As for `link`.
    """
    if len(factories) == 1:
        return factories[0].runtime
    sharing = {"share_workspace": share_workspace, "share_weights": share_weights}
    linked = link(factories, **sharing)
    described = {
        factory.module_name: factory.interface(code) for factory, code in zip(factories, linked.modules, strict=True)
    }
    units = [factory.unit for factory in factories]

    def native() -> Mapping[str, Data]:
        from mlfc.codegen.llvm.code import native_unit

        here = [(native_unit(unit) if unit.target.kind == "llvm" else None) or unit for unit in units]
        return codegen.generate_together(here, **sharing).files

    beside = beside_code(units, linked.modules, described)
    has_objects = any(unit.target.kind == "llvm" for unit in units)
    code = HostLibrary(linked.files, beside=beside, cpu=units[0].target.mcpu, native=native if has_objects else None)
    objects: set[bytes] = set()
    for module in (module for factory in factories for module in factory.lib.imported_modules):
        # an object that parts of several modules call defines its functions once
        if isinstance(module, ExternalCode) and module.format == "o":
            if (data := module.save_to_bytes()) in objects:
                continue
            objects.add(data)
        code.import_module(module)
    return ModuleSet(
        *(
            FactoryModule(factory.module_name, code, graph_json=factory.graph_json, params=factory.params)
            for factory in factories
        )
    )
