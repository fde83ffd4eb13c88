"""One module to print, and the parts that it may share with other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlfc.errors import OptionError, unknown
from mlfc.memory import ConstantPool, MemoryOptions, Plan
from mlfc.relay.ir import Quantization
from mlfc.support import c_names
from mlfc.support.executable import Executable
from mlfc.target.features import Levels
from mlfc.target.target import Target, parse_target
from mlfc.tir.ir import PrimFunc
from mlfc.tir.parallel import LEAST_OF_MODEL, as_number, work_of
from mlfc.tir.program import Program, Value
from mlfc.tir.visitor import signature

EXECUTORS = ("aot", "graph", "vm")
SHARED_MODULE = "mlfc_shared"
"""Prefix of files and symbols that several modules share."""


@dataclass(frozen=True, eq=False)
class Unit:
    """One module to print."""

    program: Program
    plan: Plan  # memory of its intermediates and scratch
    module: str  # name in files and symbols, in the form of `support.c_names.module_name`
    executor: str = "aot"  # one of EXECUTORS
    external_workspace: bool = False  # the caller passes the workspace in, instead of a static array; AOT only
    # selects the printer; the host's target if kernels run on a device
    target: Target = field(default_factory=lambda: parse_target("c"))
    # of inputs and outputs, for the header's comments
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    workspace_io: bool = False  # inputs and outputs are in the workspace
    # the memories of constants that the linker does not place
    constant_pools: Mapping[Value, ConstantPool] = field(default_factory=dict)
    # prefer small code to fast code: kernels that differ only in constants become one function with parameters
    small: bool = False
    packed_constants: bool = False  # align constants only as much as their elements require, unless vectors read them
    device_target: Target | None = None  # of the kernels on a device
    # if the code is for one processor level of the target, its name; None for all levels
    only_level: str | None = None
    executable: Executable | None = None  # of the virtual machine
    parallel: str = ""  # the function by which kernels distribute work over threads, if any

    @property
    def levels(self) -> Levels | None:
        """The processor levels that have separate kernels in separate files, if any."""
        levels = self.target.levels
        if levels is None or self.only_level is None:
            return levels
        return None if self.target.kind == "llvm" else levels.chosen(self.only_level)  # no flags, hence no files

    def at_level(self, level: str | None) -> Unit:
        """Return the unit for the processors of one level only, if its target has several; None for all."""
        levels = self.target.levels
        return self if levels is None else replace(self, only_level=level or levels.levels[0].name)

    @property
    def is_worth_threads(self) -> bool:
        """True if the module takes so long that threads pay even if each run has to wake them."""
        features = self.target.features
        if features.is_microcontroller or features.optimize == "size":
            return False
        works = (as_number(work_of(call.kernel.body)) for call in self.program.calls if call.kernel.device is None)
        return sum(works) >= LEAST_OF_MODEL

    @property
    def contracts(self) -> bool:
        """True if a product and a sum of floats may be fused to a multiply-add."""
        return self.program.contracts_floats

    @property
    def kernels_in_code(self) -> tuple[PrimFunc, ...]:
        """The kernels that code computes, not those of an external generator's runtime module."""
        kernels = self.program.kernels
        return tuple(kernel for kernel in kernels if kernel.external is None or kernel.external.module is None)

    def aliased_inputs(self, kernel: PrimFunc) -> frozenset[int]:
        """Return the positions of the inputs that the kernel's output overlaps in some call, according to the plan."""
        if self.executor != "aot":  # each of their tensors occupies whole blocks
            return frozenset()
        return frozenset(
            position
            for call, roots in zip(self.program.calls, self.plan.aliased_inputs, strict=True)
            if call.kernel is kernel
            for position, value in enumerate(call.inputs)
            if value.root in roots
        )

    def function_names(self) -> dict[str, str]:
        """Return the names of the functions of kernels that have their own, by kernel name."""
        plain = c_names.unique(kernel.name for kernel in self.program.kernels)
        kernels = zip(self.program.kernels, plain, strict=True)
        return {kernel.name: f"tvmgen_{self.module}_{name}" for kernel, name in kernels}

    def kernel_key(self, kernel: PrimFunc) -> str:
        """Return a key that is equal for kernels, of any module, with equal C code."""
        return f"{self.contracts};{self.parallel};{sorted(self.aliased_inputs(kernel))};{signature(kernel)}"

    def used_constants(self) -> list[Value]:
        """Return the constants that calls use as arguments, in the order of first use."""
        used: dict[Value, None] = {}
        for call in self.program.calls:
            for value in (*call.inputs, *call.constants):
                if value.root.kind == "constant":
                    used[value.root] = None
        return list(used)


@dataclass(frozen=True, eq=False)
class Shared:
    """The parts that a module uses from the files of `SHARED_MODULE` instead of defining them."""

    functions: Mapping[str, str] = field(default_factory=dict)  # C names of kernels by `Unit.kernel_key`
    # C names of constants by `constants.content`
    constants: Mapping[tuple[str, bytes], str] = field(default_factory=dict)
    workspace: str | None = None  # C name of the array that several modules use as workspace
    # by module, the others that use the same memory
    workspace_peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    registry: bool = False  # whether it has the table of packed functions


NOTHING_SHARED = Shared()


def check_executor(executor: str, target: Target, memory_options: MemoryOptions, *, external_workspace: bool) -> None:
    """Raise OptionError if the executor is unknown, or does not support the target or the memory options."""
    if executor not in EXECUTORS:
        raise OptionError(unknown("executor", executor, EXECUTORS))
    if target.device and executor not in ("graph", "vm"):
        raise OptionError(
            f"a device requires the graph executor or the virtual machine, got '{executor}'",
            next_step="Leave the option out",
        )
    if external_workspace and executor != "aot":
        raise OptionError(
            "an external workspace requires the AOT executor", next_step="Use --executor aot, or leave the option out"
        )
    if memory_options != MemoryOptions() and executor != "aot":
        raise OptionError(
            f"memory options require the AOT executor, got '{executor}', which allocates memory itself",
            next_step="Use --executor aot, or leave the options out",
        )
