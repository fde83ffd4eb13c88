"""Examination of a model: all problems at once, and remedies, without generating code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlfc.compiler import build_module
from mlfc.errors import MlfcError, OptionError, ProblemsError, Remedy
from mlfc.frontend import Model, import_for_run
from mlfc.frontend.common import Census
from mlfc.options import BuildOptions, ImportOptions
from mlfc.relay.ir import Call, Constant, Expr, GlobalVar, If, IRModule, TensorType, Tuple, Var, has_trait, tensor_type
from mlfc.relay.op import Trait
from mlfc.relay.visitor import children, post_order
from mlfc.support.dims import LARGEST, Symbol, bounds, symbols_of
from mlfc.support.executable import bounding_option
from mlfc.support.keywords import with_keywords
from mlfc.support.module_info import SymbolInfo
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed, html_table
from mlfc.target.target import PORTABLE, parse_target

_ROUNDS = 5
_FEW, _LARGEST_SEARCH = 8, 400  # elements of an input that may be a setting; expressions between it and a decision
# remedies that are tried; limits are only raised by users, who know the origin of the model
_KEYS = {"--shape": "shapes", "--value": "values"}
_TRIED = (*_KEYS, "--byoc")


@dataclass(frozen=True)
class OpenDimension:
    """A dynamic dimension of inputs.

    Attributes
    ----------
    name : str
    low : int
        The lower bound.
    high : int, optional
        The upper bound; None if unbounded.
    inputs : tuple of str
        The inputs that have it, alone or in an expression.
    """

    name: str
    low: int
    high: int | None
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        bounds = f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"
        return f"{self.name} ({bounds}) of {', '.join(map(repr, self.inputs))}"


@dataclass(frozen=True, repr=False)
class Outcome(Displayed):
    """The outcome of compiling a model with some options.

    Attributes
    ----------
    problems : tuple of MlfcError
        Empty if the model can be compiled.
    nodes : int
        Number of nodes in the model, including those of functions that it calls.
    refused : int
        Number of nodes with their own problem.
    unchecked : int
        Number of nodes after these, whose input types are unknown.
    open_dimensions : tuple of OpenDimension
        Dynamic dimensions of the inputs, in order; empty if the model cannot be imported.
    bounding : tuple of str
        Example options that bound these for a microcontroller; empty for other targets, and if all are bounded.
    deciding : tuple of Remedy
        Options that make inputs constant whose values decide shapes or control flow.
    """

    problems: tuple[MlfcError, ...]
    nodes: int
    refused: int
    unchecked: int
    open_dimensions: tuple[OpenDimension, ...]
    bounding: tuple[str, ...]
    deciding: tuple[Remedy, ...]

    def _facts(self) -> Mapping[str, object]:
        counted = {"problems": len(self.problems), "nodes": self.nodes, "refused": self.refused}
        return {**counted, "unchecked": self.unchecked, "open_dimensions": self.open_dimensions}

    def _repr_html_(self) -> str:
        header = ("code", "place", "problem", "next step")
        rows = [(item.code, item.place or "", item.cause, item.next_step or "") for item in self.problems]
        return super()._repr_html_() + html_table(f"{len(rows)} problems", header, rows)


@dataclass(frozen=True, repr=False)
class Examination(Outcome):
    """All problems of a model, and those that remain when their remedies are applied.

    Attributes
    ----------
    remedies : tuple of Remedy
        Options that were tried together. Their examples are valid for the model; the user decides whether they are
        right.
    left : Outcome
        The outcome with these; the original outcome if there are none.
    """

    remedies: tuple[Remedy, ...]
    left: Outcome


@with_keywords(ImportOptions)
def check(model: Model, options: ImportOptions) -> list[MlfcError]:
    """Return all problems of a model; an empty list means that it can be compiled for the target.

    All stages of compilation run, except for code generation. Each problem has the next step in `next_step`, and the
    options named there in `remedies`. `examine` also tries these. The default target is ``c``.

    Parameters
    ----------
    model : str, Path, bytes, onnx.ModelProto or torch.nn.Module
        As for `import_model`.

    Returns
    -------
    list of MlfcError

    Examples
    --------
    >>> mlfc.check("digits.tflite")
    []
    """
    return list(_outcome(model, options).problems)


def examine_model(model: Model, options: ImportOptions) -> Examination:
    """Return all problems of a model, and those that remain when their remedies are applied.

    Parameters are those of `check`. Each trial imports the model once more; at most a dozen are made.
    """
    first = _outcome(model, options)
    applied, left = _tried(model, _Applied(options), first)
    again = applied.without_shapes()
    if left.problems and again is not None:
        # shapes were guessed before the values were known; guess again with the values
        other, found = _tried(model, again, _outcome(model, again.options))
        if not found.problems:
            applied, left = other, found
    return Examination(**vars(first), remedies=applied.remedies, left=left)


examine = with_keywords(ImportOptions)(examine_model)


def _tried(model: Model, applied: _Applied, left: Outcome) -> tuple[_Applied, Outcome]:
    """Apply the remedies of problems until no new ones appear; return them, and the outcome."""
    for _ in range(_ROUNDS):
        more = applied.with_remedies(left.problems)
        if more is None:
            break
        found = _outcome(model, more.options)
        if any(isinstance(problem, OptionError) for problem in found.problems):
            break
        applied, left = more, found
        if not left.problems:
            break
    return applied, left


def _outcome(model: Model, options: ImportOptions) -> Outcome:
    census = Census()
    problems: tuple[MlfcError, ...] = ()
    found: tuple[OpenDimension, ...] = ()
    bounding: tuple[str, ...] = ()
    deciding: tuple[Remedy, ...] = ()
    try:
        target = options.target or PORTABLE
        mod, params = import_for_run(model, replace(options, target=target), census=census)
        found, bounding = _open_dimensions(mod, params), _bounding(mod, params, target)
        deciding = _deciding(mod, params)
        build_module(mod, params, BuildOptions(target, limit_factor=options.limit_factor, dry_run=True))
    except ProblemsError as error:
        problems = error.problems
    except MlfcError as error:
        problems = (error,)
    # a traceback would keep the frames of the import alive, and with them the model's constants
    problems = tuple(problem.with_traceback(None) for problem in problems)
    return Outcome(problems, census.nodes, census.refused, census.unchecked, found, bounding, deciding)


def _open_dimensions(module: IRModule, params: Mapping[str, Any]) -> tuple[OpenDimension, ...]:
    owners: dict[Symbol, list[str]] = {}
    for name, type_ in _inputs(module, params):
        for symbol in symbols_of(type_.shape):
            owners.setdefault(symbol, []).append(name)
    return tuple(
        OpenDimension(symbol.name, symbol.low, None if symbol.high == LARGEST else symbol.high, tuple(names))
        for symbol, names in owners.items()
    )


def _bounding(module: IRModule, params: Mapping[str, Any], target: str) -> tuple[str, ...]:
    if not parse_target(target).features.is_microcontroller:
        return ()
    options: list[str] = []
    bounded: set[Symbol] = set()
    for name, type_ in _inputs(module, params):
        unbounded = {symbol for symbol in symbols_of(type_.shape) if symbol.high == LARGEST} - bounded
        if unbounded:
            shape = tuple(extent if isinstance(extent, int) else str(extent) for extent in type_.shape)
            symbols = [SymbolInfo(symbol.name, symbol.low, None) for symbol in unbounded]
            options.append(bounding_option([TensorInfo(name, shape, type_.dtype)], symbols))
            bounded |= unbounded
    return tuple(dict.fromkeys(options))


def _deciding(module: IRModule, params: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return options that make the small integer inputs constant which decide shapes, branches and loops."""
    inputs = {param for param in module.main.params if param.name not in params}
    found = dict[str, str]()
    asked: list[Expr] = []
    passed: dict[Expr, list[Expr]] = {}  # the arguments of calls, by parameter
    for function in module.functions.values():
        if isinstance(function.body, Tuple) and function.defines:
            asked += function.body.fields[-len(function.defines) :]
        for node in post_order(function.body):
            if isinstance(node, If):
                asked.append(node.condition)
            elif isinstance(node, Call) and has_trait(node, Trait.SELECTION) and tensor_type(node.args[0]).size == 1:
                asked.append(node.args[0])  # of branches of which both are computed
            for called in (getattr(node, name, None) for name in ("then", "otherwise", "op")):
                if isinstance(called, GlobalVar) and isinstance(node, (Call, If)):
                    for param, arg in zip(module.functions[called.name].params, node.args, strict=True):
                        passed.setdefault(param, []).append(arg)
    for expr in asked:
        order = post_order(expr, lambda item: passed.get(item, children(item)))
        # an input that is compared with a number often has that value
        own = post_order(expr)
        numbers = [str(item.data) for item in own if isinstance(item, Constant) and item.data.shape == ()]
        for var in order if len(order) <= _LARGEST_SEARCH else ():
            if var not in inputs or not isinstance(var, Var) or not isinstance(var.type, TensorType):
                continue
            if bounds(var.type.size)[1] <= _FEW and var.type.dtype in ("int32", "int64", "bool"):
                found.setdefault(var.name, numbers[0] if numbers and var in own and not var.type.shape else "...")
    return tuple(Remedy("--value", f"{name}={value}", is_example=True) for name, value in found.items())


