"""Operators that users declare for ONNX nodes, and the import of these nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfc.byoc import GENERATORS
from mlfc.byoc.c_source import CSource, c_generator, check_dtypes, packed
from mlfc.errors import ModelError, OptionError, TypeCheckError, UnsupportedError, unknown
from mlfc.frontend.onnx import table
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.ops import rules
from mlfc.registry import Registry, remove
from mlfc.relay.ir import Attrs, Call, Constant, Expr, TensorType, Tuple, TupleGetItem, Var, tensor_type
from mlfc.relay.op import OPERATORS, REQUIRED, Attr, Kind, Layout, Trait
from mlfc.support import dtypes, user_files
from mlfc.support.dims import Dim, UndecidedError
from mlfc.tir import ir as tir
from mlfc.tir.context import Tensor

_RESULT = "output"  # the attribute of Relay calls with the index of the result
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")
_ACCEPTED: Mapping[Any, Any] = {float: (float, int), bool: int, tuple: (tuple, list)}
_KINDS = {bool: "a bool", int: "an integer", float: "a float", str: "a string", tuple: "a list"}


@dataclass(frozen=True, eq=False)
class CustomOperator:
    """An operator that a user declared; see `declare`."""

    name: str
    domain: str
    attributes: Mapping[str, Any]  # defaults, or types of required attributes
    infer: Callable[..., Any] | None
    compose: Callable[..., Any] | None
    reference: Callable[..., Any] | None
    origin: str  # the file that declared it, if any

    @property
    def title(self) -> str:
        """The name, qualified by the domain."""
        return table.qualified(self.domain, self.name)

    @property
    def relay_name(self) -> str:
        """The operator's name in Relay text."""
        return re.sub(r"[^\w.]", "_", f"{self.domain or 'onnx'}.{self.name}")

    @property
    def packing(self) -> str:
        """The name of the operator that computes all results of a C function as one tensor."""
        return f"{self.relay_name}.all"

    @property
    def key(self) -> str:
        """The name of its external code generator."""
        return self.relay_name.replace(".", "_")[-64:]

    def inputs(self) -> tuple[int, int | None]:
        """Return the least and the largest number of inputs; None if unbounded."""
        given = [*inspect.signature(self.infer or self.compose or id).parameters.values()][self.infer is None :]
        own = [item for item in given if item.kind <= item.VAR_POSITIONAL and item.name not in self.attributes]
        least = sum(item.default is item.empty and item.kind < item.VAR_POSITIONAL for item in own)
        return least, None if any(item.kind is item.VAR_POSITIONAL for item in own) else len(own)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all attributes from those of a node; raise ModelError for unknown, missing and mistyped ones."""
        if extra := next((name for name in given if name not in self.attributes), None):
            raise ModelError(unknown("attribute", extra, self.attributes, where=f" of {self.title}"))
        found = {}
        for name, default in self.attributes.items():
            value, kind = given.get(name, default), _kind(default)
            if value is kind:
                raise ModelError(f"{self.title} requires the attribute '{name}'")
            value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if not isinstance(value, _ACCEPTED.get(kind, kind)):
                raise ModelError(f"expected {_KINDS[kind]} as attribute '{name}' of {self.title}, got {value!r}")
            found[name] = float(np.float32(value)) if kind is float else kind(value)  # ONNX stores float32
        return found

    def results(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        """Return the types of the results by the type rule; raise TypeCheckError if it fails."""
        own = {name: value for name, value in attrs.items() if name != _RESULT}
        assert self.infer is not None
        found = self.run("type rule", self.infer, types, own)
        results = tuple(found) if isinstance(found, (list, tuple)) else (found,)
        for item in results:
            is_type = isinstance(item, TensorType) and item.dtype in dtypes.SCALARS
            if not is_type or any(not isinstance(size, (int, Dim)) for size in item.shape):
                raise TypeCheckError(f"expected a TensorType from the type rule of {self.title}, got {item!r}")
        return results

    def run(self, what: str, function: Callable[..., Any], args: Sequence[Any], attrs: Attrs) -> Any:
        """Return the result of a function with the attributes that it names; raise TypeCheckError if it fails."""
        params = inspect.signature(function).parameters.values()
        takes_all = any(item.kind is item.VAR_KEYWORD for item in params)
        names = {item.name for item in params if item.kind in (item.KEYWORD_ONLY, item.POSITIONAL_OR_KEYWORD)}
        try:
            return function(*args, **{name: value for name, value in attrs.items() if takes_all or name in names})
        except (TypeCheckError, UnsupportedError, UndecidedError):
            raise
        except Exception as error:  # the function of a user may raise anything
            raise TypeCheckError(f"the {what} of {self.title} raises {type(error).__name__}: {error}") from error

    def convert(self, node: Node) -> Sequence[Expr]:
        """Return the results of a node."""
        node.read_attributes.update(node.attributes)
        inputs, (least, most) = [*node.inputs], self.inputs()
        while inputs and inputs[-1] is None:
            inputs.pop()
        try:
            values = self.values(node.attributes)
            if len(inputs) < least or (most is not None and len(inputs) > most):
                wanted = least if least == most else f"at least {least}" if len(inputs) < least else f"at most {most}"
                raise ModelError(f"expected {wanted} inputs of {self.title}, got {len(inputs)}")
            results = self._composed(node, inputs, values) if self.compose else self._called(node, inputs, values)
            for result, shape in zip(results, node.declared, strict=False):
                if shape is not None and not _may_be(shape_of(result), shape):
                    cause = f"{self.title} declares the shape {shape_of(result)}, the model {shape}"
                    raise ModelError(cause, next_step=f"Check its type rule in {self.origin or 'the declaration'}")
        except (ModelError, TypeCheckError) as error:
            if type(error) is TypeCheckError:  # the importer may resolve subclasses
                raise UnsupportedError(error.cause, place=node.name, next_step=error.next_step) from error
            error.place = error.place or node.name
            raise
        return results

    def _called(self, node: Node, inputs: Sequence[Expr | None], values: Attrs) -> list[Expr]:
        given = [item for item in inputs if item is not None]
        if len(given) < len(inputs):
            raise TypeCheckError(f"only the last inputs of {self.title} can be omitted")
        kinds = self.results(list(map(tensor_type, given)), values)
        if len(kinds) == 1 or self.packing not in OPERATORS:
            return [node.call(self.relay_name, *given, **values, **{_RESULT: index}) for index in range(len(kinds))]
        whole, results = node.call(self.packing, *given, **values), []
        _, starts = packed(kinds)
        for kind, start, end in zip(kinds, starts, (*starts[1:], shape_of(whole)[0]), strict=True):
            part = node.cut(whole, 0, start, end)
            if kind.dtype != tensor_type(part).dtype:
                stored = "uint8" if kind.dtype == "bool" else kind.dtype
                part = node.cut(node.call("reinterpret", part, dtype=stored), 0, 0, kind.size)
                part = part if stored == kind.dtype else node.call("not_equal", part, 0)
            results.append(node.reshape(part, kind.shape))
        return results

    def _composed(self, node: Node, inputs: Sequence[Expr | None], values: Attrs) -> list[Expr]:
        assert self.compose is not None
        found = self.run("composition", self.compose, [node.call, *inputs], values)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        for item in results:
            if not isinstance(item, (Call, Constant, Tuple, TupleGetItem, Var)):
                raise TypeCheckError(f"expected expressions from the composition of {self.title}, got {item!r}")
        return results


def _kind(default: Any) -> Any:
    return default if inspect.isclass(default) else tuple if isinstance(default, list) else type(default)


def _may_be(shape: Sequence[Any], declared: Sequence[int]) -> bool:
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(isinstance(a, Dim) or a == b for a, b in pairs)


CUSTOM: Registry[CustomOperator] = Registry("custom operator", plugins=True)


def declared(domain: str, name: str) -> CustomOperator | None:
    """Return a custom operator, or None if it is not declared."""
    key = table.qualified(table.normal_domain(domain), name)
    return None if table.since(table.normal_domain(domain), name) or key not in CUSTOM else CUSTOM.get(key)


def find(domain: str, name: str) -> table.Importer | None:
    """Return the importer of a custom operator, or None if it is not declared."""
    found = declared(domain, name)
    return None if found is None else table.Importer(found.convert, frozenset(), folds=True)


def declare(
    name: str,
    *,
    domain: str = "",
    infer: Callable[..., Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    compose: Callable[..., Any] | None = None,
    element: Callable[..., Any] | None = None,
    emit: Callable[..., None] | None = None,
    source: CSource | None = None,
    elementwise: bool = False,
    reference: Callable[..., Any] | None = None,
) -> None:
    """Declare an operator for ONNX nodes that mlfc does not support, by `compose`, `element`, `emit` or `source`.

    Functions receive inputs by position, and the attributes that they name by keyword.

    Parameters
    ----------
    name, domain : str
        Operator and domain of the nodes. The declaration has precedence over a function of the model.
    infer : callable ``(*types, **attributes) -> TensorType or several``
        The type rule, not needed with `compose`. Dimensions in the ``shape`` of a type may be symbolic expressions.
        Parameters with a default are optional inputs.
    attributes : mapping of str to object, optional
        The default value of each attribute; for a required one its type: bool, int, float, str or tuple.
    compose : callable ``(call, *inputs, **attributes) -> Expr or several``
        A composition: ``call("multiply", x, 2.0)`` applies an operator of ``mlfc operators``.
    element : callable ``(Element, *tensors) -> Expr``
        The loop-level rule of one element, as in `mlfc.ops.rules.declare`.
    emit : callable ``(Context, tensors, attributes, Output) -> None``
        A loop-level rule that writes its own loops, as in `mlfc.relay.op.Operator`.
    source : CSource
        A C file.
    elementwise : bool
        Each element of the result depends on the elements at its position only, and all shapes are equal.
    reference : callable ``(*arrays, **attributes) -> ndarray or several``
        The results in NumPy, for ``mlfc verify``.

    Raises
    ------
    OptionError
        If the declaration is incomplete, or the operator exists.
    """
    origin = str(user_files.loading() or "")
    made = CustomOperator(name, table.normal_domain(domain), attributes or {}, infer, compose, reference, origin)
    forms = {"compose": compose, "element": element, "emit": emit, "source": source}
    given = [form for form, value in forms.items() if value is not None]
    if len(given) != 1:
        raise OptionError(f"expected one of {', '.join(forms)}, got {' and '.join(given) or 'none'}", place=made.title)
    if (infer is None) != (compose is not None):
        raise OptionError(f"a type rule, infer, is required except with compose; got {given[0]}", place=made.title)
    for item, default in made.attributes.items():
        if _kind(default) not in _KINDS or item == _RESULT:
            cause = f"expected a number, a string, a list or a type of these as '{item}', got {default!r}"
            raise OptionError(f"an attribute cannot be named '{item}'" if item == _RESULT else cause, place=made.title)
    if table.since(made.domain, name) or (not made.domain and name in _CONTROL):
        step = "Declare yours under another name or domain, and rename it in the model"
        raise OptionError(f"the operator '{made.title}' is supported already", next_step=step)
    if made.title in [*CUSTOM]:  # without those of installed packages
        if origin or CUSTOM.get(made.title).origin:  # without files, notebooks declare again
            first = CUSTOM.get(made.title).origin or "this process"
            raise OptionError(f"the operator '{made.title}' is declared twice, first in {first}")
        remove([(CUSTOM, made.title), (OPERATORS, made.relay_name), (GENERATORS, made.key), (OPERATORS, made.packing)])
    if compose is None:
        _register(made, element, emit, source, elementwise)
    CUSTOM.add(made.title, made)


def _register(made: CustomOperator, element: Any, emit: Any, source: CSource | None, elementwise: bool) -> None:
    """Register the Relay operator, and the generator of its C code."""

    def infer(name: str, attrs: Attrs, *types: TensorType) -> TensorType:
        results = made.results(types, attrs)
        if source is not None:
            check_dtypes(made.title, source, (*types, *results))
        if elementwise and len(shapes := {kind.shape for kind in (*types, *results)}) > 1:
            raise TypeCheckError(f"{made.title} is elementwise: expected equal shapes, got {sorted(map(str, shapes))}")
        return packed(results)[0] if name == made.packing else results[attrs[_RESULT]]

    def checked_element(of: rules.Element, *inputs: Tensor) -> Any:
        found = made.run("element rule", element, [of, *inputs], {})
        if not isinstance(found, tir.ExprOps) or found.dtype != of.out.dtype:
            shown = found.dtype if isinstance(found, tir.ExprOps) else repr(found)
            raise TypeCheckError(f"expected {of.out.dtype} from the element rule of {made.title}, got {shown}")
        return found

    kind = Kind.EXTERNAL if source else Kind.ANCHOR if emit else Kind.ELEMENTWISE if elementwise else Kind.INJECTIVE
    attrs = [Attr(name, REQUIRED, _kind(default) is float) for name, default in made.attributes.items()]
    if source is not None:
        GENERATORS.add(made.key, c_generator((made.relay_name, made.packing), made.key, source, made))
    for name in (made.relay_name, made.packing) if source else (made.relay_name,):
        rules.declare(
            name, None, infer, kind, (*attrs, Attr(_RESULT, 0)), element and checked_element,
            emit=emit and (lambda *args: made.run("loop-level rule", emit, args, {})), expensive=True,
            layout=Layout.POINTWISE if elementwise and name == made.relay_name else Layout.LOGICAL,
            contract="declared by the user", traits=Trait.NOT_IN_TVM,
        )  # fmt: skip
