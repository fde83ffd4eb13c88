"""Memory budgets: checks that compiled modules fit, with hints if they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfc.archive.details import AOT, module_info
from mlfc.archive.write.members import linked_code
from mlfc.archive.write.options import ExportOptions
from mlfc.codegen import GeneratedCode, LinkedCode
from mlfc.errors import BudgetError, OptionError
from mlfc.factory import Factory
from mlfc.support.dim_estimates import most
from mlfc.support.executable import bounding_option
from mlfc.support.module_info import ConstantInfo, NamedBytes, PeakInfo
from mlfc.support.text import shortened

_LARGEST = 5
_IO_HINT = "Overlap intermediates with the inputs: --workspace-io. "


@dataclass(frozen=True, eq=False)
class _ModuleRam:
    """RAM of one module, in bytes."""

    factory: Factory
    code: GeneratedCode
    workspace: int  # of dynamic models the work area, which contains the outputs
    io: int  # inputs and outputs that count, outside the workspace
    loaded: int  # constants that the graph executor loads; those of AOT modules stay in flash
    state: int  # for the graph executor included in `loaded`

    @classmethod
    def of(cls, factory: Factory, code: GeneratedCode, lent: bool) -> _ModuleRam:
        """Return the memory needs of a module, including the caller's inputs and outputs if `lent`."""
        executable, sizes = code.executable, code.sizes
        io = sizes.io
        if factory.memory_options.workspace_io or (factory.executor == AOT and not lent):
            io = 0
        elif executable is not None:
            io = sum(most(value.nbytes) or 0 for value in factory.program.inputs)
        workspace = sizes.workspace if executable is None else executable.work_bytes or 0
        loaded, state = (0, factory.state_bytes) if code.graph is None else (sizes.constants, 0)
        return cls(factory, code, workspace, io, loaded, state)

    @property
    def ram(self) -> int:
        """All blocks of an executor, or workspace, inputs, outputs and state of AOT modules."""
        return self.workspace + self.io + self.loaded + self.state


def check_budget(
    factories: Sequence[Factory],
    *,
    ram: int | None = None,
    flash: int | None = None,
    options: ExportOptions | None = None,
    lent: bool = True,
) -> None:
    """Raise BudgetError if the modules together exceed a limit of RAM, flash or a memory.

    `ram`: bytes for the workspaces, states, inputs and outputs, and for constants that the graph executor loads. Of
    modules that share their workspace the largest counts.
    `flash`: bytes for the constants, with shared ones counted once. Machine code is not included, as its size is known
    only after the C compiler has run.
    `lent`: also count the inputs and outputs that callers of AOT modules provide.
    """
    for name, limit in (("ram", ram), ("flash", flash)):
        if limit is not None and limit < 0:
            raise OptionError(f"a budget of {limit} bytes is negative", place=f"--{name}")
    _check_memories(factories)
    if (ram is None and flash is None) or not factories:
        return
    for factory in factories if ram is not None else ():
        executable = factory.code.executable
        if executable is not None and executable.work_bytes is None:
            symbols = [symbol.name for symbol in executable.symbols if symbol.high is None]
            what = f"dynamic dimensions ({shortened(', '.join(symbols))})" if symbols else "memory"
            interface = factory.interface()
            option = bounding_option(interface.inputs, interface.vm.symbols if interface.vm else ())
            raise OptionError(
                f"a budget of RAM requires bounds, and module '{factory.module_name}' has {what} without one",
                place="--ram",
                next_step=f"Bound them: {option}, or omit --ram",
            )
    linked = linked_code(factories, options or ExportOptions())
    modules = [_ModuleRam.of(factory, code, lent) for factory, code in zip(factories, linked.modules, strict=True)]
    apart = sum(item.code.sizes.workspace for item in modules if item.factory.module_name in linked.workspace_modules)
    used = sum(item.ram for item in modules) - apart + linked.workspace_bytes
    if ram is not None and used > ram:
        raise _ram_error(modules, linked, used, ram)
    constants = sum(code.sizes.constants - code.sizes.shared_constants for code in linked.modules)
    constants += linked.constants_bytes
    if flash is not None and constants > flash:
        values = [value for factory in factories for value in factory.program.constants]
        largest = largest_text([NamedBytes(value.name, value.nbytes) for value in values])
        raise BudgetError(
            f"{constants:,} bytes of constants exceed the budget of {flash:,} by {constants - flash:,} bytes, "
            f"excluding machine code; {largest}",
            next_step="Make these layers smaller, or quantize the model",
        )


