"""From a planned program to the files of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlforge.codegen.c import CFunction, preamble, print_function
from mlforge.codegen.c_expr import Needs
from mlforge.codegen.c_interface import LICENCE, Interface, header, tensors
from mlforge.codegen.constants import ConstantTable
from mlforge.codegen.writer import comment_text
from mlforge.executor.aot import AotExecutor
from mlforge.memory import Plan
from mlforge.relay.ir import Quantization
from mlforge.support import c_names
from mlforge.tir.ir import KernelCall, PrimFunc, Program, Value

_SHOWN_NODES = 40

_SEPARATE_ROUNDING = """\
/* products are rounded before they are added: a fused multiply-add would change the codes of later layers */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize ("fp-contract=off")
#endif"""


@dataclass(frozen=True)
class Sizes:
    """Bytes that a module needs: of workspace, of constants (without padding), and of inputs and outputs."""

    workspace: int
    constants: int
    io: int


@dataclass(frozen=True, eq=False)
class GeneratedCode:
    """The files of a module.

    Attributes
    ----------
    files : dict of str to bytes
        By path: ``src/...`` and ``include/...``.
    header_name : str
        The file to include.
    entry : str
        The function to call.
    function_names : dict of str to str
        C name of each kernel by its name in the program.
    sizes : Sizes
    external_workspace : bool
        Whether the caller passes the workspace in.
    """

    files: Mapping[str, bytes]
    header_name: str
    entry: str
    function_names: Mapping[str, str]
    sizes: Sizes
    external_workspace: bool


def generate(
    program: Program,
    plan: Plan,
    *,
    module_name: str,
    external_workspace: bool = False,
    target_text: str = "c",
    quantization: Mapping[str, Quantization] | None = None,
) -> GeneratedCode:
    """Print a program as C.

    Parameters
    ----------
    program : Program
    plan : Plan
        Where its intermediates and scratch lie.
    module_name : str
        Goes into files and symbols, in the spelling of `support.c_names.module_name`.
    external_workspace : bool
        The caller passes the workspace in, instead of a static array. A module without workspace ignores it.
    target_text : str
        For the first line of the files.
    quantization : mapping of str to Quantization, optional
        Of inputs and outputs, for the header's comments.

    Returns
    -------
    GeneratedCode
        ``<module>_lib0.c`` (entry and workspace), ``<module>_lib1.c`` (operators and main function), where the
        constants are large ``<module>_lib2.S`` and its binary file, and the header.
    """
    module = c_names.module_name(module_name)
    inputs, outputs = tensors(program.inputs, program.outputs)
    external = external_workspace and plan.size > 0
    interface = Interface(module, inputs, outputs, plan.size, external, quantization or {})
    constants = ConstantTable(_used_constants(program), module)
    names = _function_names(program.kernels, module)
    executor = AotExecutor(program, plan, interface, constants, names)
    banner = f"/* target: {comment_text(target_text)} */\n/* {LICENCE} */\n"
    files = {
        f"include/{interface.header_name}": header(interface),
        f"src/{module}_lib0.c": executor.entry_file(),
        f"src/{module}_lib1.c": banner + _operators_file(executor),
    }
    encoded = {path: text.encode() for path, text in files.items()}
    if constants.in_blob:
        encoded[f"src/{module}_lib2.S"] = (banner + constants.assembler()).encode()
        encoded[f"src/{module}_lib2.S.bin"] = constants.blob()
    io = sum(tensor.value.nbytes for tensor in (*inputs, *outputs))
    sizes = Sizes(plan.size, constants.nbytes, io)
    return GeneratedCode(encoded, interface.header_name, interface.entry, names, sizes, external)


def _used_constants(program: Program) -> list[Value]:
    """Return the constants that calls pass on, in the order of first use."""
    used: dict[Value, None] = {}
    for call in program.calls:
        for value in (*call.inputs, *call.constants):
            if value.root.kind == "constant":
                used[value.root] = None
    return list(used)


def _function_names(kernels: Sequence[PrimFunc], module: str) -> dict[str, str]:
    plain = c_names.unique(kernel.name for kernel in kernels)
    return {kernel.name: f"tvmgen_{module}_{name}" for kernel, name in zip(kernels, plain, strict=True)}


def _operators_file(executor: AotExecutor) -> str:
    program = executor.program
    functions = {
        kernel.name: print_function(kernel, executor.function_names[kernel.name]) for kernel in program.kernels
    }
    needs = Needs(math=executor.constants.uses_math)
    for function in functions.values():
        needs.merge(function.needs)
    parts = ["\n".join(preamble(needs)), "\n".join(executor.constants.declarations()), executor.main_prototype()]
    if not program.meta.get("contract_floats", True):
        parts.insert(0, _SEPARATE_ROUNDING)
    calls: dict[str, list[KernelCall]] = {}
    for call in program.calls:
        calls.setdefault(call.kernel.name, []).append(call)
    for kernel in program.kernels:
        parts.append(_documented(kernel, calls.get(kernel.name, []), functions[kernel.name]))
    parts.append(executor.main_function())
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _documented(kernel: PrimFunc, calls: Sequence[KernelCall], function: CFunction) -> str:
    """Return the function under a comment that says what it computes, and for which nodes of the model."""
    lines = [f"/* {comment_text(kernel.name)}: {_facts(kernel)}"]
    for call in calls[:_SHOWN_NODES]:
        lines.append(f" * {comment_text(', '.join(node[:100] for node in call.nodes)[:400]) or '(no node)'}")
    if len(calls) > _SHOWN_NODES:
        lines.append(f" * and {len(calls) - _SHOWN_NODES} more")
    return "\n".join([*lines, " */", function.text])


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
