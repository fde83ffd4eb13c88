"""Parts common to all importers: collected problems, weights as parameters of ``main``, and states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import (
    InternalError,
    LimitError,
    MlfcError,
    ModelError,
    OptionError,
    ProblemsError,
    UnsupportedError,
    unknown,
)
from mlfc.kernels.codes import pack_codes
from mlfc.ops.evaluate import evaluate, of_nothing
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, IRModule, Quantization, State, TensorType, Tuple, Var
from mlfc.relay.op import Trait
from mlfc.relay.visitor import post_order, rewrite
from mlfc.support import dtypes
from mlfc.support.dims import Symbol, bounds

Params: TypeAlias = dict[str, npt.NDArray[Any]]
Values: TypeAlias = Mapping[str, npt.ArrayLike]

# default sizes of dynamic image and sequence dimensions, the likeliest first
IMAGE_SIZES = (224, 320, 640, 256, 128, 64, 32)
SEQUENCE_SIZES = (128, 512, 16, 1000, 16000, 2, 1)

_ELEMENT_LIMIT = (1 << 31) - 1  # the largest index that generated code can represent (int32)
_FOLD_LIMIT = 1_000_000  # elements
_LEAST_PACKED = 1024  # constants of sub-byte integers with at least this many elements are stored packed


class NoTensorError(UnsupportedError):
    """An input that is not a tensor (a sequence or optional) and therefore has no static shape."""


class NoFittingShapesError(ModelError):
    """Inputs with dynamic dimensions, for which no shape was found with which the model can be imported."""


@dataclass
class Census:
    """Number of nodes in a model, and of those that could not be imported."""

    nodes: int = 0
    refused: int = 0  # nodes with their own problem
    unchecked: int = 0  # nodes that read the result of a refused node, whose type is unknown


class Problems:
    """Collected errors, so that a user sees all faults of a model at once.

    Examples
    --------
    >>> from mlfc.errors import UnsupportedError
    >>> problems = Problems()
    >>> with problems.collecting():
    ...     raise UnsupportedError("operator 'Foo' is not supported")
    >>> len(problems)
    1
    """

    def __init__(self) -> None:
        self._found: list[MlfcError] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, problem: MlfcError) -> None:
        """Record a problem; a ProblemsError is recorded as its individual problems."""
        found = problem.problems if isinstance(problem, ProblemsError) else (problem,)
        self._found.extend(found)

    def taken_back(self, count: int) -> MlfcError:
        """Discard all problems after the first `count`, and return the first discarded one."""
        found = self._found[count]
        del self._found[count:]
        return found

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record an MlfcError raised inside instead of propagating it.

        InternalError and LimitError propagate: the former is a bug in mlfc, and continuing after the latter would
        cost even more.
        """
        try:
            yield
        except (InternalError, LimitError):
            raise
        except MlfcError as problem:
            self.add(problem)

    def raise_if_any(self, place: str | None = None) -> None:
        """Raise a single problem unchanged, or several as one ProblemsError at `place`."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise ProblemsError(self._found, place=place)


def unique_name(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or the first of ``name_1``, ``name_2``, ... that is not taken."""
    used = set(taken)
    candidate, number = name, 0
    while candidate in used:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def numbered(names: Sequence[str]) -> list[str]:
    """Return `names` with repeated ones numbered; the first occurrence of each name is unchanged.

    Examples
    --------
    >>> numbered(["y", "y", "y_1"])
    ['y', 'y_2', 'y_1']
    """
    taken = set(names)
    counts: dict[str, int] = {}
    result: list[str] = []
    for name in names:
        candidate = name
        while name in counts and candidate in taken:
            counts[name] += 1
            candidate = f"{name}_{counts[name]}"
        counts.setdefault(name, 0)
        taken.add(candidate)
        result.append(candidate)
    return result


def gelu(call: Callable[..., Expr], number: Callable[[float], Expr], x: Expr, *, tanh: bool) -> Expr:
    """Return ``x * Phi(x)``, Phi by erf or by its usual approximation with tanh; `call` applies an operator."""
    if tanh:
        cubed = call("multiply", call("multiply", x, x), x)
        inner = call("add", x, call("multiply", cubed, number(0.044715)))
        curve = call("tanh", call("multiply", inner, number(math.sqrt(2 / math.pi))))
    else:
        curve = call("erf", call("multiply", x, number(math.sqrt(0.5))))
    return call("multiply", call("multiply", x, number(0.5)), call("add", curve, number(1.0)))