def _check_memories(factories: Sequence[Factory]) -> None:
    """Check the total of all modules in each memory against its size; `build` has checked each module alone."""
    asked = [factory.memory_options for factory in factories]
    placed = [[(span.name, span.nbytes) for span in factory.plan.spans] for factory in factories]
    held = [[(pool.name, item.nbytes) for item, pool in factory.unit.constant_pools.items()] for factory in factories]
    for kind, pools, memories in (
        ("workspace", [pool for options in asked for pool in options.pools], placed),
        ("constants", [pool for factory in factories for pool in factory.unit.constant_pools.values()], held),
    ):
        limits = {pool.name: pool.nbytes for pool in pools if pool.nbytes is not None}
        for name, limit in limits.items():
            parts = [sum(nbytes for pool, nbytes in module if pool == name) for module in memories]
            if sum(parts) > limit:
                each = ", ".join(f"{item.module_name} {part:,}" for item, part in zip(factories, parts, strict=True))
                raise BudgetError(
                    f"the {kind} of all modules take {sum(parts):,} bytes of '{name}', {sum(parts) - limit:,} more "
                    f"than its {limit:,}: {each}",
                    next_step="Compile each with its own limit for the memory",
                )


def _ram_error(modules: Sequence[_ModuleRam], linked: LinkedCode, used: int, limit: int) -> BudgetError:
    heaviest = max(modules, key=lambda item: item.ram)
    peak = module_info(heaviest.factory, heaviest.code).peak
    sizes = heaviest.code.sizes
    cause = f"{used:,} bytes of RAM exceed the budget of {limit:,} by {used - limit:,} bytes"
    if len(modules) > 1:
        cause += f", the largest part for module '{heaviest.factory.module_name}'"
    if linked.workspace_bytes:
        cause += f", with one workspace of {linked.workspace_bytes:,} for {len(linked.workspace_modules)} modules"
    loaded = f", loaded constants {heaviest.loaded:,}" if heaviest.loaded else ""
    loaded += f", state {heaviest.state:,}" if heaviest.state else ""
    own = f", {'inputs' if heaviest.code.executable else 'inputs and outputs'} {heaviest.io:,}" if heaviest.io else ""
    if heaviest.code.executable is not None:
        return BudgetError(
            f"{cause}: work area {heaviest.workspace:,} with an arena of {sizes.workspace:,}{own}",
            next_step="Set smaller bounds of dynamic dimensions with --shape, or quantize the model",
        )
    if peak is None:
        return BudgetError(f"{cause}: the module has no workspace, inputs and outputs are {heaviest.io:,}{loaded}")
    hint = _IO_HINT if heaviest.io and heaviest.factory.executor == "aot" else ""
    return BudgetError(
        f"{cause}: workspace {sizes.workspace:,}{own}{loaded}; {peak_text(peak)}",
        next_step=f"{hint}Make these tensors smaller, or quantize the model",
    )


def peak_text(peak: PeakInfo) -> str:
    """Return the layer in which a module's ``peak`` occurs, and its largest tensors, as text."""
    busiest = shortened(", ".join(peak.nodes) or peak.function)
    return (
        f"the peak is in {busiest} with {peak.live_bytes:,} live bytes; "
        f"the largest tensors there: {_listed(peak.tensors)}"
    )


def largest_text(constants: Sequence[NamedBytes | ConstantInfo]) -> str:
    """Return the largest of these constants as text."""
    return f"the largest: {_listed(sorted(constants, key=lambda item: (-item.nbytes, item.name)))}"


def _listed(tensors: Sequence[NamedBytes | ConstantInfo]) -> str:
    return ", ".join(f"{shortened(item.name)} ({item.nbytes:,})" for item in tensors[:_LARGEST])
