"""Result of `build`: the code, memory plan and constants of a module, and the artifacts derived from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mlfc import codegen, memory
from mlfc.library.device_modules import beside_code, device_module, parallel_files
from mlfc.library.export import export_library
from mlfc.library.host import HostLibrary
from mlfc.relay.ir import IRModule
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.aot_module import AotModule, loaded_pools
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.vm.vm_module import VmModule
from mlfc.runtime.libraries.factory import DEFAULT_KEY, FactoryModule, ModuleSet
from mlfc.runtime.modules.module import ExternalCode, Function, Module, load_part
from mlfc.runtime.modules.runnable import Runnable
from mlfc.support.c_names import PARALLEL_FOR_IF_ASKED
from mlfc.support.content import Data
from mlfc.support.dim_estimates import most, most_work
from mlfc.support.dim_walk import UNKNOWN, count_text, tensor_text
from mlfc.support.dims import Dim, bounds
from mlfc.support.executable import state_offsets, vm_info
from mlfc.support.module_info import MemoryInfo, ModuleInterface, OperatorInfo, PoolInfo, StateInfo, VmInfo
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed
from mlfc.target.features import AUTO
from mlfc.target.target import Target
from mlfc.tir.program import KernelCall, Program, StateValue, Value


@dataclass(frozen=True, eq=False, repr=False)
class Factory(Displayed):
    """A compiled module; unpacks as ``(graph_json, lib, params)``."""

    module_name: str
    target: Target
    executor: str
    module: IRModule  # the model as imported
    source_params: Mapping[str, npt.NDArray[Any]]  # the model's weights by name
    unit: codegen.Unit  # input of code generation: program, plan, names
    memory_options: memory.MemoryOptions = field(default_factory=memory.MemoryOptions)
    target_host: Target | None = None  # of the host code of a device target
    specialize: tuple[Mapping[str, int], ...] = ()  # values of dynamic dimensions with specialized code
    parallel: bool | None = None  # whether library kernels use threads; None: if that pays
    system_lib: bool = False  # whether exported objects are for programs with TVM's C runtime

    def _facts(self) -> Mapping[str, object]:
        return {"name": self.module_name, "target": ", ".join(map(str, self.targets)), "executor": self.executor}

    @property
    def targets(self) -> tuple[Target, ...]:
        """The device's target, if any, and the host's."""
        return (self.target,) if self.target_host is None else (self.target, self.target_host)

    @property
    def optimize(self) -> str:
        """The optimization goal: ``speed`` or ``size``."""
        return self.unit.target.features.optimize

    @cached_property
    def code(self) -> codegen.GeneratedCode:
        """The code of the module alone; see `link` for several modules."""
        # code for several processor levels is for libraries alone
        code = codegen.generate(self.host_unit if self.unit.levels else self.unit)
        return replace(code, files={**code.files, **parallel_files([self.unit])}) if self.unit.parallel else code

    @cached_property
    def host_unit(self) -> codegen.Unit:
        """The unit for libraries, whose kernels share their work among threads if that was requested or pays."""
        is_offered = self.parallel is None and self.unit.is_worth_threads
        return replace(self.unit, parallel=PARALLEL_FOR_IF_ASKED) if is_offered else self.unit

    @cached_property
    def host_code(self) -> codegen.GeneratedCode:
        """The code of the module for host libraries."""
        is_same = self.host_unit is self.unit or self.unit.levels is not None
        return self.code if is_same else codegen.generate(self.host_unit)

    @property
    def program(self) -> Program:
        """The kernels, and their calls in order."""
        return self.unit.program

    @property
    def plan(self) -> memory.Plan:
        """The memory plan of intermediate tensors."""
        return self.unit.plan

    @property
    def graph_json(self) -> str:
        """The graph executor's configuration; empty for other executors."""
        return self.code.graph.text if self.code.graph else ""

    @property
    def graph_constants(self) -> dict[str, Value]:
        """The graph executor's constants by node name; empty for AOT, whose code contains them."""
        return dict(self.code.graph.params) if self.code.graph else {}

    @property
    def params(self) -> dict[str, npt.NDArray[Any]]:
        """The parameters that the executor loads: the arrays of `graph_constants`."""
        return {name: value.array for name, value in self.graph_constants.items()}

    @property
    def storages(self) -> tuple[tuple[int, int, str | None], ...]:
        """The graph executor's storage blocks: id, bytes, and the input or constant node that owns it, if any."""
        if self.code.plan is None or self.code.graph is None:
            return ()
        names, storages = self.code.graph.bindings, self.code.plan.storages
        return tuple((number, bounds(item.nbytes)[1], names.get(number)) for number, item in enumerate(storages))

    @cached_property
    def lib(self) -> HostLibrary:
        """The code as a module, which is built for this machine when a function is first requested.

        Its imported modules are stored in archives with it: device kernels, and modules of external generators.
        """
        unit = self.host_unit
        options: dict[str, Any] = {
            "params": self.params,
            "beside": beside_code([unit], lambda: [self.host_code], {self.module_name: self.interface()}),
            "cpu": self.unit.target.library_cpu,
            "at_level": lambda level: codegen.generate(unit.at_level(level)).files,
            "system": lambda: link([self], system_lib=True).files,
            "system_lib": self.system_lib,
        }
        if self.unit.target.kind == "llvm":
            from mlfc.library.llvm_library import llvm_library  # importing LLVM takes long

            options["levels"] = self.host_code.levels
            library: HostLibrary = llvm_library(unit, self.host_code.files, **options)
        elif unit.levels:  # libraries have the code of all levels; in this process one level is sufficient
            library = HostLibrary(lambda: self.host_code.files, levels=codegen.level_paths(unit), **options)
        else:
            library = HostLibrary(self.host_code.files, **options)
        if self.code.device is not None:
            library.import_module(device_module(self.code.device, self.target))
        for part in self.code.external:
            library.import_module(load_part(part.generator, part.data, part.suffix, part.name))
        return library

    @property
    def imported_modules(self) -> tuple[Module, ...]:
        """The modules that a factory imports: only its code."""
        return (self.lib,)

    @cached_property
    def runtime(self) -> FactoryModule | VmModule:
        """The runtime module of this process; its code is built when an executor is first requested."""
        if self.unit.executable is not None:
            return VmModule(self.unit.executable, self.lib)
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

    def get_graph_json(self) -> str:
        """Return `graph_json`; this and the next two are methods of TVM's factory."""
        return self.graph_json

    def get_lib(self) -> HostLibrary:
        """Return `lib`."""
        return self.lib

    def get_params(self) -> dict[str, npt.NDArray[Any]]:
        """Return `params`."""
        return self.params

    def __getitem__(self, name: str) -> Function:
        """Return a function of `runtime`: ``factory["default"](mlfc.cpu(0))`` is an executor."""
        return self.runtime[name]

    def export_library(self, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Path:
        """Write the model as a self-contained library; arguments are as for `library.export`."""
        return export_library(self.runtime, path, *arguments, **self.lib.export_options(path, options))

    def interface(self, code: codegen.GeneratedCode | None = None) -> ModuleInterface:
        """Return the interface for callers: entry, inputs, outputs, memory; `code` is linked with other modules."""
        code = code or self.code
        return ModuleInterface(
            executor=self.executor,
            entry=code.entry,
            external_workspace=code.external_workspace,
            workspace_peers=tuple(code.workspace_peers),
            workspace_io=self.memory_options.workspace_io,
            pools=tuple(PoolInfo(pool.name, pool.nbytes, pool.base, pool.lower_bound) for pool in self.plan.spans),
            tiling=self.program.tiling,
            constant_pools=codegen.constant_pools(self.unit, code) if self.memory_options.constants else (),
            inputs=tuple(map(self._tensor, self.program.inputs)),
            outputs=tuple(map(self._tensor, self.program.outputs)),
            states=tuple(map(self._state, self.program.states)),
            levels=tuple(level.name for level in self.unit.levels.levels) if self.unit.levels else (),
            vm=self._vm(),
            memory=MemoryInfo(
                code.sizes.workspace, self.plan.lower_bound, code.sizes.constants, code.sizes.io, self.state_bytes
            ),
            operators=None if self.executor == "aot" else self._timed(code),
        )

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the state that is kept between runs."""
        if self.unit.executable is not None:
            return state_offsets(self.unit.executable)[-1]
        if self.executor == "graph":
            return sum(state.before.nbytes for state in self.program.states)
        return self.plan.state_bytes

    def _timed(self, code: codegen.GeneratedCode) -> tuple[OperatorInfo, ...]:
        """Return the operator information for profiles, for executors that call operators one by one."""
        known = (call_info(call, code.function_of(call.kernel.name)) for call in self.program.calls)
        if self.executor == "graph":  # its graph describes what is read and written
            return tuple(OperatorInfo(item.function, item.nodes, item.macs) for item in known)
        return tuple(known)

    def _state(self, state: StateValue) -> StateInfo:
        known = self._tensor(state.before)
        following = {item.input: item.output for item in self.module.states}[state.before.name]
        offset = self.plan.state_offsets[state.before] if self.executor == "aot" else None
        if self.unit.executable is not None:
            offset = state_offsets(self.unit.executable)[self.program.states.index(state)]
        return StateInfo(known.name, known.shape, known.dtype, known.scale, known.zero_point, following, offset)

    def _tensor(self, value: Value) -> TensorInfo:
        known = self.module.quantization.get(value.name)
        scale, zero_point = (known.scale, known.zero_point) if known else (None, None)
        shape = tuple(extent if isinstance(extent, int) else str(extent) for extent in value.shape)
        return TensorInfo(value.name, shape, value.dtype, scale, zero_point)

    def _vm(self) -> VmInfo | None:
        executable = self.unit.executable
        if executable is None:
            return None
        info = vm_info(executable)
        sizes = [most(value.nbytes) for value in self.program.inputs]
        known = [size for size in sizes if size is not None]
        return replace(info, input_bytes=sum(known) if len(known) == len(sizes) else None)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))


def link(
    factories: Sequence[Factory],
    *,
    share_workspace: bool = False,
    share_weights: bool = False,
    system_lib: bool = False,
) -> codegen.LinkedCode:
    """Return the code of modules that are linked into one archive or library.

    `factories` must have different names. `share_workspace`, `share_weights` and `system_lib`: see
    `codegen.generate_together`. Raises OptionError if two modules have the same name.
    """
    units = [factory.unit for factory in factories]
    linked = codegen.generate_together(
        units, share_workspace=share_workspace, share_weights=share_weights, system_lib=system_lib
    )
    return replace(linked, files={**linked.files, **parallel_files(units)})


def library_root(factories: Sequence[Factory], *, share_workspace: bool = False, share_weights: bool = False) -> Module:
    """Return the root module of a library: the factory of a single module, else a `ModuleSet`.

    `factories`, `share_workspace` and `share_weights`: as for `link`.
    """
    if len(factories) == 1:
        return factories[0].runtime
    sharing = {"share_workspace": share_workspace, "share_weights": share_weights}
    linked = codegen.generate_together([factory.host_unit for factory in factories], **sharing)
    described = {
        factory.module_name: factory.interface(code) for factory, code in zip(factories, linked.modules, strict=True)
    }
    units = [factory.host_unit for factory in factories]

    def native() -> Mapping[str, Data]:
        from mlfc.codegen.llvm.code import native_unit

        here = [(native_unit(unit) if unit.target.kind == "llvm" else None) or unit for unit in units]
        return codegen.generate_together(here, **sharing).files

    beside = beside_code(units, lambda: linked.modules, described)
    has_objects = any(unit.target.kind == "llvm" for unit in units)
    cpus = [unit.target.library_cpu for unit in units]
    code = HostLibrary(
        linked.files,
        beside=beside,
        cpu=AUTO if AUTO in cpus else cpus[0],
        native=native if has_objects else None,
        levels=linked.levels,
        at_level=lambda level: codegen.generate_together([unit.at_level(level) for unit in units], **sharing).files,
        system=lambda: link(factories, system_lib=True, **sharing).files,
    )
    objects: set[bytes] = set()
    for module in (module for factory in factories for module in factory.lib.imported_modules):
        # an object that several modules use must be linked only once
        if isinstance(module, ExternalCode) and module.format == "o":
            if (data := module.save_to_bytes()) in objects:
                continue
            objects.add(data)
        code.import_module(module)
    return ModuleSet(
        *(
            FactoryModule(item.module_name, code, graph_json=item.graph_json, params=item.params)
            if item.unit.executable is None
            else VmModule(item.unit.executable, code)
            for item in factories
        )
    )


def call_info(call: KernelCall, function: str) -> OperatorInfo:
    """Return the operator information of a call to a generated function."""
    touched = dict.fromkeys(value.root for value in (*call.inputs, *call.constants, call.output))
    nbytes: Any = sum(value.nbytes for value in touched)
    macs = call.kernel.macs
    numbered = {symbol: place for place, symbol in enumerate(call.kernel.symbols)}
    # the model's own dimension sizes among the arguments of the call
    passed = {
        number.symbol: place
        for place, number in reversed([*enumerate(call.numbers)])
        if isinstance(number, Dim) and number.symbol is not None
    }
    text = count_text(macs, numbered) if isinstance(macs, Dim) else UNKNOWN
    return OperatorInfo(
        function,
        tuple(call.nodes),
        most_work(macs),
        most(nbytes),
        tuple(tensor_text(value.dtype, value.shape, passed) for value in (*call.inputs, *call.constants, call.output)),
        None if text == UNKNOWN else text,
    )
