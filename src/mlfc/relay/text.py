"""Relay's text form: printing and parsing of modules.

`to_text` and `from_text` are inverses: printing a parsed text reproduces it, up to comments, white space, infix
operators and `let`, which are printed as TVM prints them. With `spans` the text reproduces the exact module: names,
spans and facts about the model are in comments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, IRModule, TensorType, Tuple, TupleGetItem, Var
from mlfc.relay.op import OPERATORS, REQUIRED, Operator, Trait
from mlfc.relay.text_literals import ANY, BOUNDS, SECTION, attribute_text, metadata_text, scalar_text, unique_names
from mlfc.relay.text_source import VERSION, Origin, Source, facts_text, origin_text
from mlfc.relay.visitor import children, post_order
from mlfc.support import dims
from mlfc.support.dim_walk import walked
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol
from mlfc.support.dtypes import NARROW_FLOATS

__all__ = ["VERSION", "from_text", "not_in_tvm", "parameter_names", "section_text", "text_and_constants", "to_text"]
_QUANTIZED = "qnn."
_INLINE = (Var, Constant, GlobalVar)
# keywords of the grammar, which symbols cannot be named
_KEYWORDS = frozenset(
    (
        *("def", "let", "fn", "meta", "if", "else", "True", "False", "None", "inf", "nan"),
        *("match", "type", "extern", "free_var", "ref", "ref_read", "ref_write"),
    )
)
_SKIPPED = re.compile(r'/\*.*?\*/|"(?:[^"\\]|\\.)*"', re.DOTALL)
_CALLED = re.compile(r"(?<![%@\w.])[A-Za-z_][\w.]*(?=\()")
_SYMBOLIC = re.compile(r"Tensor\[\([\d, ]*[^\d, )?]")
_CALL_OF = {"//": "floordiv", "%": "floormod"}


def to_text(
    module: IRModule, metadata: bool = True, *, version: bool = True, spans: bool = False, any_shapes: bool = False
) -> str:
    """Return a module as Relay text.

    `metadata`: end with the section of the tensor constants, if there are any. Without it the text of a module with
    tensor constants only shows where they are used.
    `version`: start with the version line, without which the text does not parse.
    `spans`: write comments with original names, spans, output names, quantization and source; see `text_source`.
    `any_shapes`: write ``?`` for dynamic dimensions, as TVM does, whose types have no symbols. A reader of such a text
    creates a new symbol for each.
    Scalars have enough digits to parse to the same value. Names that are not Relay identifiers are changed; see
    `parameter_names`.
    """
    text, constants = text_and_constants(module, version=version, spans=spans, any_shapes=any_shapes)
    return text + section_text(constants) if metadata else text


def text_and_constants(
    module: IRModule, *, version: bool = True, spans: bool = False, any_shapes: bool = False
) -> tuple[str, tuple[Constant, ...]]:
    """Return the text without a metadata section, and the constants that it references by index."""
    symbols = SymbolNames(module, any_shapes)
    printer = ModulePrinter(spans, symbols)
    head = f'#[version = "{VERSION}"]\n' if version else ""
    text = f"{head}{facts_text(module, symbols.original()) if spans else ''}{printer.module(module)}"
    return text, tuple(printer.constants)


def section_text(constants: Sequence[Constant]) -> str:
    """Return the metadata section with these constants; empty if there are none."""
    return f"\n{SECTION}\n{metadata_text(constants)}\n" if constants else ""


def from_text(text: str, file: str = "<text>", *, constants: Sequence[npt.NDArray[Any]] | None = None) -> IRModule:
    """Return the module that Relay text describes.

    `text`: untrusted: nesting, lengths and indices are checked.
    `constants`: the values of ``meta[relay.Constant][i]`` in a text without a metadata section.
    Raises TextError, with file, line and column, the line itself with a caret, and the expected tokens.
    """
    from mlfc.relay.text_parser import parse  # only here, as its parser takes long to import

    return parse(Source(text, file), constants or ())


def not_in_tvm(text: str) -> tuple[str, ...]:
    """Return the operators and dtypes of mlfc's text that TVM 0.14 lacks, and ``symbolic dimensions`` if it has any.

    Operators that are not registered are those of users.
    """
    code = _SKIPPED.sub("", text.partition(SECTION)[0])
    named = sorted(set(_CALLED.findall(code)) - set(_CALL_OF.values()))
    found = [name for name in named if name not in OPERATORS or Trait.NOT_IN_TVM in OPERATORS.get(name).traits]
    found += [dtype for dtype in NARROW_FLOATS if re.search(rf"\b{dtype}\b", code)]
    return (*found, *(["symbolic dimensions"] if _SYMBOLIC.search(code) else ()))


class SymbolNames:
    """The names under which the symbols of a module are printed, and the functions that declare their bounds."""

    def __init__(self, module: IRModule | None = None, any_shapes: bool = False) -> None:
        self.any_shapes = any_shapes
        found: dict[Symbol, None] = {}
        self._declared: dict[Function, list[Symbol]] = {}
        functions = module.functions if module else {}
        for name in sorted(functions):
            function = functions[name]
            own = _function_symbols(function)
            self._declared[function] = [symbol for symbol in own if symbol not in found]
            found.update(dict.fromkeys(own))
        titles = unique_names([f"{symbol.name}_" if symbol.name in _KEYWORDS else symbol.name for symbol in found])
        self.titles = dict(zip(found, titles, strict=True))
        self._renamed: dict[Symbol, Extent] = {
            symbol: Symbol(title, symbol.low, symbol.high).dim
            for symbol, title in self.titles.items()
            if symbol.name != title
        }

    def text(self, extent: Extent | Symbol) -> str:
        """Return an extent as text."""
        if isinstance(extent, Symbol):
            return self.titles.get(extent, extent.name)
        return _extent_text(dims.substituted(extent, self._renamed) if self._renamed else extent)

    def type_text(self, kind: ir.Type) -> str:
        """Return a type as text; with `any_shapes`, dynamic dimensions are ``?``."""
        if isinstance(kind, TensorType):
            if kind.is_static:
                return str(kind)
            extents = (ANY if self.any_shapes and isinstance(item, Dim) else self.text(item) for item in kind.shape)
            return f"Tensor[({', '.join(extents)}), {kind.dtype}]"
        if isinstance(kind, ir.ListType):
            return f"List[{', '.join(self.type_text(item) for item in kind.elements)}]"
        if isinstance(kind, ir.TupleType):
            inner = ", ".join(self.type_text(item) for item in kind.fields)
            return f"({inner},)" if len(kind.fields) == 1 else f"({inner})"
        return str(kind)

    def bounds_text(self, function: Function) -> str:
        """Return the non-default bounds of the symbols that a function is the first to use."""
        if self.any_shapes:
            return ""
        declared = [symbol for symbol in self._declared.get(function, ()) if (symbol.low, symbol.high) != (1, LARGEST)]
        return ",".join(
            f"{self.titles[symbol]}={symbol.low}..{'' if symbol.high == LARGEST else symbol.high}"
            for symbol in declared
        )

    def original(self) -> dict[str, str]:
        """Return the symbols' original names by the printed ones, if they differ."""
        return {title: symbol.name for symbol, title in self.titles.items() if symbol.name != title}