def folded(call: Call) -> Expr:
    """Return a call on small constants evaluated to a constant if the result is small, too; other calls unchanged."""
    if not isinstance(call.type, TensorType) or not all(map(_is_small_constant, call.args)):
        return call
    if not call.type.is_static or ir.has_trait(call, Trait.SHAPE) or call.type.size > _FOLD_LIMIT:
        return call
    try:
        value = evaluate(call)
    except UnsupportedError:  # e.g. a layout that a pass converts later; the call is folded after that
        return call
    return call if value is None else Constant(value, None, call.span)


def _is_small_constant(expr: Expr) -> bool:
    if isinstance(expr, Tuple):
        return all(map(_is_small_constant, expr.fields))
    return isinstance(expr, Constant) and expr.type.size <= _FOLD_LIMIT


def finish(
    inputs: Sequence[Var],
    outputs: Sequence[Expr],
    output_names: Sequence[str],
    quantization: Mapping[str, Quantization],
    source: Mapping[str, str],
    frozen: Mapping[str, npt.NDArray[Any]] | None = None,
    states: Sequence[State] = (),
    defines: Sequence[tuple[Symbol, Expr]] = (),
    functions: Mapping[str, Function] | None = None,
) -> tuple[IRModule, Params]:
    """Build the module of an imported graph; every weight becomes a parameter of ``main``.

    `outputs` form the body of ``main``: a single expression, or a tuple of several; `output_names` are the model's
    names. `source` holds facts about the file, `frozen` the inputs that became constants, `states` the pairs of input
    and output that carry state. `defines` maps symbols to the integer expressions that define them, `functions` has the
    functions other than ``main``. Weight parameters follow the inputs in order of first use; the second result has
    their values by name. Raises UnsupportedError for a tensor that is too large for the indices of generated code.
    """
    lifted: dict[int, Expr] = {}
    variables: list[Var] = []
    params: Params = {}
    taken = {var.name for var in inputs}

    def lift(constant: Constant) -> Expr:
        if constant.name is None or constant.data.ndim == 0:
            return constant
        if id(constant) not in lifted:
            name = unique_name(constant.name, taken)
            taken.add(name)
            stored = _stored(constant)
            params[name] = np.asarray(stored.data)
            var = Var(name, stored.type, constant.span)
            lifted[id(constant)] = var if stored is constant else _unpacked(var, constant)
            variables.append(var)
        return lifted[id(constant)]

    fields = (*outputs, *(value for _, value in defines))
    body: Expr = fields[0] if len(fields) == 1 else Tuple(fields)
    _check_sizes((*inputs, *post_order(body)))
    body = rewrite(rewrite(body, _without_empty), lambda node: lift(node) if isinstance(node, Constant) else node)
    attrs = {"defines": tuple(symbol for symbol, _ in defines)} if defines else {}
    main = Function((*inputs, *variables), body, attrs)
    return IRModule(
        {"main": main, **(functions or {})},
        tuple(output_names),
        dict(quantization),
        dict(source),
        frozen=dict(frozen or {}),
        states=tuple(states),
    ), params


def _stored(constant: Constant) -> Constant:
    """Return a constant in its stored form: large constants of sub-byte integers are packed into bytes."""
    if constant.type.dtype not in dtypes.NARROW_INTEGERS or constant.type.size < _LEAST_PACKED:
        return constant
    codes = np.ascontiguousarray(constant.data).view(np.uint8)
    width = dtypes.bits(constant.type.dtype)
    return Constant(pack_codes(codes & ((1 << width) - 1), width), constant.name, constant.span)


def _unpacked(packed: Var, constant: Constant) -> Expr:
    kind = constant.type
    return ir.call("qnn.unpack", [packed], out_dtype=kind.dtype, extent=kind.shape[-1], span=constant.span)


def frozen_input(value: npt.ArrayLike, name: str, dtype: str, extents: Sequence[int | None] | None) -> npt.NDArray[Any]:
    """Return the value of an input that is known at compile time.

    A scalar fills the input, a list has its elements in order, any other array must have the input's shape. `extents`
    has None for each dynamic dimension, and is None if the rank is dynamic. Raises OptionError if the value does not
    fit the input's shape or dtype.
    """
    place = f"the value given for the input '{name}'"
    given = np.asarray(value)
    if given.dtype.kind not in "biuf" and given.dtype.name not in dtypes.SCALARS:
        raise OptionError(f"expected numbers, got {given.dtype}", place=place)
    item = dtypes.to_numpy(dtype)
    with np.errstate(all="ignore"):
        array = given.astype(item)
        rounds = dtypes.is_float(dtype) and given.dtype.kind == "f"
        # floats may round, but not to infinity
        kept = np.isfinite(array) == np.isfinite(given) if rounds else array.astype(given.dtype) == given
        if not kept.all():
            raise OptionError(f"expected values of {dtype}, got {given[~kept].reshape(-1)[0]}", place=place)
    if extents is None or (
        len(extents) == array.ndim and all(a in (None, b) for a, b in zip(extents, array.shape, strict=True))
    ):
        return array
    shape = tuple(extent for extent in extents if extent is not None)
    is_open = len(shape) < len(extents)
    if array.ndim == 0 and not is_open and math.prod(shape) <= _ELEMENT_LIMIT:
        return np.full(shape, array, item)
    if array.ndim == 1 and not is_open and array.size == math.prod(shape):
        return array.reshape(shape)
    shown = str(tuple(extents)).replace("None", "?")
    raise OptionError(
        f"expected the shape {shown}, got {array.shape}",
        place=place,
        next_step=f"Give the input's shape, too: --shape {name}=..." if is_open and array.ndim < 2 else None,
    )


