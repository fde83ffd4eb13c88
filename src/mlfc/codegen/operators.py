"""The C file of a module's operators: which function computes which kernel, and each under a comment on what it does.

A kernel has a function of its own, shares one with other kernels, or is computed by one of another file. Kernels of a
device have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlfc.codegen.c import CFunction, preamble, print_function, print_shared, signature
from mlfc.codegen.c_expr import Requirements
from mlfc.codegen.kernel_values import KernelValues
from mlfc.codegen.levels import OF_LEVEL, dispatcher, guarded, placed, served
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.writer import PIECES, comment_text
from mlfc.target.features import Level, Levels
from mlfc.tir.ir import PrimFunc
from mlfc.tir.merge_kernels import merge_families
from mlfc.tir.parameters import without_single_trips
from mlfc.tir.program import KernelCall

_SHOWN_NODES = 40


@dataclass(eq=False)
class OperatorsFile:
    """Collects the contents of one C file of kernels."""

    contracts: bool  # whether products and sums of floats may become fused multiply-adds
    includes: tuple[str, ...] = ()  # lines beside those that the kernels need
    needs: Requirements = field(default_factory=Requirements)
    declarations: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    levels: Levels | None = None  # of processors, with kernels of their own in files of their own
    higher: dict[str, OperatorsFile] = field(default_factory=dict)  # these files, by level
    compact: bool = False  # compilers keep loops of long bodies

    def __post_init__(self) -> None:
        self.compact = self.compact or (self.levels is not None and self.levels.levels[0].features.compact)
        for level in self.levels.higher if self.levels else ():
            first = [PIECES["hidden"], placed(level)]
            self.higher[level.name] = OperatorsFile(self.contracts, declarations=first, compact=level.features.compact)

    def add_levels(
        self,
        prim: PrimFunc,
        name: str,
        calls: Sequence[KernelCall],
        *,
        aliased: frozenset[int],
        static: bool,
        parallel: str,
    ) -> None:
        """Define the kernel `prim` for each level that serves it, and `name`, which calls that of the processor."""
        assert self.levels is not None
        own = {level.name: f"{name}_{level.symbol}" for level in served(self.levels, prim)}
        for level, file in self.higher.items():
            if level not in own:
                continue
            head = signature(prim, own[level], aliased)
            self.declarations.append(f"{head};")
            file.declarations.append(f"{head} MLF_HIDDEN {OF_LEVEL};")
            file.add_kernel(prim.at(level), own[level], calls, aliased=aliased, parallel=parallel, mark=OF_LEVEL)
        if (first := own.get(self.levels.levels[0].name)) is not None:
            self.declarations.append(f"static {signature(prim, first, aliased)} {OF_LEVEL};")
            self.add_kernel(prim, first, calls, aliased=aliased, static=True, parallel=parallel, mark=OF_LEVEL)
        self.functions.append(dispatcher(prim, name, aliased, self.levels, own, static=static))

    def add_kernel(
        self,
        prim: PrimFunc,
        name: str,
        calls: Sequence[KernelCall],
        *,
        aliased: frozenset[int] = frozenset(),
        static: bool = False,
        parallel: str = "",
        mark: str = "",
    ) -> None:
        """Define the kernel `prim` under the C name `name`; for the rest see `codegen.c.print_function`."""
        printed = print_function(prim, name, aliased, parallel=parallel, mark=mark, compact=self.compact)
        self.needs.merge(printed.needs)
        self.functions += printed.parts
        self.functions.append(_documented(prim, calls, printed, static=static))

    def add_shared(self, values: KernelValues, *, aliased: frozenset[int] = frozenset(), static: bool = False) -> None:
        """Define the function that several kernels share, and the struct of the numbers in which they differ."""
        function = print_shared(values, aliased)
        self.needs.merge(function.needs)
        head = f"/* {comment_text(values.shared.members[0].name)}: {len(values.shared.members)} kernels in one */"
        text = f"static {function.text}" if static else function.text
        self.functions += [values.declaration(), f"{head}\n{text}"]

    def declare_kernel(self, prim: PrimFunc, name: str, aliased: frozenset[int] = frozenset()) -> None:
        """Declare a kernel that another file defines."""
        self.declarations.append(f"{signature(prim, name, aliased)};")

    def level_files(self, module: str, first: str) -> dict[str, bytes]:
        """Return the files of higher levels that have kernels by path, which begin with the lines `first`."""
        if self.levels is None:
            return {}
        files = [(level, self.higher[level.name]) for level in self.levels.higher]
        texts = {level: guarded(file.text(), self.levels, level) for level, file in files if file.functions}
        return {level_path(module, level): (first + text).encode() for level, text in texts.items()}

    def text(self) -> str:
        """Return the file's text, without its first lines."""
        parts = [
            "" if self.contracts else PIECES["separate_rounding"],
            "\n".join([*self.includes, *preamble(self.needs)]),
            *self.declarations,
            *self.functions,
        ]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def level_path(module: str, level: Level) -> str:
    """Return the path of the file with a module's kernels for a level."""
    return f"src/{module}_lib1_{level.symbol}.c"


