"""The model in float64: what exact arithmetic gives, as far as rounding of 53 bits lets one see it.

The graph of the importer is taken before any pass, every float of it becomes a float64, and it is compiled by the other
printer than the code that is judged. What is defined in float32 (quantization) keeps its definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlfc.archive.read.load import load_factory
from mlfc.compiler import build_module
from mlfc.errors import MlfcError
from mlfc.options import BuildOptions
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, IRModule, TensorType, Tuple, Var
from mlfc.relay.op import Operator
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.runtime.modules.runnable import Runnable
from mlfc.support import dtypes
from mlfc.support.arrays import Array
from mlfc.target.target import parse_target

WIDE = "float64"
_DTYPE_ATTRS = ("dtype", "out_dtype")


def float64_model(
    module: IRModule, params: Mapping[str, Array], target: str, more: Sequence[Expr] = ()
) -> tuple[Runnable, tuple[str, ...]]:
    """Compile a model in float64.

    `module`: as an importer made it.
    `target`: of the judged code; the float64 model is printed by the other printer.
    `more`: tensors of the model to add to its outputs.

    Returns
    -------
    Runnable
        It takes the model's inputs, and gives its float outputs in float64.
    tuple of str
        The names of the outputs for `more`.
    """
    wide, names = in_float64(module, more)
    other = "c" if parse_target(target).kind == "llvm" else "llvm"
    return load_factory(build_module(wide, params, BuildOptions(other, module_name="float64"))), names


def in_float64(module: IRModule, more: Sequence[Expr] = ()) -> tuple[IRModule, tuple[str, ...]]:
    """Return a model with every float in float64, and the names of the outputs for `more`; see `float64_model`."""
    body, heads = module.main.body, module.outputs
    defined = body.fields[len(heads) :] if isinstance(body, Tuple) else ()
    wide = _widened(Tuple((*heads, *more, *defined)))
    names = tuple(f"{index} of float64" for index in range(len(more)))
    functions = {name: _function(function) for name, function in module.functions.items() if name != "main"}
    functions["main"] = replace(module.main, body=wide)
    return replace(module, functions=functions, output_names=(*module.output_names, *names)), names


def _function(function: Function) -> Function:
    """Return what a branch or a loop runs, with parameters in float64, too."""
    params = [Var(param.name, _wide_data(param.type), param.span) for param in function.params]
    return Function(
        tuple(params),
        _widened(function.body, dict(zip(function.params, params, strict=True))),
        function.attrs,
        function.span,
    )


def _is_narrow(kind: ir.Type) -> bool:
    return isinstance(kind, TensorType) and dtypes.is_float(kind.dtype) and kind.dtype != WIDE


def _widened(body: Expr, params: Mapping[Expr, Expr] | None = None) -> Expr:
    done: dict[Expr, Expr] = {**(params or {})}
    for node in post_order(body):
        if node not in done:
            done[node] = _wide_node(node, [done[child] for child in children(node)])
    return done[body]


def _wide_node(node: Expr, args: list[Expr]) -> Expr:
    if isinstance(node, Constant):
        return Constant(node.data.astype(WIDE), node.name, node.span) if _is_narrow(node.type) else node
    if isinstance(node, Var):
        return ir.call("cast", [node], dtype=WIDE) if _is_narrow(node.type) else node
    if isinstance(node, If):
        then, otherwise = _wide_reference(node.then), _wide_reference(node.otherwise)
        kind = _wide_type(node.type)
        return replace(node, condition=args[0], args=tuple(args[1:]), then=then, otherwise=otherwise, type=kind)
    if not isinstance(node, Call):
        return with_children(node, args)
    if isinstance(node.op, GlobalVar):
        return ir.call_function(_wide_reference(node.op), args, type=_wide_type(node.type), span=node.span)
    if isinstance(node.op, Operator):
        try:
            wide = ir.call(node.op.name, args, _wide_attrs(node), span=node.span)
            if _wide_type(node.type) == wide.type:
                return wide
        except MlfcError:
            pass  # it is defined for other dtypes alone
    return _as_defined(node, args)


def _wide_attrs(node: Call) -> dict[str, Any]:
    return {
        name: WIDE if name in _DTYPE_ATTRS and value in dtypes.SCALARS and dtypes.is_float(value) else value
        for name, value in node.attrs.items()
    }


def _wide_reference(reference: GlobalVar) -> GlobalVar:
    kind = reference.type
    return replace(reference, type=ir.FuncType(tuple(map(_wide_type, kind.params)), _wide_type(kind.result)))


def _wide_data(kind: TensorType | ir.TupleType | ir.ListType) -> TensorType | ir.TupleType | ir.ListType:
    wide = _wide_type(kind)
    assert not isinstance(wide, ir.FuncType)
    return wide


def _wide_type(kind: ir.Type) -> ir.Type:
    if isinstance(kind, ir.TupleType):
        return ir.TupleType(tuple(_wide_type(field) for field in kind.fields))
    return replace(kind, dtype=WIDE) if isinstance(kind, TensorType) and _is_narrow(kind) else kind


def _as_defined(node: Call, args: Sequence[Expr]) -> Expr:
    """Return a call in the dtypes that the model has it in, between casts."""
    narrow = [_narrowed(arg, was) for arg, was in zip(args, node.args, strict=True)]
    result = with_children(node, narrow)
    if isinstance(node.type, ir.TupleType):
        return Tuple(
            tuple(
                ir.call("cast", [field], dtype=WIDE) if _is_narrow(field.type) else field
                for field in (ir.TupleGetItem(result, index) for index in range(len(node.type.fields)))
            )
        )
    return ir.call("cast", [result], dtype=WIDE) if _is_narrow(node.type) else result


def _narrowed(arg: Expr, was: Expr) -> Expr:
    if isinstance(arg, Tuple) and isinstance(was.type, ir.TupleType):
        fields = was.fields if isinstance(was, Tuple) else [ir.TupleGetItem(was, i) for i in range(len(arg.fields))]
        return Tuple(tuple(_narrowed(one, other) for one, other in zip(arg.fields, fields, strict=True)))
    if not isinstance(was.type, TensorType) or not _is_narrow(was.type):
        return arg
    if isinstance(was, Constant):
        return was
    return ir.call("cast", [arg], dtype=was.type.dtype)
