"""From the graph IR to Relay text, one operator a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlforge.errors import InternalError
from mlforge.relay import ir
from mlforge.relay.ir import Call, Constant, Expr, Function, GlobalVar, IRModule, Tuple, TupleGetItem, Var
from mlforge.relay.op import REQUIRED, Operator
from mlforge.relay.text_literals import attribute_text, scalar_text, unique_names
from mlforge.relay.text_origins import Origin, origin_text

_INLINE = (Var, Constant, GlobalVar)


@dataclass(eq=False)
class Printer:
    """Prints the functions of one module; constants without a literal form gather in `constants`.

    With `spans`, comments tell where expressions came from.
    """

    spans: bool
    constants: list[Constant] = field(default_factory=list)
    global_names: dict[str, str] = field(default_factory=dict)
    _places: dict[Constant, int] = field(default_factory=dict)

    def module(self, module: IRModule) -> str:
        """Return all functions, by name."""
        names = sorted(module.functions)
        self.global_names = dict(zip(names, unique_names(names), strict=True))
        return "\n".join(
            f"def @{self.global_names[name]}{self.function(function, '')}{self.origin(function)}\n"
            for name, function in ((name, module.functions[name]) for name in names)
        )

    def function(self, function: Function, indent: str) -> str:
        """Return parameters, types and body of a function, from the parenthesis to the brace."""
        return _FunctionPrinter(self, function, indent).text()

    def constant(self, constant: Constant) -> str:
        """Return the literal, or a reference into the metadata section."""
        literal = scalar_text(constant.data, constant.type.dtype)
        if literal is None:
            if constant not in self._places:
                self._places[constant] = len(self.constants)
                self.constants.append(constant)
            literal = f"meta[relay.Constant][{self._places[constant]}] /* ty={constant.type} */"
        return literal + self.origin(constant, constant.name)

    def origin(self, expr: Expr, name: str | None = None) -> str:
        """Return a comment with the span and the own name of an expression, if these are wanted."""
        return origin_text(Origin(expr.span, name)) if self.spans else ""


def parameter_names(function: Function) -> dict[Var, str]:
    """Return the name under which each parameter is printed."""
    titles = unique_names([param.name for param in function.params])
    return dict(zip(function.params, titles, strict=True))


class _FunctionPrinter:
    """One function's scope: its parameter names and its numbered bindings."""

    def __init__(self, printer: Printer, function: Function, indent: str) -> None:
        self._printer = printer
        self._function = function
        self._indent = indent
        self._params = parameter_names(function)
        self._numbers: dict[Expr, int] = {}

    def text(self) -> str:
        function = self._function
        params = [f"%{title}: {param.type}{self._parameter_origin(param)}" for param, title in self._params.items()]
        attrs = [f"{key}={attribute_text(function.attrs[key])}" for key in sorted(function.attrs)]
        head = f"({', '.join(params + attrs)}) -> {function.body.type} {{"
        inner = self._indent + "  "
        lines = [head]
        for expr in _bindings(function.body):
            self._numbers[expr] = len(self._numbers)
            lines.append(f"{inner}%{self._numbers[expr]} = {self._expression(expr)};")
        lines += [f"{inner}{self._reference(function.body)}", f"{self._indent}}}"]
        return "\n".join(lines)

    def _parameter_origin(self, param: Var) -> str:
        return self._printer.origin(param, param.name if param.name != self._params[param] else None)

    def _reference(self, expr: Expr) -> str:
        """Return an expression as an argument: a name, a number or a literal; what has no number is spelled out."""
        if isinstance(expr, Var):
            if expr not in self._params:
                raise InternalError(f"the variable %{expr.name} is not a parameter of the function that uses it")
            return f"%{self._params[expr]}"
        if isinstance(expr, Constant):
            return self._printer.constant(expr)
        if isinstance(expr, GlobalVar):
            return f"@{self._printer.global_names.get(expr.name, expr.name)}{self._printer.origin(expr)}"
        number = self._numbers.get(expr)
        return self._expression(expr) if number is None else f"%{number}"

    def _expression(self, expr: Expr) -> str:
        span = self._printer.origin(expr)
        if isinstance(expr, Function):
            return f"fn {self._printer.function(expr, self._indent + '  ')}{span}"
        if isinstance(expr, Tuple):
            inner = ", ".join(map(self._reference, expr.fields))
            return f"({inner},){span}" if len(expr.fields) == 1 else f"({inner}){span}"
        if isinstance(expr, TupleGetItem):
            return f"{self._reference(expr.value)}.{expr.index}{span}"
        if not isinstance(expr, Call):
            raise InternalError(f"a {type(expr).__name__} has no line of its own")
        arguments = [*map(self._reference, expr.args), *_attributes(expr)]
        callee = expr.op.name if isinstance(expr.op, Operator) else self._reference(expr.op)
        return f"{callee}({', '.join(arguments)}){span}"


def _attributes(call: Call) -> Iterator[str]:
    """Yield the attributes that differ from their defaults, in declared order."""
    if not isinstance(call.op, Operator):
        return
    for attr in call.op.attrs:
        value = call.attrs[attr.name]
        if attr.default is REQUIRED or value != attr.default:
            yield f"{attr.name}={attribute_text(value)}"


def _parts(expr: Expr) -> Sequence[Expr]:
    """Return what `expr` reads in its own scope; a called function comes last, close to its call."""
    if isinstance(expr, Call):
        return (*expr.args, expr.op) if isinstance(expr.op, Function) else expr.args
    if isinstance(expr, Tuple):
        return expr.fields
    return (expr.value,) if isinstance(expr, TupleGetItem) else ()


def _bindings(body: ir.Expr) -> list[Expr]:
    """Return what gets a line of its own, in post-order; `body` itself is the last expression and gets none."""
    order: list[Expr] = []
    seen: set[Expr] = {body}
    stack = [(body, iter(_parts(body)))]
    while stack:
        expr, rest = stack[-1]
        for part in rest:
            if part not in seen and not isinstance(part, _INLINE):
                seen.add(part)
                stack.append((part, iter(_parts(part))))
                break
        else:
            stack.pop()
            order.append(expr)
    return order[:-1]
