"""The C file of a module's operators, and the dispatch among kernels for several processor levels.

A kernel has its own function, shares one with other kernels, or uses one of another file. Device kernels have none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from string import Template

from mlfc.codegen.c import KernelValues, arguments, preamble, print_function, print_shared, signature
from mlfc.codegen.c_expr import Requirements
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.writer import PIECES, Writer, c_string, comment_text, pieces_beside
from mlfc.support import dtypes
from mlfc.support.c_names import LEVEL_SECTION, LEVEL_VARIABLE, level_function
from mlfc.target.features import Level, Levels
from mlfc.tir.ir import PrimFunc
from mlfc.tir.merge_kernels import merge_families
from mlfc.tir.parameters import without_single_trips
from mlfc.tir.program import KernelCall
from mlfc.tir.visitor import signature as signature_of

_SHOWN_NODES = 40


@dataclass(eq=False)
class OperatorsFile:
    """Collects the contents of one C file of kernels."""

    contracts: bool  # whether products and sums of floats may be fused to multiply-adds
    includes: tuple[str, ...] = ()  # include lines in addition to those that the kernels need
    needs: Requirements = field(default_factory=Requirements)
    declarations: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    levels: Levels | None = None  # processor levels, each with separate kernels in a separate file
    higher: dict[str, OperatorsFile] = field(default_factory=dict)  # these files, by level
    compact: bool = False  # compilers must not unroll loops with long bodies

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
        """Define the kernel `prim` for each level that has its own version, and the dispatching function `name`."""
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
        """Define the kernel `prim` under the C name `name`; for other parameters, see `codegen.c.print_function`."""
        printed = print_function(prim, name, aliased, parallel=parallel, mark=mark, compact=self.compact)
        self.needs.merge(printed.needs)
        self.functions += printed.parts
        text = f"static {printed.text}" if static else printed.text
        self.functions.append("\n".join([*kernel_comment(prim, calls), text]))

    def add_shared(self, values: KernelValues, *, aliased: frozenset[int] = frozenset(), static: bool = False) -> None:
        """Define the function that several kernels share, and the struct of the constants in which they differ."""
        function = print_shared(values, aliased)
        self.needs.merge(function.needs)
        head = f"/* {comment_text(values.shared.members[0].name)}: {len(values.shared.members)} kernels in one */"
        text = f"static {function.text}" if static else function.text
        self.functions += [values.declaration(), f"{head}\n{text}"]

    def level_files(self, module: str, first: str) -> dict[str, bytes]:
        """Return the non-empty files of higher levels by path; each starts with the lines `first`."""
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
    arguments: Mapping[str, str]  # the variable whose address a shared function gets after the pointers, by kernel
    own: Mapping[str, str]  # the C name of each kernel that this module's file defines if it is not shared
    families: tuple[KernelValues, ...]

    def write(
        self, operators: OperatorsFile, *, static: bool = False, after: Callable[[PrimFunc], str] | None = None
    ) -> None:
        """Define the functions that compute kernels, and declare those that another file defines.

        Parameters
        ----------
        operators : OperatorsFile
        static : bool
            The functions have internal linkage.
        after : callable, optional
            Return the text that follows the function of a kernel.
        """
        calls: dict[str, list[KernelCall]] = defaultdict(list)
        for call in self.unit.program.calls:
            calls[call.kernel.name].append(call)
        families = {values.shared.members[0]: values for values in self.families}
        members = {member for values in self.families for member in values.shared.members}
        for kernel in self.unit.kernels_in_code:
            if kernel.device is not None:
                continue
            if kernel.name not in self.own or kernel.external is not None:
                head = signature(kernel, self.names[kernel.name], self.unit.aliased_inputs(kernel))
                operators.declarations.append(f"{head};")
            elif kernel in families:
                values = families[kernel]
                aliased = frozenset().union(*map(self.unit.aliased_inputs, values.shared.members))
                operators.add_shared(values, aliased=aliased, static=static)
                for position, member in enumerate(values.shared.members):
                    comment = kernel_comment(member, calls[member.name])
                    operators.functions.append(values.definition(position, self.own[member.name], comment))
            elif kernel not in members:
                printed, aliased = printed_form(self.unit, kernel), self.unit.aliased_inputs(kernel)
                name, users = self.own[kernel.name], calls[kernel.name]
                add = operators.add_levels if operators.levels else operators.add_kernel
                add(printed, name, users, aliased=aliased, static=static, parallel=self.unit.parallel)
            if after is not None:
                operators.functions.append(after(kernel))


def kernel_functions(unit: Unit, shared: Shared, names: Mapping[str, str]) -> KernelFunctions:
    """Choose the functions of a module's kernels; `names` are for kernels with their own function."""
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
    """Return a kernel in its printed form: loops of one iteration remain only if the function is shared."""
    if unit.only_level is not None and unit.levels is None:
        return kernel.at(unit.only_level)
    return replace(kernel, body=without_single_trips(kernel.body)) if unit.small else kernel