def _function_symbols(function: Function) -> list[Symbol]:
    """Return the symbols in the types and attributes of a function and of its nested functions, in order."""
    found: dict[Symbol, None] = {}
    pending, seen = [function], {function}
    while pending:
        current = pending.pop()
        for expr in (*current.params, *post_order(current.body)):
            if not isinstance(expr, Constant):
                found.update(dict.fromkeys(ir.type_symbols(expr.type)))
            if isinstance(expr, Call):
                found.update(dict.fromkeys(ir.attribute_symbols(expr.attrs)))
            nested = expr.op if isinstance(expr, Call) else expr
            if isinstance(nested, Function) and nested not in seen:
                seen.add(nested)
                pending.append(nested)
        found.update(dict.fromkeys(ir.attribute_symbols(current.attrs)))
    return list(found)


def _extent_text(extent: Extent) -> str:
    """Return an extent as an expression that parses to the same extent with `extent_call` and infix operators."""

    def applied(operation: str, a: str, b: str) -> str:
        if operation == "+":
            return f"{a} - {b[1:]}" if b.startswith("-") else f"{a} + {b}"
        if operation == "*":
            if not b.removeprefix("-").isdecimal():
                return f"{a} * {b}"
            return f"-{a}" if b == "-1" else f"{b} * {a}"
        return f"{_CALL_OF.get(operation, operation)}({a}, {b})"

    text: str = walked(extent, str, applied)
    return text


