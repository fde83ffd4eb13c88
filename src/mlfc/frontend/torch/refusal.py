"""Errors for modules that PyTorch cannot capture or convert, with the module, the line, and the next step."""

from __future__ import annotations

import re
import traceback
import warnings
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, OutputKind

from mlfc.errors import UnsupportedError
from mlfc.frontend.python_trace import innermost_line, line_in_trace
from mlfc.support.text import printable, shortened

_LONGEST = 300
_NODE = re.compile(r"translating node %?(\w+)")
_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)', overload='(\w+)'\)>")
_FOR_VALUES = (
    "Replace branches, loops and shapes in forward that depend on the values of tensors, for example with torch.where"
)


def not_exportable(module: torch.nn.Module, error: Exception) -> UnsupportedError:
    """Return the error for a module that torch.export cannot capture."""
    if isinstance(module, torch.jit.ScriptModule):
        return UnsupportedError(
            "expected a torch.nn.Module, got a TorchScript module, which torch.export does not take",
            place=type(module).__name__,
            next_step="Pass the module that it was scripted or traced from",
        )
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        cause, step = "forward depends on the values of a tensor, which are only known at run time", _FOR_VALUES
    else:
        cause = _first_line(error)
        step = "Check that forward takes example_inputs; torch.export.draft_export lists all obstacles"
    return UnsupportedError(
        f"torch.export cannot capture the module: {cause}", place=_place_of_error(module, error), next_step=step
    )


def not_convertible(exported: torch.export.ExportedProgram, error: Exception) -> UnsupportedError:
    """Return the error for an operator that PyTorch's exporter does not convert to ONNX."""
    text, inner = str(error), error.__cause__
    innermost: BaseException = error
    while inner is not None:
        text, innermost, inner = f"{text}\n{inner}", inner, inner.__cause__
    operator, node = _OPERATOR.search(text), _NODE.search(text)
    cause = f"operator '{operator[1]}.{operator[2]}' is not in ONNX" if operator else _first_line(str(innermost))
    return UnsupportedError(
        f"torch.onnx cannot convert the module: {cause}",
        place=_place_of_node(exported, node[1]) if node else None,
        next_step="Replace the operator in forward with others"
        if operator or node
        else "torch.onnx.export(module, inputs, dynamo=True, report=True) writes a report to a file",
    )


def check_effects(exported: torch.export.ExportedProgram, what: str, *, may_write_buffers: bool = False) -> None:
    """Refuse a program with side effects, which ONNX cannot express."""
    signature = exported.graph_signature
    written = next(iter(signature.user_inputs_to_mutate.values()), None)
    if written is not None:
        raise UnsupportedError(
            f"{what} writes to its input '{written}'",
            next_step="Return the new value instead, or keep the tensor in a buffer of the module",
        )
    buffer = next(iter(signature.buffers_to_mutate.values()), None)
    if buffer is not None and not may_write_buffers:
        raise UnsupportedError(
            f"{what} writes to the buffer '{buffer}'",
            next_step="Pass the module itself with example_inputs: what it writes becomes state. "
            "If the buffer is a statistic of training, call module.eval() before exporting",
        )


def check_outputs(exported: torch.export.ExportedProgram) -> None:
    """Refuse a program that returns anything but tensors."""
    for spec in exported.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            continue
        if isinstance(spec.arg, ConstantArgument) and spec.arg.value is not None:
            raise UnsupportedError(
                f"expected forward to return tensors, got {type(spec.arg.value).__name__}",
                next_step="Return tensors alone, as a tuple or a dict",
            )


def _first_line(error: Any) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(printable(lines[0]), _LONGEST).rstrip(".") if lines else type(error).__name__


def _place_of_error(root: torch.nn.Module, error: Exception) -> str:
    """Return the innermost module of the user, and the line, whose forward raised the error."""
    names = {id(part): name for name, part in root.named_modules()}
    inside: str | None = None
    frames = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        inside = names.get(id(frame.f_locals.get("self")), inside)
        if inside is not None:  # earlier frames call the root module
            frames.append((frame.f_code.co_filename, line))
    return _place(type(root).__name__, inside or "", innermost_line(frames))


def _place_of_node(exported: torch.export.ExportedProgram, name: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = exported.run_decompositions().graph
    except Exception:  # report the original error, not this one
        return None
    node = next((item for item in graph.nodes if item.name == name), None)
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()] if node is not None else []
    if node is None or not modules:
        return None
    return _place("", modules[-1], line_in_trace(node.meta.get("stack_trace") or ""))


def _place(root: str, module: str, line: str | None) -> str:
    name = f"module '{module}'" if module else root
    return f"{name} ({line})" if name and line else name or line or ""