OF_LEVEL = "MLF_OF_LEVEL"
"""The macro that puts a function into the section of its level."""
_TEXTS = pieces_beside(__file__, "levels.h")
_BYTES = ("int8", "uint8")


def served(levels: Levels, prim: PrimFunc) -> list[Level]:
    """Return the levels at which a kernel has its own function: the first, and those that benefit it.

    If the level is already chosen, return only the last of these.
    """
    found = [levels.levels[0]]
    for before, level in pairwise(levels.levels):
        own = prim.at(level.name)
        kinds = {buffer.dtype for buffer in (*own.params, *own.scratch)}
        has_bytes = not kinds.isdisjoint(_BYTES)
        serves = has_bytes or not level.serves
        if level.serves == "templates":
            serves = signature_of(own) != signature_of(prim.at(before.name))
        elif level.serves == "floats":
            serves = not has_bytes and any(map(dtypes.is_float, kinds))
        found += [level] if serves else []
    return found[-1:] if levels.is_chosen else found


def placed(level: Level) -> str:
    """Return the macro ``MLF_OF_LEVEL``, which puts functions into the section of a level, to be counted there."""
    return Template(_TEXTS["section"]).substitute(section=LEVEL_SECTION + level.name)


def choice(levels: Levels, module: str) -> str:
    """Return the text that chooses a level, and the function that returns its name."""
    if levels.is_chosen:
        return placed(levels.levels[0])
    here = "\n\n".join(path.read_text(encoding="utf-8").strip("\n") for path in levels.choice)
    names = ", ".join(c_string(level.name) for level in levels.levels)
    first = Template(_TEXTS["choice"]).substitute(
        condition=levels.condition, here=here, names=names, variable=LEVEL_VARIABLE
    )
    name = Template(_TEXTS["name"]).substitute(
        condition=levels.condition, function=level_function(module), variable=LEVEL_VARIABLE
    )
    return f"{first}\n#endif\n\n{name}\n\n{placed(levels.levels[0])}"


def dispatcher(
    prim: PrimFunc, name: str, aliased: frozenset[int], levels: Levels, own: Mapping[str, str], *, static: bool
) -> str:
    """Return the function `name`, which calls the chosen level's function; `own` are their names by level."""
    writer, passed = Writer(), f"({', '.join(arguments(prim, aliased))})"
    head = signature(prim, name, aliased)
    with writer.block(f"static {head}" if static else head):
        if not levels.is_chosen:
            writer.line(f"#if {levels.condition}")
            with writer.block("if (mlf_level < 0)"):
                writer.line("return -1;")
            for place, level in reversed(list(enumerate(levels.levels))[1:]):
                if level.name in own:
                    writer.lines([f"#if {level.condition}"] if level.condition else [])
                    with writer.block(f"if (mlf_level >= {place})"):
                        writer.line(f"return {own[level.name]}{passed};")
                    writer.lines(["#endif"] if level.condition else [])
            writer.line("#endif")
        writer.line(f"return {next(iter(own.values()))}{passed};")
    return writer.text().replace(f"\n  #{'if'} ", "\n#if ").replace("\n  #endif", "\n#endif")


def guarded(text: str, levels: Levels, level: Level) -> str:
    """Return the text of a level's file, guarded so that on other machines it contains only an include."""
    condition = f"{levels.condition} && {level.condition}" if level.condition else levels.condition
    return f"#include <stdint.h>\n\n#if {condition}\n\n{text}\n#endif\n"
