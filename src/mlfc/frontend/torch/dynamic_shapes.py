"""Dynamic dimensions of PyTorch modules: conversion of ``torch.export.Dim`` to symbols."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.export.graph_signature import InputKind, TensorArgument

from mlfc.errors import OptionError, UnsupportedError
from mlfc.frontend.common import unique_name
from mlfc.support.dims import LARGEST, Symbol

_STEP = "Write what torch.export takes: dynamic_shapes=({0: torch.export.Dim('batch', min=1, max=32)},)"


def by_argument(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> dict[str, tuple[Any, Any]]:
    """Return each argument of `forward` by name, with the user's specification of its dimensions."""
    try:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise OptionError(f"forward does not take example_inputs: {error}", next_step=_STEP) from None
    # in PyTorch's flattening order: keyword arguments come last, in the order of the call
    order = [*(name for name in given if name not in kwargs), *(name for name in kwargs if name in given)]
    if isinstance(dynamic_shapes, Mapping):
        return {name: (given[name], dynamic_shapes.get(name)) for name in order}
    if not isinstance(dynamic_shapes, (tuple, list)) or len(dynamic_shapes) != len(given):
        got = len(dynamic_shapes) if isinstance(dynamic_shapes, (tuple, list)) else type(dynamic_shapes).__name__
        raise OptionError(
            f"expected dynamic_shapes of {len(given)} arguments ({', '.join(given)}), got {got}", next_step=_STEP
        )
    said = dict(zip(given, dynamic_shapes, strict=True))
    return {name: (given[name], said[name]) for name in order}


def input_shapes(
    exported: torch.export.ExportedProgram, arguments: Mapping[str, tuple[Any, Any]]
) -> dict[str, tuple[Any, ...]]:
    """Return the shapes of inputs with dynamic dimensions, by input name.

    PyTorch renames dimensions, as in ``s31``; the original names are recovered by input and axis.
    """
    specs = [spec for value, said in arguments.values() for spec in _of_tensors(value, said)]
    shapes = traced_shapes(exported)
    if len(specs) != len(shapes):
        raise UnsupportedError(
            f"expected {len(shapes)} tensors among the arguments of forward, got {len(specs)}", next_step=_STEP
        )
    chosen: dict[Any, Any] = {}
    for shape, spec in zip(shapes.values(), specs, strict=True):
        for axis, expr in enumerate(shape):
            dim = _said(spec, axis)
            if isinstance(dim, torch.export.Dim) and not isinstance(expr, int) and len(expr.free_symbols) == 1:
                (symbol,) = expr.free_symbols
                chosen.setdefault(symbol, getattr(dim, "root", dim))
    return _with_symbols(exported, shapes, {symbol: dim.__name__ for symbol, dim in chosen.items()}, chosen)


def program_shapes(exported: torch.export.ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """Return the shapes of a program's inputs with dynamic dimensions, by input name.

    Dimensions have the names of `torch.export.Dim` if the program has them; programs loaded from files do not. Others
    are named after the input and the axis.
    """
    own: dict[Any, str] = {}
    values = (node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder")
    extents = (extent for value in values if isinstance(value, torch.Tensor) for extent in value.shape)
    dynamic = [extent.node.shape_env for extent in extents if isinstance(extent, torch.SymInt)]
    for environment in {id(item): item for item in dynamic}.values():
        # not a public interface of torch: without it, names are derived from inputs and axes
        places = getattr(environment, "source_to_var", {})
        for source, name in getattr(environment, "source_name_to_debug_name", {}).items():
            if isinstance(name, str) and name.isidentifier():
                own.setdefault(places.get(source), name)
    return _with_symbols(exported, traced_shapes(exported), own, {})


def _with_symbols(
    exported: torch.export.ExportedProgram,
    shapes: Mapping[str, tuple[Any, ...]],
    own: Mapping[Any, str],
    dims: Mapping[Any, Any],
) -> dict[str, tuple[Any, ...]]:
    """Return dynamic shapes with mlfc's symbols.

    Names are from `own` or made of input and axis; bounds are from `dims` or `exported`.
    """
    titles: dict[Any, str] = {}
    for name, shape in shapes.items():
        for axis, expr in enumerate(shape):
            for symbol in () if isinstance(expr, int) else expr.free_symbols:
                titles.setdefault(symbol, f"{name}_{axis}")
    named = {own[symbol] for symbol in titles if symbol in own}
    symbols: dict[Any, Symbol] = {}
    for symbol, title in titles.items():
        name = own.get(symbol) or unique_name(title, named)
        named.add(name)
        symbols[symbol] = Symbol(name, *_bounds(dims.get(symbol, exported.range_constraints.get(symbol))))
    return {
        name: tuple(extent if isinstance(extent, int) else _extent(extent, symbols) for extent in shape)
        for name, shape in shapes.items()
        if not all(isinstance(extent, int) for extent in shape)
    }


def traced_shapes(exported: torch.export.ExportedProgram) -> dict[str, tuple[Any, ...]]:
    """Return the shapes of the tensor arguments of `forward`; a dimension is an integer or a sympy expression."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    return {
        spec.arg.name: tuple(
            extent.node.expr if isinstance(extent, torch.SymInt) else int(extent)
            for extent in values[spec.arg.name].shape
        )
        for spec in exported.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    }


def _of_tensors(value: Any, spec: Any) -> Iterator[Any]:
    """Yield the specification of each tensor in an argument, in PyTorch's order."""
    if isinstance(value, torch.Tensor):
        yield spec
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _of_tensors(item, spec.get(key) if isinstance(spec, Mapping) else None)
    elif isinstance(value, (tuple, list)):
        parts: Sequence[Any] = spec if isinstance(spec, (tuple, list)) else [None] * len(value)
        for item, part in zip(value, parts, strict=False):
            yield from _of_tensors(item, part)


def _said(spec: Any, axis: int) -> Any:
    if isinstance(spec, Mapping):
        return spec.get(axis)
    return spec[axis] if isinstance(spec, (tuple, list)) and axis < len(spec) else None


def _bounds(of: Any) -> tuple[int, int]:
    """Return the bounds of a `torch.export.Dim` or of a range of torch; input dimensions are at least 1."""
    if of is None:
        return 1, LARGEST
    low, high = (of.min, of.max) if hasattr(of, "min") else (of.lower, of.upper)
    return max(1, int(low)), int(high) if high < LARGEST else LARGEST


def _extent(expr: Any, symbols: Mapping[Any, Symbol]) -> Any:
    """Convert a sympy expression to a dimension expression."""
    if expr.is_Symbol:
        return symbols[expr].dim
    if expr.is_Integer:
        return int(expr)
    if expr.is_Add or expr.is_Mul:
        return reduce(operator.add if expr.is_Add else operator.mul, (_extent(part, symbols) for part in expr.args))
    raise UnsupportedError(
        f"a dimension of {expr} is not supported", next_step="Write sums and products of torch.export.Dim"
    )
