"""Search for input values with which a node compiles that requires a value known at compile time.

The value is usually a shape, which the declared shapes of the node's outputs determine. Each candidate is tried on the
node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import MlfcError, Remedy
from mlfc.frontend.onnx.node import Node, UnknownValueError, shape_of
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Tuple, Var
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.support import dtypes
from mlfc.support.cost import apart
from mlfc.support.dims import bounds, is_static

Array: TypeAlias = npt.NDArray[Any]

_FEW_INPUTS = 3
_FEW_ELEMENTS = 64  # of an input that may be a setting: larger inputs are data
_LARGEST_SEARCH = 400  # expressions between an input and the required value
_TRIALS = 100
_MAKE_CONSTANT = "Make it a constant of the model; static input shapes (--shape) often make it one"
_STATE_SHAPES = (
    "If the shapes of the outputs are always the same, declare them there (onnx.shape_inference, or value_info); "
    "otherwise cut the model before this node"
)
_USUAL = (1, 2, 3, 4, 5, 8, 16, 0, -1)
# exceptions that unsuitable values can raise in an importer
_MISFITS = (MlfcError, ArithmeticError, LookupError, TypeError, ValueError, MemoryError)


@dataclass
class Advisor:
    """Search for suitable input values for the nodes of one model, within a limit on the number of trials."""

    results: Sequence[tuple[int, ...]]  # declared shapes of the model's outputs
    trials: int = 1000
    errors: int = 100  # number of errors for which a search is made, as each one walks the graph

    def advised(
        self, node: Node, convert: Callable[[Node], Sequence[Expr]], error: UnknownValueError
    ) -> UnknownValueError:
        """Return the error of a node that requires a constant, extended with the model inputs that determine it.

        `convert` imports the node. Example values are included if the import succeeds with them and results in the
        declared shapes; if the node declares none, the shapes of the model's results are tried first.
        """
        place = f"node '{node.name}'"
        asked = self._deciding(node.input(error.index))
        if not asked:
            step = _MAKE_CONSTANT
            if self.errors > 0:
                roots = (item.name for item in post_order(node.input(error.index)) if isinstance(item, Var))
                root = next(roots, None)
                step = f"It follows from the data in '{root}'. {_STATE_SHAPES}" if root is not None else _STATE_SHAPES
            return UnknownValueError(error.cause, index=error.index, place=place, next_step=step)
        search = _Search(convert, self.results, min(self.trials, _TRIALS))
        with apart():
            found = search.values(node, {})
        self.trials -= search.count
        told = advice(asked, found, fits=node.declared_shape is not None)
        likely = search.likely if found else ()
        return UnknownValueError(error.cause, index=error.index, likely=likely, place=place, **told)

    def for_condition(self, condition: Expr) -> dict[str, Any]:
        """Return the next step and remedies for an If whose condition is not constant."""
        asked = self._deciding(condition)
        if not asked:
            return {"next_step": "Export the model in inference mode, or make both branches return the same shape"}
        # a setting that is compared with a number probably has that value
        numbers = [item.data for item in post_order(condition) if isinstance(item, Constant) and item.data.size == 1]
        likely = [(int(item.reshape(())),) for item in numbers if item.dtype.kind in "iu"]
        for chosen in islice(_assignments(asked, likely), min(self.trials, _TRIALS)):
            self.trials -= 1
            with apart():
                if _value(condition, chosen) is not None:
                    return advice(asked, chosen, fits=False)
        return advice(asked, None, fits=False)

    def _deciding(self, expr: Expr) -> list[Var]:
        self.errors -= 1
        return _deciding(expr) if self.errors > 0 or isinstance(expr, Var) else []


def advice(asked: Sequence[Var], found: Mapping[Var, Array] | None, fits: bool) -> dict[str, Any]:
    """Return the next step and remedies that specify values of inputs; `found` is None if none are suitable."""
    remedies = [Remedy("--value", f"{var.name}=...") for var in asked]
    if found:
        remedies = [Remedy("--value", f"{var.name}={_text(value)}", is_example=True) for var, value in found.items()]
    how = " ".join(map(str, remedies))
    if found:
        how = f"{how} yields the declared shapes" if fits else f"for example {how}"
    return {"next_step": f"Specify its value at compile time: {how}", "remedies": remedies}


def _deciding(expr: Expr) -> list[Var]:
    """Return the model inputs that determine a value; an empty list if it depends on data."""
    if isinstance(expr, Var):
        return [expr]
    order = post_order(expr)
    found = [item for item in order if isinstance(item, Var)]
    few = len(order) <= _LARGEST_SEARCH and len(found) <= _FEW_INPUTS
    return found if few and all(bounds(ir.tensor_type(var).size)[1] <= _FEW_ELEMENTS for var in found) else []


@dataclass
class _Search:
    """Search for input values with which a node can be imported."""

    convert: Callable[[Node], Sequence[Expr]]
    results: Sequence[tuple[int, ...]]  # declared shapes of the model's outputs
    limit: int
    count: int = 0
    likely: Sequence[ir.Type] = ()  # types of the outputs, once values are found

    def values(self, node: Node, chosen: Mapping[Var, Array]) -> dict[Var, Array] | None:
        """Return input values with which a node can be imported; inputs in `chosen` are constants already."""
        self.count += 1
        if self.count > self.limit:
            return None
        try:
            results = self.convert(node)
        except UnknownValueError as error:
            return self._deeper(node, error.index, chosen)
        except _MISFITS:
            return None
        declared = zip(node.declared, results, strict=False)
        if any(shape is not None and shape != shape_of(item) for shape, item in declared):
            return None
        self.likely = [item.type for item in results]
        return dict(chosen)

    def _deeper(self, node: Node, index: int, chosen: Mapping[Var, Array]) -> dict[Var, Array] | None:
        expr = node.input(index)
        asked = [var for var in _deciding(expr) if var not in chosen]
        shapes = [shape for shape in node.declared if shape is not None] or list(self.results)
        shapes += [item.type.shape for item in node.inputs if item is not None and isinstance(item.type, ir.TensorType)]
        for more in _assignments(asked, shapes, is_checked=node.declared_shape is not None):
            if self.count > self.limit:
                break
            value = _value(expr, {**chosen, **more})
            if value is None:
                self.count += 1
                continue
            inputs = [*node.inputs[:index], Constant(value), *node.inputs[index + 1 :]]
            found = self.values(replace(node, inputs=inputs), {**chosen, **more})
            if found is not None:
                return found
        return None


def _assignments(
    asked: Sequence[Var], shapes: Sequence[tuple[int, ...]], is_checked: bool = False
) -> Iterator[dict[Var, Array]]:
    """Yield assignments of values to inputs, the likeliest first."""
    for values in product(*(list(_candidates(var, shapes, is_checked)) for var in asked)):
        yield dict(zip(asked, values, strict=True))


def _candidates(var: Var, shapes: Sequence[tuple[int, ...]], is_checked: bool) -> Iterator[Array]:
    """Yield likely values of an input; `shapes` are those of nearby tensors, the wanted ones first.

    If values that result in other shapes are rejected later (`is_checked`), zeros come first: usual zero points and
    pads.
    """
    kind = ir.tensor_type(var)
    item = dtypes.to_numpy(kind.dtype)
    count = kind.size
    if bounds(count)[1] > _FEW_ELEMENTS:
        return
    ordered: list[Sequence[float]]
    if dtypes.is_float(kind.dtype):
        ratios = [
            tuple(wide / narrow for wide, narrow in zip(shapes[0], shape, strict=True))
            for shape in shapes[1:]
            if len(shape) == len(shapes[0]) >= count and 0 not in shape
        ]
        ordered = [*_parts(ratios, count), [1] * count, [0] * count]
    elif kind.dtype == "bool":
        ordered = [[1] * count, [0] * count]
    else:
        filled = [[item] * count for item in _USUAL]
        ordered = [[0] * count, *_parts(shapes, count), *filled] if is_checked else [*_parts(shapes, count), *filled]
    for values in dict.fromkeys(map(tuple, ordered)):
        if is_static(values):  # dynamic dimension sizes cannot be candidates
            with np.errstate(all="ignore"):
                wide = np.asarray(values, np.float64 if dtypes.is_float(kind.dtype) else np.int64)
                yield wide.astype(item).reshape(kind.shape)


def _parts(shapes: Sequence[tuple[float, ...]], count: int) -> list[Sequence[float]]:
    """Return the last and the first `count` dimension sizes of shapes."""
    long = [shape for shape in shapes if len(shape) >= count]
    ends = [(shape[len(shape) - count :], shape[:count]) for shape in long]
    return [*chain.from_iterable(ends), *(last[::-1] for last, _ in ends)]


def _value(expr: Expr, known: Mapping[Var, Array]) -> Array | None:
    """Return the value of an expression for given values of its variables; None if it cannot be evaluated."""
    done: dict[Expr, Expr] = {}
    for item in post_order(expr):
        if isinstance(item, Var):
            if item not in known:
                return None
            done[item] = Constant(known[item])
        elif isinstance(item, Call):
            try:
                again = with_children(item, (done[child] for child in children(item)))
                value = evaluate(again) if isinstance(again, Call) else None
            except MlfcError:
                return None
            if value is None:
                return None
            done[item] = Constant(value)
        elif isinstance(item, (Constant, Tuple)):
            done[item] = with_children(item, (done[child] for child in children(item)))
        else:
            return None
    result = done[expr]
    return result.data if isinstance(result, Constant) else None


def _text(value: Array) -> str:
    """Return a value in the syntax of ``--value``, where a single number fills an input."""
    is_float = value.dtype.kind not in "biu"
    texts = [f"{float(item):.9g}" if is_float else str(item.item()).lower() for item in value.reshape(-1)]
    return texts[0] if len(set(texts)) == 1 else ",".join(texts)