@dataclass(eq=False)
class ModulePrinter:
    """Prints the functions of a module; collects constants without a literal in `constants`; `spans` adds origins."""

    spans: bool
    symbols: SymbolNames = field(default_factory=SymbolNames)
    constants: list[Constant] = field(default_factory=list)
    global_names: dict[str, str] = field(default_factory=dict)
    _places: dict[Constant, int] = field(default_factory=dict)
    _narrow: dict[Constant, Constant] = field(default_factory=dict)
    _stand_ins: dict[Any, tuple[str, Function]] = field(default_factory=dict)

    def module(self, module: IRModule) -> str:
        """Return all functions, by name."""
        names = sorted(module.functions)
        self.global_names = dict(zip(names, unique_names(names), strict=True))
        texts = [self._definition(self.global_names[name], module.functions[name]) for name in names]
        texts += [self._definition(name, function) for name, function in self._stand_ins.values()]
        return "\n".join(texts)

    def _definition(self, name: str, function: Function) -> str:
        return f"def @{name}{self.function(function, '')}{self.origin(function)}\n"

    def stand_in(self, call: Call, operator: Operator) -> str | None:
        """Return the name of a function of TVM's operators for a call of an operator that TVM does not have."""
        kinds = [_in_tvm(ir.tensor_type(arg)) for arg in call.args] if operator.in_tvm is not None else []
        key = (operator.name, tuple(call.attrs.items()), tuple(kinds))
        if operator.in_tvm is not None and key not in self._stand_ins:
            params = tuple(Var(f"p{index}", kind) for index, kind in enumerate(kinds))
            body = operator.in_tvm(params, call.attrs, call.type)
            if body is not None:
                name = operator.name.replace(".", "_")
                others = [*self.global_names.values(), *(taken for taken, _ in self._stand_ins.values())]
                *_, title = unique_names([*others, name])
                self._stand_ins[key] = title, Function(params, body, {"Inline": 1})
        return self._stand_ins[key][0] if key in self._stand_ins else None

    def function(self, function: Function, indent: str) -> str:
        """Return parameters, types and body of a function, from the opening parenthesis to the closing brace."""
        return _RelayFunctionPrinter(self, function, indent).text()

    def constant(self, constant: Constant) -> str:
        """Return the literal, or a reference into the metadata section."""
        shown = self._narrow.get(constant, constant)
        literal = scalar_text(shown.data, shown.type.dtype)
        if literal is None:
            literal = f"meta[relay.Constant][{self._place(shown)}] /* ty={shown.type} */"
        exact: float | dict[str, Any] | None = None
        if shown is not constant:
            is_number = not constant.data.shape and math.isfinite(constant.data)
            exact = float(constant.data) if is_number else {"constant": self._place(constant)}
        return literal + self.origin(constant, constant.name, exact)

    def _place(self, constant: Constant) -> int:
        if constant not in self._places:
            self._places[constant] = len(self.constants)
            self.constants.append(constant)
        return self._places[constant]

    def scales(self, call: Call) -> None:
        """Print the scales of a quantized operator as float32, which is the only dtype that TVM's operators support."""
        if not isinstance(call.op, Operator) or not call.op.name.startswith(_QUANTIZED):
            return
        for arg in call.args:
            for value in arg.fields if isinstance(arg, Tuple) else (arg,):
                if isinstance(value, Constant) and value.type.dtype == "float64" and value not in self._narrow:
                    with np.errstate(over="ignore"):
                        self._narrow[value] = Constant(value.data.astype(np.float32))

    def origin(self, expr: Expr, name: str | None = None, exact: float | dict[str, Any] | None = None) -> str:
        """Return a comment with values that TVM cannot represent and, with `spans`, the span and original name."""
        return origin_text(Origin(expr.span, name, exact) if self.spans else Origin(exact=exact))


