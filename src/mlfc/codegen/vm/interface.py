"""The header of a dynamic model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlfc.codegen.c_interface import BaseInterface, InterfaceTensor, described, guarded
from mlfc.codegen.writer import comment_text
from mlfc.relay.ir import Quantization
from mlfc.support.dim_estimates import most
from mlfc.support.executable import (
    DTYPES,
    Executable,
    release_symbol,
    reset_symbol,
    run_symbol,
    state_offsets,
)


@dataclass(frozen=True, eq=False)
class VmInterface(BaseInterface):
    """The C interface of a dynamic module."""

    executable: Executable
    quantization: Mapping[str, Quantization]


def vm_header(interface: VmInterface) -> str:
    """Return the header's text."""
    prefix, module, executable = interface.macro_prefix, interface.module, interface.executable
    lines = [
        *_extents(interface),
        *_tensors(interface, "Input", interface.inputs),
        *_tensors(interface, "Output", interface.outputs),
        "/*!",
        f" * \\brief Runs module {module}; see mlfc_vm.h",
        f" * \\param inputs {len(interface.inputs)} tensors, in the order above",
        f" * \\param outputs {len(interface.outputs)} tensors, which the run sets",
        " * \\return 0, or the code of the error",
        " */",
        f"int32_t {run_symbol(module)}(const mlfc_vm_host *host, const mlfc_vm_tensor *inputs,",
        "    mlfc_vm_tensor *outputs, void *work, int64_t work_bytes, mlfc_vm_error *error);",
        *_work(interface),
        *_states(interface),
    ]
    if not executable.is_bounded:
        lines += [
            "",
            "/*! \\brief Frees the memory of outputs; do not read them afterwards */",
            f"int32_t {release_symbol(module)}(const mlfc_vm_host *host, mlfc_vm_tensor *outputs, int32_t count);",
        ]
    # of the C runtime's headers, wherever they are
    return guarded(prefix, lines, ['#include "mlfc_vm.h"', ""])


def _extents(interface: VmInterface) -> list[str]:
    if not interface.executable.symbols:
        return []
    lines = ["/*", f" * Dynamic dimensions of module {interface.module}:"]
    for symbol in interface.executable.symbols:
        high = f"to {symbol.high}" if symbol.high is not None else "without a bound"
        lines.append(f" * {comment_text(symbol.name[:200])} from {symbol.low} {high}")
    return [*lines, " */", ""]


def _tensors(interface: VmInterface, kind: str, group: Sequence[InterfaceTensor]) -> list[str]:
    lines = []
    for tensor in group:
        value, macro = tensor.value, f"{interface.macro_prefix}_{tensor.field.upper()}"
        nbytes = most(value.nbytes)
        facts = "dtype and rank as mlfc_vm_tensor has them" + (", its most bytes" if nbytes is not None else "")
        lines += [
            f"/*! \\brief {kind} {described(value, interface.quantization)}; {facts} */",
            f"#define {macro}_DTYPE {DTYPES.index(value.dtype)}",
            f"#define {macro}_RANK {len(value.shape)}",
            *([] if nbytes is None else [f"#define {macro}_SIZE {nbytes}"]),
            "",
        ]
    return lines


def _states(interface: VmInterface) -> list[str]:
    executable = interface.executable
    if not executable.states:
        return []
    *offsets, end = state_offsets(executable)
    lines = ["", "/*", " * Tensors that the module keeps from run to run, in the state of mlfc_vm_host:"]
    for value, offset in zip(executable.states, offsets, strict=True):
        shape = ", ".join(map(str, value.extents))
        lines.append(f" * {comment_text(value.name[:200])}: {value.dtype}[{shape}] at byte {offset}")
    return [
        *lines,
        " */",
        f"#define {interface.macro_prefix}_VM_STATE_SIZE {end}",
        "",
        "/*! \\brief Sets these tensors to their first values: a new sequence begins */",
        f"int32_t {reset_symbol(interface.module)}(void *state);",
    ]


def _work(interface: VmInterface) -> list[str]:
    nbytes = interface.executable.work_bytes
    if nbytes is None:
        return []
    return [
        "",
        f"/*! \\brief Bytes of work that module {interface.module} needs for a run */",
        f"#define {interface.macro_prefix}_VM_WORK_SIZE {nbytes}",
    ]