def _inputs(module: IRModule, params: Mapping[str, Any]) -> list[tuple[str, TensorType]]:
    """Return the names and types of the tensor inputs."""
    others = [param for param in module.main.params if param.name not in params]
    return [(param.name, param.type) for param in others if isinstance(param.type, TensorType)]


@dataclass(frozen=True)
class _Applied:
    """Import options, and the remedies that were added to them."""

    options: ImportOptions
    remedies: tuple[Remedy, ...] = ()

    def without_shapes(self) -> _Applied | None:
        """Return the options without added shapes; None unless both shapes and other remedies were added."""
        shapes = {item.subject for item in self.remedies if item.option == "--shape"}
        others = tuple(item for item in self.remedies if item.option != "--shape")
        if not shapes or not others:
            return None
        kept = {name: shape for name, shape in (self.options.shapes or {}).items() if name not in shapes}
        return _Applied(replace(self.options, shapes=kept), others)

    def with_remedies(self, problems: Sequence[MlfcError]) -> _Applied | None:
        """Return the options with the remedies of problems added; None if no new remedy can be tried."""
        found: dict[tuple[str, str], Remedy] = {}
        for remedy in (remedy for problem in problems for remedy in problem.remedies):
            if remedy.option in _TRIED and remedy.is_complete and not self._has(remedy):
                found.setdefault((remedy.option, remedy.subject), remedy)
        if not found:
            return None
        options = self.options
        for remedy in found.values():
            if remedy.option == "--byoc":
                options = replace(options, byoc=(*options.byoc, remedy.argument))
            else:
                key = _KEYS[remedy.option]
                added: Any = {key: {**(getattr(options, key) or {}), remedy.subject: remedy.numbers}}
                options = replace(options, **added)
        return _Applied(options, (*self.remedies, *found.values()))

    def _has(self, remedy: Remedy) -> bool:
        if remedy.option == "--byoc":
            return remedy.argument in self.options.byoc
        return remedy.subject in (getattr(self.options, _KEYS[remedy.option]) or {})
