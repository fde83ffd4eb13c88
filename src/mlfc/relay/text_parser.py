"""Parser from Relay text to the graph IR: recursive over the tree, whose depth the limit on nested brackets bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from lark import Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mlfc.errors import MlfcError, TypeCheckError
from mlfc.relay import ir
from mlfc.relay.faults import definition_faults, state_faults
from mlfc.relay.ir import Constant, Expr, Function, GlobalVar, IRModule, TupleType, Var
from mlfc.relay.op import OPERATORS, Attr
from mlfc.relay.text_literals import BOUNDS, SECTION, integer_values, number_value, read_metadata, string_value
from mlfc.relay.text_source import MAX_NESTING, Origin, Prepared, Source
from mlfc.relay.text_types import (
    EXTENTS,
    RESERVED,
    BranchScope,
    Node,
    TypeReader,
    called_alone,
    described,
    parser,
    read_bounds,
    result_type,
    same_arguments,
    token_of,
    tree_of,
    trees,
)
from mlfc.support.dims import Dim, Symbol

Scope: TypeAlias = dict[str, Expr]

_INFIX = {
    "*": "multiply", "/": "divide", "+": "add", "-": "subtract", "<": "less", "<=": "less_equal",
    ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal",
}  # fmt: skip
# from the lowest to the highest precedence
_PRECEDENCE = (("==", "!="), ("<=", ">=", "<", ">"), ("+", "-"), ("*", "/"))
_COMPOSED = ("chain", "applied", "global_function", "tuple", "if")
_NOWHERE = Origin()
_MAX_FIELDS = 4_096
_CHANGE_BOTH = "change the comment together with what it explains, or leave it out"
CUSTOM_OPERATOR = "name the file that declares the operator: --op FILE.py"


def parse(source: Source, constants: Sequence[npt.NDArray[Any]] = ()) -> IRModule:
    """Return the module that a text describes; raise TextError pointing at the first fault.

    A metadata section of the text takes precedence over `constants`.
    """
    prepared, tree = syntax_tree(source)
    if prepared.metadata_start < len(source.text):
        line = source.text.count("\n", 0, prepared.metadata_start) + 1
        section = source.text[prepared.metadata_start + len(SECTION) :]
        constants = read_metadata(section, f"{source.file}:{line}")
    return _TreeReader(source, [Constant(array) for array in constants], prepared).module(tree)


def syntax_tree(source: Source) -> tuple[Prepared, Tree[Token]]:
    """Return the code of a text and its tree by the grammar; raise TextError for the first fault."""
    prepared = source.prepared()
    try:
        return prepared, parser().parse(prepared.code)
    except UnexpectedInput as error:
        raise _syntax_fault(source, error, prepared.code) from None


def _syntax_fault(source: Source, error: UnexpectedInput, text: str) -> MlfcError:
    if isinstance(error, UnexpectedToken) and error.token.type == RESERVED:
        return _fault_at(source, error.token, f"`{error.token}` is not part of the subset of Relay that is compiled")
    if isinstance(error, UnexpectedToken):
        expected = f"expected {described(error.accepts or error.expected)}"
        if error.token.type != "$END":
            return _fault_at(source, error.token, f"{expected}, found `{str(error.token)[:40]}`")
        return source.fault(f"{expected}, found the end of the text", max(0, len(text.rstrip()) - 1))
    offset = error.pos_in_stream or 0
    cause = f"`{source.text[offset : offset + 1]}` is not allowed here"
    allowed = set(error.allowed or ()) if isinstance(error, UnexpectedCharacters) else set()
    help_text = f"expected {described(allowed)}" if allowed else None
    return source.fault(cause, offset, help_text=help_text)


def _fault_at(source: Source, node: Node, cause: str, help_text: str | None = None) -> MlfcError:
    if isinstance(node, Token):
        return source.fault(cause, node.start_pos or 0, len(node), help_text=help_text)
    start = getattr(node.meta, "start_pos", 0)
    return source.fault(cause, start, getattr(node.meta, "end_pos", start + 1) - start, help_text=help_text)


class _TreeReader:
    """Converts the tree of one text to functions."""

    def __init__(self, source: Source, constants: Sequence[Constant], prepared: Prepared) -> None:
        self._source = source
        self._constants = list(constants)
        self._origins = prepared.origins
        self._facts = prepared.facts
        self._code = prepared.code
        self._types = TypeReader({}, prepared.code, self._fault)
        self._stand_ins: set[str] = set()
        self._signatures: dict[str, ir.FuncType | None] = {}
        self._branches: dict[str, Function] = {}
        self._sizes: dict[int, tuple[TupleType, tuple[int, int]]] = {}

    def module(self, tree: Tree[Token]) -> IRModule:
        definitions: dict[str, Tree[Token]] = {}
        for definition in trees(tree.children):
            token = token_of(definition.children[0])
            if token[1:] in definitions:
                raise self._fault(token, f"the function {token} is defined twice")
            definitions[str(token[1:])] = definition
        self._types = TypeReader(self._symbols(definitions.values()), self._code, self._fault)
        for name, definition in definitions.items():
            self._signatures[name] = self._signature(definition.children[1:])
        made: dict[str, Function] = {}
        for name in self._order(definitions):
            made[name] = function = self._function(definitions[name].children[1:], definitions[name], name)
            self._signatures[name] = function.type
        functions = {name: made[name] for name in definitions} | self._branches
        for name in self._stand_ins:
            functions.pop(name, None)
        facts = self._facts
        if facts.output_names and "main" in functions:
            kind = functions["main"].body.type
            count = len(kind.fields) - len(functions["main"].defines) if isinstance(kind, TupleType) else 1
            if len(facts.output_names) != count:
                raise self._fault(tree, f"main has {count} results, but {len(facts.output_names)} names for them")
        states = tuple(ir.State(name, output) for name, output in facts.states.items())
        module = IRModule(
            functions, facts.output_names, facts.quantization, facts.source, states=states, containers=facts.containers
        )
        for fault in state_faults(module):
            raise self._fault(tree, fault)
        return module

    def _symbols(self, definitions: Iterable[Tree[Token]]) -> dict[str, Symbol]:
        """Return the symbols with bounds in functions, or original names in comments, by their names in the text."""
        found: dict[str, Symbol] = {}
        for definition in definitions:
            for part in trees(definition.children):
                if part.data != "attribute" or part.children[0] != BOUNDS:
                    continue
                text = self._value(part.children[1])
                try:
                    stated = read_bounds(text if isinstance(text, str) else repr(text))
                except ValueError as error:
                    raise self._fault(part, str(error)) from None
                for name, symbol in stated.items():
                    if found.setdefault(name, symbol) != symbol:
                        raise self._fault(part, f"the bounds of {name} are given twice, and differ")
        for name, own in self._facts.symbols.items():
            found[name] = replace(found.get(name, Symbol(name)), name=own)
        return found

    def _order(self, definitions: Mapping[str, Tree[Token]]) -> list[str]:
        """Return functions in an order in which those without a declared type precede their callers."""
        order: dict[str, None] = {}
        for first in definitions:
            pending = [(first, iter(self._untyped(definitions[first])))]
            seen = {first}
            while pending:
                name, callees = pending[-1]
                following = next((item for item in callees if item not in seen and item not in order), None)
                if following is None:
                    order.setdefault(name)
                    pending.pop()
                else:
                    seen.add(following)
                    pending.append((following, iter(self._untyped(definitions[following]))))
        return list(order)

    def _untyped(self, definition: Tree[Token]) -> list[str]:
        if all(self._signatures.values()):
            return []
        tokens = definition.scan_values(lambda item: isinstance(item, Token) and item.type == "GLOBAL")
        names = dict.fromkeys(str(token)[1:] for token in tokens)
        return [name for name in names if self._signatures.get(name, True) is None]

    def _fault(self, node: Node, cause: str, help_text: str | None = None) -> MlfcError:
        return _fault_at(self._source, node, cause, help_text)

    @contextmanager
    def _checked(self, node: Node) -> Iterator[None]:
        """Point errors of the type rules at `node`."""
        try:
            yield
        except TypeCheckError as error:
            raise self._fault(node, error.cause, error.next_step) from None

    def _signature(self, parts: Sequence[Node]) -> ir.FuncType | None:
        """Return the type of a function if it is completely declared, for calls from other functions."""
        params = [part for part in trees(parts) if part.data == "parameter"]
        result = result_type(parts)
        if result is None or any(len(param.children) < 2 for param in params):
            return None
        if isinstance(result, Tree) and any(True for _ in result.find_data("any")):
            return None
        named = [part for part in trees(parts) if part.data == "attribute" and part.children[0] == "defines"]
        hidden = sum(len(self._defined(part, self._value(part.children[1]))) for part in named[:1])
        kind = ir.visible(self._types.type(result), hidden)
        return ir.FuncType(tuple(self._types.type(param.children[1]) for param in params), kind)

    def _defined(self, place: Node, value: Any) -> tuple[Symbol, ...]:
        """Return the symbols in the attribute ``defines``."""
        names = value if isinstance(value, tuple) else (value,)
        symbols = [name.symbol if isinstance(name, Dim) else None for name in names]
        if None in symbols:
            raise self._fault(place, "expected the names of symbols, such as defines=[n]")
        return tuple(symbol for symbol in symbols if symbol)

    def _function(self, parts: Sequence[Node], place: Node, name: str | None = None) -> Function:
        params: dict[str, Var] = {}
        names: set[str] = set()
        attrs: dict[str, Any] = {}
        for part in trees(parts):
            if part.data == "parameter":
                title = str(part.children[0])
                var = self._parameter(part)
                if title in params or var.name in names:
                    raise self._fault(part, f"the parameter {title} is given twice")
                params[title] = var
                names.add(var.name)
            elif part.data == "attribute":
                self._add_attribute(attrs, part)
                if part.children[0] == BOUNDS and name is None:
                    raise self._fault(part, "only functions of the module give bounds of symbols")
                if part.children[0] == "defines":
                    attrs["defines"] = self._defined(part, attrs["defines"])
        attrs.pop(BOUNDS, None)
        body = self._body(trees(parts)[-1], dict(params))
        declared = result_type(parts)
        if declared is not None and not self._types.matches(self._types.type(declared), body.type):
            raise self._fault(declared, f"the function is declared to return this, but its body is of {body.type}")
        function = Function(tuple(params.values()), body, attrs, self._origin(place).span)
        for fault in definition_faults(function):
            raise self._fault(place if declared is None else declared, fault)
        return function

    def _parameter(self, part: Tree[Token]) -> Var:
        token = token_of(part.children[0])
        if len(part.children) < 2:
            raise self._fault(token, f"the parameter {token} needs a type, such as {token}: Tensor[(1, 3), float32]")
        origin = self._origin(part)
        name = str(token[1:]) if origin.name is None else origin.name
        return Var(name, self._types.type(part.children[1]), origin.span)

    def _origin(self, node: Node) -> Origin:
        """Return the origin in the comment that follows `node`."""
        end = node.end_pos if isinstance(node, Token) else getattr(node.meta, "end_pos", None)
        return self._origins.get(end or 0, _NOWHERE)

    def _body(self, body: Tree[Token], scope: Scope) -> Expr:
        *statements, last = body.children
        for statement in trees(statements):
            name = token_of(statement.children[0])
            if statement.data == "let" and len(statement.children) == 3:
                value = self._declared(statement, scope)
            else:
                value = self._expression(statement.children[-1], scope)
            # a branch may reuse numbers that are bound outside
            if dict.__contains__(scope, name) and statement.data == "binding":
                raise self._fault(name, f"{name} is bound twice")
            scope[str(name)] = value
        return self._expression(last, scope)

    def _declared(self, statement: Tree[Token], scope: Scope) -> Expr:
        """Return the value of a ``let`` with a type, whose symbols may be defined by the result of a function."""
        name, place, node = statement.children
        declared = self._types.type(place)
        if tree_of(node).data == "if":
            return replace(self._if(tree_of(node), scope, declared), span=self._origin(node).span)
        value = self._expression(node, scope)
        if self._types.matches(declared, value.type):
            return value
        if isinstance(value, ir.Call) and isinstance(value.op, (Function, GlobalVar)):
            with self._checked(place):
                return ir.call_function(value.op, value.args, type=declared, span=value.span)
        raise self._fault(place, f"{name} is declared with this type, but its value is of {value.type}")

    def _expression(self, node: Node, scope: Scope) -> Expr:
        tree = tree_of(node)
        if tree.data == "local":
            name = token_of(tree.children[0])
            if name not in scope:
                raise self._fault(name, f"the variable {name} is not defined here")
            return scope[name]
        if tree.data == "constant":
            return self._constant(tree)
        if tree.data == "function":
            # a nested function only sees its own parameters: groups of fused operators are closed
            return self._function(tree.children, tree)
        if tree.data == "operator":
            raise self._fault(tree, f"the operator {tree.children[0]} needs arguments in parentheses")
        origin = self._origin(tree)
        if tree.data in _COMPOSED:
            made = self._composed(tree, scope)
            return made if origin is _NOWHERE else replace(made, span=origin.span)
        return Constant(self._exact(tree, self._scalar(tree), origin.exact), origin.name, origin.span)

    def _composed(self, tree: Tree[Token], scope: Scope) -> Expr:
        if tree.data == "chain":
            return self._chain(tree.children, scope)
        if tree.data == "applied":
            return self._applied(tree, scope)
        if tree.data == "global_function":
            return self._global(token_of(tree.children[0]))
        if tree.data == "if":
            return self._if(tree, scope, None)
        made = ir.Tuple(tuple(self._expression(child, scope) for child in tree.children))
        size, depth = self._tuple_size(made.type)
        if size > _MAX_FIELDS or depth > MAX_NESTING:
            limits = f"{_MAX_FIELDS:,} fields or {MAX_NESTING} levels"
            raise self._fault(tree, f"this tuple and the tuples in it have more than {limits}")
        return made

    def _tuple_size(self, kind: ir.Type) -> tuple[int, int]:
        """Return the number of types in a type, and its depth: a few nested tuples can exceed any memory."""
        if not isinstance(kind, TupleType):
            return 1, 0
        if id(kind) not in self._sizes:
            sizes = [self._tuple_size(field) for field in kind.fields]
            total, depth = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
            # keeps the type alive, so that its id stays unique
            self._sizes[id(kind)] = kind, (total, depth)
        return self._sizes[id(kind)][1]

    def _chain(self, parts: Sequence[Node], scope: Scope, precedence: int = 0) -> Expr:
        """Parse operands separated by operators of this precedence or higher."""
        if len(parts) == 1:
            return self._expression(parts[0], scope)
        operators = [index for index in range(1, len(parts), 2) if parts[index] in _PRECEDENCE[precedence]]
        ranges = pairwise([-1, *operators, len(parts)])
        operands = (self._chain(parts[before + 1 : end], scope, precedence + 1) for before, end in ranges)
        result = next(operands)
        for index, operand in zip(operators, operands, strict=True):
            with self._checked(parts[index]):
                result = ir.call(_INFIX[str(parts[index])], [result, operand])
        origin = self._origin(parts[-1])
        return replace(result, span=origin.span) if operators and origin is not _NOWHERE else result

    def _applied(self, tree: Tree[Token], scope: Scope) -> Expr:
        head, *suffixes = tree.children
        result = None if tree_of(head).data == "operator" else self._expression(head, scope)
        for suffix in suffixes:
            if isinstance(suffix, Token):
                if result is None:
                    raise self._fault(suffix, "an operator has no fields")
                with self._checked(suffix):
                    result = ir.TupleGetItem(result, int(suffix[1:]))
                    _ = result.type
            elif result is None:
                result = self._operator_call(token_of(tree_of(head).children[0]), suffix, scope)
            else:
                result = self._function_call(result, suffix, scope, tree)
        assert result is not None
        return result

    def _operator_call(self, name: Token, arguments: Tree[Token], scope: Scope) -> Expr:
        if name not in OPERATORS:
            near = " or ".join(OPERATORS.near(name))
            step = f"did you mean {near}?" if near else None
            # custom operators are named after ONNX operators
            step = CUSTOM_OPERATOR if name.rpartition(".")[2][:1].isupper() else step
            raise self._fault(name, f"operator `{name}` not found", step)
        args, attrs = self._arguments(arguments, scope)
        # TVM prints this key for operators called without their own constructor
        attrs.pop("attrs_type_key", None)
        self._add_exact(OPERATORS.get(name).attrs, attrs, arguments)
        with self._checked(name):
            return ir.call(str(name), args, attrs)

    def _add_exact(self, known: Sequence[Attr], attrs: dict[str, Any], arguments: Tree[Token]) -> None:
        """Replace the attributes printed for TVM by those in the comment that follows a call."""
        exact = self._origin(arguments).exact
        if exact is None:
            return
        by_name = {attr.name: attr.in_tvm for attr in known}
        for name, value in exact.items() if isinstance(exact, dict) else ((None, exact),):
            in_tvm = by_name.get(str(name))
            if in_tvm is None:
                raise self._fault(arguments, f"the comment behind it gives {name or value}, which is not an attribute")
            printed = attrs.get(str(name))
            if not isinstance(value, str | bool) or printed != (in_tvm.get(str(value)) if in_tvm else None):
                cause = f"the comment behind it says that {name} is {value}, which does not go with {printed}"
                raise self._fault(arguments, cause, _CHANGE_BOTH)
            attrs[str(name)] = value

    def _function_call(self, callee: Expr, arguments: Tree[Token], scope: Scope, place: Node) -> Expr:
        if not isinstance(callee, (Function, GlobalVar)):
            raise self._fault(place, f"a value of {callee.type} cannot be called")
        args = self._function_arguments(arguments, scope)
        exact = self._origin(arguments).exact
        if not isinstance(callee, GlobalVar) or not isinstance(exact, dict):
            with self._checked(place):
                return ir.call_function(callee, args)
        # the function represents an operator that TVM does not have
        name = exact.pop("op", None)
        if not isinstance(name, str) or name not in OPERATORS or OPERATORS.get(name).in_tvm is None:
            raise self._fault(place, f"the comment behind it names {name}, which is not an operator for a function")
        self._stand_ins.add(callee.name)
        with self._checked(place):
            return ir.call(name, args, exact)

    def _function_arguments(self, tree: Tree[Token], scope: Scope) -> list[Expr]:
        args, attrs = self._arguments(tree, scope)
        if attrs:
            raise self._fault(tree, f"the call of a function takes no attributes ({', '.join(attrs)})")
        return args

    def _arguments(self, tree: Tree[Token], scope: Scope) -> tuple[list[Expr], dict[str, Any]]:
        args: list[Expr] = []
        attrs: dict[str, Any] = {}
        for child in tree.children:
            if isinstance(child, Tree) and child.data == "attribute":
                self._add_attribute(attrs, child)
            elif attrs:
                raise self._fault(child, "arguments come before attributes")
            else:
                args.append(self._expression(child, scope))
        return args, attrs

    def _if(self, tree: Tree[Token], scope: Scope, declared: ir.Type | None) -> ir.If:
        condition = self._expression(tree.children[0], scope)
        bodies = trees(tree.children[1:])
        branches = [
            (self._global(call[0]), self._function_arguments(call[1], scope))
            for call in map(called_alone, bodies)
            if call is not None
        ]
        if len(branches) != len(bodies) or not same_arguments(*(args for _, args in branches)):
            branches = self._lifted(bodies, scope)
        (then, args), (otherwise, _) = branches
        with self._checked(tree):
            return ir.if_else(condition, then, otherwise, args, type=declared)

    def _lifted(self, bodies: Sequence[Tree[Token]], scope: Scope) -> list[tuple[GlobalVar, list[Expr]]]:
        """Return functions of the module with the bodies of two branches, and the values that they capture."""
        scopes = [BranchScope(scope) for _ in bodies]
        results = [self._body(body, branch) for body, branch in zip(bodies, scopes, strict=True)]
        names = dict.fromkeys(name for branch in scopes for name in branch.params)
        found = []
        for role, branch, body in zip(("then", "else"), scopes, results, strict=True):
            numbered = (f"{role}_{number}" for number in count(len(self._branches) // 2))
            title = next(title for title in numbered if title not in self._signatures)
            function = Function(tuple(branch.param(name) for name in names), body)
            self._branches[title], self._signatures[title] = function, function.type
            found.append((GlobalVar(title, function.type), [scope[name] for name in names]))
        return found

    def _global(self, token: Token) -> GlobalVar:
        name = str(token[1:])
        if name not in self._signatures:
            raise self._fault(token, f"the function {token} is not defined")
        signature = self._signatures[name]
        if signature is None:
            raise self._fault(token, f"{token} must be defined with the types of all parameters and of its result")
        return GlobalVar(name, signature)

    def _constant(self, tree: Tree[Token]) -> Constant:
        kind, index = token_of(tree.children[0]), token_of(tree.children[1])
        if kind != "relay.Constant" or not index.isdecimal():
            raise self._fault(tree, "only meta[relay.Constant][i] is allowed here")
        if len(index) > 9 or int(index) >= len(self._constants):
            known = len(self._constants)
            step = None if known else f"the text must end with a {SECTION} section that holds the tensors"
            raise self._fault(tree, f"the metadata section has no constant {index[:12]}; it has {known}", step)
        place, origin = int(index), self._origin(tree)
        if origin.exact is not None:
            place = self._index_of_exact(tree, self._constants[place].data, origin.exact)
        constant = self._constants[place]
        if (constant.name, constant.span) != (origin.name, origin.span):
            constant = self._constants[place] = Constant(constant.data, origin.name, origin.span)
        return constant

    def _index_of_exact(self, tree: Tree[Token], shown: npt.NDArray[Any], exact: float | dict[str, Any]) -> int:
        """Return the index of the constant that is printed as float32."""
        index = exact.get("constant") if isinstance(exact, dict) else None
        if type(index) is not int or not 0 <= index < len(self._constants):
            raise self._fault(tree, f"the comment behind it gives {exact}, which is not one of the constants")
        self._exact(tree, shown, self._constants[index].data)
        return index

    def _exact(self, tree: Tree[Token], shown: npt.NDArray[Any], exact: Any) -> npt.NDArray[Any]:
        """Return the float64 numbers that are printed as float32."""
        if exact is None:
            return shown
        if isinstance(exact, dict):
            return self._constants[self._index_of_exact(tree, shown, exact)].data
        found: npt.NDArray[Any] = np.asarray(exact, np.float64)
        is_wider = np.result_type(exact) == np.float64 and shown.dtype == np.float32
        with np.errstate(over="ignore"):
            matches = is_wider and np.array_equal(found.astype(np.float32), shown, equal_nan=True)
        if not matches:
            raise self._fault(tree, "the comment behind it gives other numbers", _CHANGE_BOTH)
        return found

    def _scalar(self, tree: Tree[Token]) -> npt.NDArray[Any]:
        if tree.data in ("true", "false"):
            return ir.const(tree.data == "true").data
        number = number_value(str(tree.children[-1]), negative=len(tree.children) == 2)
        if number is None:
            step = "floats end in f, as in 0.5f; integers fit their width"
            raise self._fault(tree, "this is not a number of its dtype", step)
        return number

    def _add_attribute(self, attrs: dict[str, Any], part: Tree[Token]) -> None:
        name, value = token_of(part.children[0]), part.children[1]
        if name in attrs:
            raise self._fault(name, f"the attribute {name} is given twice")
        attrs[str(name)] = self._value(value)

    def _value(self, node: Node) -> Any:
        tree = tree_of(node)
        if tree.data == "string":
            return string_value(token_of(tree.children[0]))
        if tree.data == "none":
            return None
        if tree.data == "integers":
            return self._integers(token_of(tree.children[0]))
        if tree.data == "list":
            return tuple(self._value(child) for child in tree.children)
        if tree.data == "constant":
            raise self._fault(tree, "an attribute cannot be a tensor")
        if tree.data in EXTENTS:
            return self._types.extent(tree)
        number = self._scalar(tree)
        if number.dtype.kind == "f":
            # attributes are doubles regardless of their suffix: parsing the digits again keeps full precision
            digits = "".join(map(str, tree.children)).partition("f")[0]
            return float(digits) if "in" not in digits else float(number)
        return number.item()

    def _integers(self, token: Token) -> tuple[int, ...]:
        values = integer_values(token)
        if values is not None:
            return values
        start = (token.start_pos or 0) + 1
        for element in token[1:-1].split(","):
            if not integer_values(f"[{element}]"):
                start += len(element) - len(element.lstrip())
                raise self._source.fault("expected an integer of 64 bits", start, len(element.strip()))
            start += len(element) + 1
        raise AssertionError(token)