def _documented(kernel: PrimFunc, calls: Sequence[KernelCall], function: CFunction, *, static: bool) -> str:
    """Return the function under a comment on what it computes, and for which nodes of the model."""
    return "\n".join([*kernel_comment(kernel, calls), f"static {function.text}" if static else function.text])


def kernel_comment(kernel: PrimFunc, calls: Sequence[KernelCall]) -> list[str]:
    """Return the lines of a comment on what a kernel computes, and for which nodes of the model."""
    lines = [f"/* {comment_text(kernel.name)}: {_facts(kernel)}"]
    for call in calls[:_SHOWN_NODES]:
        lines.append(f" * {comment_text(', '.join(node[:100] for node in call.nodes)[:400]) or '(no node)'}")
    if len(calls) > _SHOWN_NODES:
        lines.append(f" * and {len(calls) - _SHOWN_NODES} more")
    return [*lines, " */"]


def _facts(kernel: PrimFunc) -> str:
    def spelled(shape: tuple[int, ...], dtype: str) -> str:
        return f"{dtype}[{', '.join(map(str, shape))}]"

    sources = ", ".join(spelled(buffer.shape, buffer.dtype) for buffer in kernel.inputs) or "nothing"
    text = f"{sources} -> {spelled(kernel.output.shape, kernel.output.dtype)}"
    if kernel.macs != 0:
        text += f", {kernel.macs} multiply-accumulates"
    if kernel.scratch_bytes != 0:
        text += f", {kernel.scratch_bytes} bytes of scratch"
    return text


@dataclass(frozen=True, eq=False)
class KernelFunctions:
    """The C functions of a module's kernels."""

    unit: Unit
    names: Mapping[str, str]  # C name of the function by the kernel's name
    arguments: Mapping[str, str]  # the variable whose address a shared function gets behind the pointers, by kernel
    own: Mapping[str, str]  # C name that each kernel would have alone, of the kernels that this module's file defines
    families: tuple[KernelValues, ...]

    def write(
        self, operators: OperatorsFile, *, static: bool = False, after: Callable[[PrimFunc], str] | None = None
    ) -> None:
        """Define the functions that compute kernels, and declare those that another file defines.

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
                add = operators.add_levels if operators.levels else operators.add_kernel
                add(printed, name, users, aliased=aliased, static=static, parallel=self.unit.parallel)
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
    """Choose the functions of a module's kernels; `names` are for those that get a function of their own."""
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
    if unit.only_level is not None and unit.levels is None:
        return kernel.at(unit.only_level)
    return replace(kernel, body=without_single_trips(kernel.body)) if unit.small else kernel
