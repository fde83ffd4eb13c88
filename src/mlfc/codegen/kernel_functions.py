"""Which C function computes which kernel of a module: one of its own, one that kernels share, one of another file.

Kernels of a device have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mlfc.codegen.kernel_values import KernelValues
from mlfc.codegen.operators import OperatorsFile, kernel_comment
from mlfc.codegen.unit import Shared, Unit
from mlfc.tir.ir import KernelCall, PrimFunc
from mlfc.tir.merge_families import merge_families
from mlfc.tir.specialize import without_single_trips


@dataclass(frozen=True, eq=False)
class KernelFunctions:
    """The C functions of a module's kernels.

    Attributes
    ----------
    unit : Unit
    names : mapping of str to str
        C name of the function by the kernel's name.
    arguments : mapping of str to str
        The variable whose address it takes behind the pointers, for kernels of a shared function.
    own : mapping of str to str
        The C name that each kernel would have alone; of kernels that this module's file defines.
    families : tuple of KernelValues
    """

    unit: Unit
    names: Mapping[str, str]
    arguments: Mapping[str, str]
    own: Mapping[str, str]
    families: tuple[KernelValues, ...]

    def write(
        self, operators: OperatorsFile, *, static: bool = False, after: Callable[[PrimFunc], str] | None = None
    ) -> None:
        """Define the functions, and declare those that another file defines; modules compute the others.

        Parameters
        ----------
        operators : OperatorsFile
        static : bool
            No other file sees them.
        after : callable, optional
            Returns what follows the function of a kernel.
        """
        calls = self._calls()
        families = {values.shared.members[0]: values for values in self.families}
        members = {member for values in self.families for member in values.shared.members}
        for kernel in self.unit.kernels_in_code:
            if kernel.device is not None:
                continue
            if kernel.name not in self.own or kernel.external is not None:
                operators.declare_kernel(kernel, self.names[kernel.name], self.unit.aliased_inputs(kernel))
            elif kernel in families:
                self._write_family(families[kernel], operators, calls, static=static)
            elif kernel not in members:
                printed, aliased = printed_form(self.unit, kernel), self.unit.aliased_inputs(kernel)
                name, users = self.own[kernel.name], calls.get(kernel.name, [])
                operators.add_kernel(printed, name, users, aliased=aliased, static=static)
            if after is not None:
                operators.functions.append(after(kernel))

    def _write_family(
        self, values: KernelValues, operators: OperatorsFile, calls: Mapping[str, list[KernelCall]], *, static: bool
    ) -> None:
        aliased = frozenset().union(*map(self.unit.aliased_inputs, values.shared.members))
        operators.add_shared(values, aliased=aliased, static=static)
        for position, member in enumerate(values.shared.members):
            comment = kernel_comment(member, calls.get(member.name, []))
            operators.functions.append(values.definition(position, self.own[member.name], comment))

    def _calls(self) -> dict[str, list[KernelCall]]:
        calls: dict[str, list[KernelCall]] = {}
        for call in self.unit.program.calls:
            calls.setdefault(call.kernel.name, []).append(call)
        return calls


def kernel_functions(unit: Unit, shared: Shared, names: Mapping[str, str]) -> KernelFunctions:
    """Choose the functions of a module's kernels.

    Parameters
    ----------
    unit : Unit
    shared : Shared
        What other files hold.
    names : mapping of str to str
        C names of kernels that have a function of their own.
    """
    found, own, arguments = {}, {}, {}
    alone = []
    for kernel in unit.program.kernels:
        if kernel.device is not None:
            continue
        elsewhere = shared.functions.get(unit.kernel_key(kernel))
        found[kernel.name] = elsewhere or names[kernel.name]
        if elsewhere is None:
            own[kernel.name] = names[kernel.name]
            alone.append(kernel)
    families = tuple(
        KernelValues(family, own[family.members[0].name]) for family in (merge_families(alone) if unit.small else ())
    )
    for values in families:
        for member in values.shared.members:
            found[member.name] = values.function
            arguments[member.name] = values.symbol(own[member.name])
    return KernelFunctions(unit, found, arguments, own, families)


def printed_form(unit: Unit, kernel: PrimFunc) -> PrimFunc:
    """Return a kernel in the form in which it is printed: loops of one trip are there only to be shared."""
    return replace(kernel, body=without_single_trips(kernel.body)) if unit.small else kernel
