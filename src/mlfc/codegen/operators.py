"""The C file of a module's operators: each kernel under a comment that says what it does, and what they all need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfc.codegen.c import CFunction, preamble, print_function, print_shared, signature
from mlfc.codegen.c_expr import Needs
from mlfc.codegen.kernel_values import KernelValues
from mlfc.codegen.writer import comment_text
from mlfc.tir.ir import KernelCall, PrimFunc

_SHOWN_NODES = 40

_SEPARATE_ROUNDING = """\
/* products are rounded before they are added: a fused multiply-add would change the codes of later layers */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize ("fp-contract=off")
#endif"""


@dataclass(eq=False)
class OperatorsFile:
    """Collects what one C file of kernels holds.

    Attributes
    ----------
    contracts : bool
        Whether products and sums of floats may become fused multiply-adds.
    includes : tuple of str
        Lines beside those that the kernels need.
    """

    contracts: bool
    includes: tuple[str, ...] = ()
    needs: Needs = field(default_factory=Needs)
    declarations: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    def add_kernel(
        self,
        prim: PrimFunc,
        name: str,
        calls: Sequence[KernelCall],
        *,
        aliased: frozenset[int] = frozenset(),
        static: bool = False,
    ) -> None:
        """Define the kernel `prim` under the C name `name`; its output may overlap the inputs `aliased`."""
        printed = print_function(prim, name, aliased)
        self.needs.merge(printed.needs)
        self.functions.append(_documented(prim, calls, printed, static=static))

    def add_shared(self, values: KernelValues, *, aliased: frozenset[int] = frozenset(), static: bool = False) -> None:
        """Define the function that several kernels share, and the struct of what they differ in."""
        function = print_shared(values, aliased)
        self.needs.merge(function.needs)
        head = f"/* {comment_text(values.shared.members[0].name)}: {len(values.shared.members)} kernels in one */"
        text = f"static {function.text}" if static else function.text
        self.functions += [values.declaration(), f"{head}\n{text}"]

    def declare_kernel(self, prim: PrimFunc, name: str, aliased: frozenset[int] = frozenset()) -> None:
        """Declare a kernel that another file defines."""
        self.declarations.append(f"{signature(prim, name, aliased)};")

    def text(self) -> str:
        """Return the file's text, without its first lines."""
        parts = [
            "" if self.contracts else _SEPARATE_ROUNDING,
            "\n".join([*self.includes, *preamble(self.needs)]),
            *self.declarations,
            *self.functions,
        ]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _documented(kernel: PrimFunc, calls: Sequence[KernelCall], function: CFunction, *, static: bool) -> str:
    """Return the function under a comment that says what it computes, and for which nodes of the model."""
    return "\n".join([*kernel_comment(kernel, calls), f"static {function.text}" if static else function.text])


def kernel_comment(kernel: PrimFunc, calls: Sequence[KernelCall]) -> list[str]:
    """Return the lines of a comment that says what a kernel computes, and for which nodes of the model."""
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
    if kernel.macs:
        text += f", {kernel.macs} multiply-accumulates"
    if kernel.scratch_bytes:
        text += f", {kernel.scratch_bytes} bytes of scratch"
    return text