def parameter_names(function: Function) -> dict[Var, str]:
    """Return the name under which each parameter is printed."""
    titles = unique_names([param.name for param in function.params])
    return dict(zip(function.params, titles, strict=True))


def by_parameter_name(function: Function, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return values keyed by the names of parameters; keys may also be the names under which these are printed."""
    # unambiguous: a name that can be printed unchanged is
    names = {title: param.name for param, title in parameter_names(function).items()}
    return {names.get(key, key): value for key, value in values.items()}


class _RelayFunctionPrinter:
    """One function's scope: its parameter names and its numbered bindings."""

    def __init__(self, printer: ModulePrinter, function: Function, indent: str) -> None:
        self._printer = printer
        self._function = function
        self._indent = indent
        self._params = parameter_names(function)
        self._names: dict[Expr, str] = {}
        # prefix of `let` names, which no parameter has
        self._let = "r"
        while any(title.startswith(self._let) for title in self._params.values()):
            self._let += "_"

    def text(self) -> str:
        function = self._function
        symbols, params = self._printer.symbols, []
        for param, title in self._params.items():
            origin = self._printer.origin(param, param.name if param.name != title else None)
            params.append(f"%{title}: {symbols.type_text(param.type)}{origin}")
        texts = {key: attribute_text(value, symbols.text) for key, value in function.attrs.items()}
        if bounds := symbols.bounds_text(function):
            texts[BOUNDS] = attribute_text(bounds)
        attrs = [f"{key}={texts[key]}" for key in sorted(texts)]
        head = f"({', '.join(params + attrs)}) -> {symbols.type_text(function.body.type)} {{"
        inner = self._indent + "  "
        lines = [head]
        bindings = _bindings(function.body)
        for expr in (*bindings, function.body):
            if isinstance(expr, Call):
                self._printer.scales(expr)
        if _is_typed(function.body):
            bindings.append(function.body)
        for number, expr in enumerate(bindings):
            text = self._expression(expr)
            if _is_typed(expr):
                self._names[expr] = f"%{self._let}{number}"
                text = f"let {self._names[expr]}: {symbols.type_text(expr.type)} = {text}"
            else:
                self._names[expr] = f"%{number}"
                text = f"%{number} = {text}"
            lines.append(f"{inner}{text};")
        lines += [f"{inner}{self._reference(function.body)}", f"{self._indent}}}"]
        return "\n".join(lines)

    def _reference(self, expr: Expr) -> str:
        """Return an argument as text: a name, ``%3`` or a literal; an expression without a ``%`` number is inlined."""
        if isinstance(expr, Var):
            if expr not in self._params:
                raise InternalError(f"the variable %{expr.name} is not a parameter of the function that uses it")
            return f"%{self._params[expr]}"
        if isinstance(expr, Constant):
            return self._printer.constant(expr)
        if isinstance(expr, GlobalVar):
            return f"@{self._printer.global_names.get(expr.name, expr.name)}{self._printer.origin(expr)}"
        return self._names.get(expr) or self._expression(expr)

    def _expression(self, expr: Expr) -> str:
        attrs, exact = _attributes(expr, self._printer) if isinstance(expr, Call) else ([], {})
        stand_in = None
        if isinstance(expr, Call) and isinstance(expr.op, Operator):
            stand_in = self._printer.stand_in(expr, expr.op)
            if stand_in is not None:
                attrs, exact = [], {"op": expr.op.name, **_given(expr)}
        span = self._printer.origin(expr, exact=exact or None)
        if isinstance(expr, Function):
            return f"fn {self._printer.function(expr, self._indent + '  ')}{span}"
        if isinstance(expr, Tuple):
            inner = ", ".join(map(self._reference, expr.fields))
            return f"({inner},){span}" if len(expr.fields) == 1 else f"({inner}){span}"
        if isinstance(expr, TupleGetItem):
            return f"{self._reference(expr.value)}.{expr.index}{span}"
        if isinstance(expr, If):
            arguments = f"({', '.join(map(self._reference, expr.args))})\n{self._indent}  }}"
            then, otherwise = (
                f"{{\n{self._indent}    {self._reference(target)}{arguments}" for target in (expr.then, expr.otherwise)
            )
            return f"if ({self._reference(expr.condition)}) {then} else {otherwise}{span}"
        if not isinstance(expr, Call):
            raise InternalError(f"a {type(expr).__name__} cannot be printed as a binding")
        operands = [*map(self._reference, expr.args), *attrs]
        callee = expr.op.name if isinstance(expr.op, Operator) else self._reference(expr.op)
        if stand_in is not None:
            callee = f"@{stand_in}"
        return f"{callee}({', '.join(operands)}){span}"


def _attributes(call: Call, printer: ModulePrinter) -> tuple[list[str], dict[str, Any]]:
    """Return the attributes that differ from their defaults, in declared order, and those that TVM does not have."""
    texts: list[str] = []
    exact: dict[str, Any] = {}
    known = {attr.name: attr for attr in call.op.attrs} if isinstance(call.op, Operator) else {}
    for name, value in _given(call).items():
        attr = known[name]
        shown = value
        if attr.in_tvm is not None and (not attr.in_tvm or value in attr.in_tvm):
            exact[name] = value
            shown = attr.in_tvm.get(value)
        if shown is not None or name not in exact:
            texts.append(f"{name}={attribute_text(shown, printer.symbols.text)}")
    return texts, exact


def _given(call: Call) -> dict[str, Any]:
    """Return the attributes of an operator that differ from their defaults."""
    if not isinstance(call.op, Operator):
        return {}
    found = ((attr, call.attrs[attr.name]) for attr in call.op.attrs)
    return {attr.name: value for attr, value in found if attr.default is REQUIRED or value != attr.default}


def _in_tvm(kind: TensorType) -> TensorType:
    return TensorType(kind.shape, "float32") if kind.dtype == "float64" else kind


def _is_typed(expr: Expr) -> bool:
    """Tell whether the type of an expression must be written: it has symbols that the callee does not determine."""
    if isinstance(expr, If):
        return any(ir.applied(target, expr.args)[0] != expr.type for target in (expr.then, expr.otherwise))
    if not isinstance(expr, Call) or isinstance(expr.op, Operator):
        return False
    return ir.applied(expr.op, expr.args)[0] != expr.type


def _bindings(body: ir.Expr) -> list[Expr]:
    """Return the expressions with their own lines, in post-order; the last one, `body` itself, is excluded."""

    def reads(expr: Expr) -> list[Expr]:
        # operands in the scope of the expression; a called function comes last, next to its call
        called = (expr.op,) if isinstance(expr, Call) and isinstance(expr.op, Function) else ()
        parts = () if isinstance(expr, Function) else children(expr)
        return [part for part in (*parts, *called) if not isinstance(part, _INLINE)]

    return post_order(body, reads)[:-1]