def _check_sizes(exprs: Iterable[Expr]) -> None:
    for expr in exprs:
        if not isinstance(expr.type, TensorType):
            continue
        # a tensor without elements may have a size beyond all indices; dynamic sizes are checked at run time
        largest = max(bounds(extent)[0] for extent in (expr.type.size, *expr.type.shape))
        if largest > _ELEMENT_LIMIT:
            name = expr.name if isinstance(expr, Var) else expr.span.tensor
            raise UnsupportedError(
                f"a tensor of shape {expr.type.shape} exceeds what indices reach, {_ELEMENT_LIMIT:,}, by "
                f"{largest - _ELEMENT_LIMIT:,}",
                place=name or expr.span.place,
                next_step="Give the model's inputs smaller shapes",
            )


def _without_empty(expr: Expr) -> Expr:
    """Return a constant for a computed tensor without elements, and for a sum over an empty reduction."""
    value = of_nothing(expr) if isinstance(expr, Call) else None
    return expr if value is None else Constant(value, None, expr.span)


def tie_states(
    module: IRModule,
    params: Params,
    pairs: Mapping[str, str] | None = None,
    initial: Mapping[str, npt.ArrayLike] | str | None = None,
) -> IRModule:
    """Return a module with additional states, or with other initial values.

    Parameters
    ----------
    module : IRModule
        An imported module, which may already have states.
    params : dict of str to ndarray
        Its weights, which are not inputs.
    pairs : mapping of str to str, optional
        For each of these inputs, the output that is its next value.
    initial : mapping of str to array_like, or ``zeros``, optional
        Initial values of states by name. Other states keep theirs, which is zeros unless the model defines it.

    Raises
    ------
    OptionError
        For names that the model does not have, tensors whose types differ or that are tied twice, and initial values of
        the wrong shape or dtype.
    """
    inputs = {param.name: ir.tensor_type(param) for param in module.main.params if param.name not in params}
    heads = module.outputs
    names = module.output_names or tuple(f"output{i}" if len(heads) > 1 else "output" for i in range(len(heads)))
    outputs = dict(zip(names, heads, strict=True))
    kept = {state.input for state in module.states}
    taken = {state.output for state in module.states}
    states = list(module.states)
    for name, result in (pairs or {}).items():
        free = [item for item in inputs if item not in kept]
        if name not in inputs:
            raise OptionError(unknown("input", name, free), place="state")
        if result not in outputs:
            raise OptionError(unknown("output", result, [item for item in outputs if item not in taken]), place="state")
        if name in kept or result in taken:
            tensor = f"input '{name}'" if name in kept else f"output '{result}'"
            raise OptionError(f"the {tensor} is tied to state twice", place="state")
        given, wanted = ir.tensor_type(outputs[result]), inputs[name]
        if given != wanted:
            raise OptionError(
                f"expected an output of the type of the input '{name}', {wanted}, got '{result}': {given}",
                place="state",
            )
        kept.add(name)
        taken.add(result)
        states.append(State(name, result))
    if states and len(taken) == len(outputs):
        raise OptionError("every output is tied to state, so the model would return nothing", place="state")
    return replace(module, output_names=tuple(outputs), states=_with_initial(states, inputs, initial))


def _with_initial(
    states: list[State], inputs: Mapping[str, TensorType], initial: Mapping[str, npt.ArrayLike] | str | None
) -> tuple[State, ...]:
    if initial is None:
        return tuple(states)
    if isinstance(initial, str):
        if initial != "zeros":
            raise OptionError(f"expected 'zeros' or arrays by name, got '{initial}'", place="state_init")
        return tuple(replace(state, initial=None) for state in states)
    missing = [name for name in initial if name not in {state.input for state in states}]
    if missing:
        raise OptionError(unknown("state", missing[0], [state.input for state in states]), place="state_init")
    found = {state.input: state for state in states}
    for name, value in initial.items():
        given = frozen_input(value, name, inputs[name].dtype, inputs[name].shape)
        found[name] = replace(found[name], initial=given)
    return tuple(found.values())
