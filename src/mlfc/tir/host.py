"""The IR of host functions, which check arguments and call or launch kernels, with the types of C interfaces.

Unlike `tir.ir`, it follows pointers to structs whose layout other programs define. Integers convert as in C, and ``&``
and ``|`` between expressions are C's ``&&`` and ``||``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from mlfc.support.nodes import node

# types ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """A C type."""

    name: str = ""  # name in C; empty for pointers
    bits: int = 0  # of an integer; 1 for the result of a comparison
    signed: bool = True
    to: Type | None = None  # pointee type
    fields: tuple[tuple[str, Type], ...] = ()  # of a struct or union
    is_union: bool = False
    is_const: bool = False
    length: int = 0  # of an array in a struct, with `to` for its elements

    def declared(self, name: str = "") -> str:
        """Return the declaration of `name`, or the type alone."""
        const = "const " if self.is_const else ""
        if self.to is not None and self.length:
            return self.to.declared(f"{name}[{self.length}]")
        if self.to is not None:
            return self.to.declared(f"*{const}{name}")
        return f"{const}{self.name} {name}".rstrip()

    def field(self, name: str) -> Type:
        """Return the type of a field of this struct; raise KeyError for an unknown one."""
        return dict(self.fields)[name]


def const(kind: Type) -> Type:
    """Return a type that cannot be assigned to."""
    return replace(kind, is_const=True)


def pointer(to: Type) -> Type:
    """Return the type of pointers to a type."""
    return Type(to=to)


def array(of: Type, length: int) -> Type:
    """Return the type of an array that is a field of a struct."""
    return Type(to=of, length=length)


def struct(name: str, *, is_union: bool = False, **fields: Type) -> Type:
    """Return a struct with these fields, in this order."""
    return Type(name, fields=tuple(fields.items()), is_union=is_union)


VOID, BOOL, CHAR, INT = Type("void"), Type("int", 1), Type("char", 8), Type("int", 32)
INT32, INT64 = Type("int32_t", 32), Type("int64_t", 64)
UINT8, UINT16, UINT64 = (Type(f"uint{bits}_t", bits, signed=False) for bits in (8, 16, 64))
# these are not fields of any struct, so they may be wider than the machine's types
SIZE, UINTPTR = Type("size_t", 64, signed=False), Type("uintptr_t", 64, signed=False)


# expressions ------------------------------------------------------------------------------------------------

Operand: TypeAlias = "Expr | int | str"


def _operator(op: str) -> Callable[[Expr, Operand], Expr]:
    def apply(a: Expr, other: Operand) -> Expr:
        b = expr(other)
        return Operation(BOOL if op in COMPARISONS | CONNECTIVES else common(a.type, b.type), op, a, b)

    return apply


@node(frozen=True, eq=False)
class Expr:
    """A typed expression; Python operators build larger ones."""

    type: Type

    def __getitem__(self, key: Operand) -> Expr:
        """Return a field of a struct or of a pointer's target, or an element of an array."""
        target = self.type.to
        if isinstance(key, str):
            return Field((target or self.type).field(key), self, key)
        assert target is not None, "only pointers have elements"
        return Element(target, self, expr(key))

    __add__ = _operator("+")
    __sub__ = _operator("-")
    __mul__ = _operator("*")
    __floordiv__ = _operator("/")
    __mod__ = _operator("%")
    __lt__ = _operator("<")
    __gt__ = _operator(">")
    __ge__ = _operator(">=")
    __and__ = _operator("&&")
    __or__ = _operator("||")

    def eq(self, other: Operand) -> Expr:
        """Return whether it equals another expression."""
        return _operator("==")(self, other)

    def ne(self, other: Operand) -> Expr:
        """Return whether it differs from another expression."""
        return _operator("!=")(self, other)

    def cast(self, kind: Type) -> Expr:
        """Return the expression as another type."""
        return Cast(kind, self)

    @property
    def address(self) -> Expr:
        """The address of a variable, field or element."""
        return Address(pointer(self.type), self)


@node(frozen=True, eq=False)
class Name(Expr):
    """A variable, by its name; with `is_array` the name is the address of its first element."""

    name: str
    is_array: bool = False


@node(frozen=True, eq=False)
class Global(Name):
    """A variable outside the function; a weak one is defined here unless another file defines it."""

    is_weak: bool = False


@node(frozen=True, eq=False)
class Number(Expr):
    """A number; `text` is its spelling in C, such as an enumerator, if not empty."""

    value: int
    text: str = ""


@node(frozen=True, eq=False)
class Text(Expr):
    """The address of a zero-terminated string."""

    text: str


@node(frozen=True, eq=False)
class Field(Expr):
    """A field of a struct or union, or of a pointer's target."""

    of: Expr
    name: str


@node(frozen=True, eq=False)
class Element(Expr):
    """An element of an array to which a pointer points."""

    of: Expr
    index: Expr


@node(frozen=True, eq=False)
class Address(Expr):
    """The address of a variable, field or element."""

    of: Expr


@node(frozen=True, eq=False)
class Operation(Expr):
    """A binary operator, as in C; `&&` and `||` use short-circuit evaluation."""

    op: str
    a: Expr
    b: Expr


@node(frozen=True, eq=False)
class Choice(Expr):
    """``then`` if ``condition`` is true, else ``otherwise``; evaluating both must be safe."""

    condition: Expr
    then: Expr
    otherwise: Expr


@node(frozen=True, eq=False)
class Cast(Expr):
    """The value converted to another integer or pointer type."""

    of: Expr


@node(frozen=True, eq=False)
class Call(Expr):
    """The result of a function call."""

    function: Function
    arguments: tuple[Expr, ...]
    pointer: Expr | None = None  # function pointer whose signature is `function`


COMPARISONS = frozenset({"==", "!=", "<", ">", ">="})
CONNECTIVES = frozenset({"&&", "||"})
NULL = Number(pointer(VOID), 0, "NULL")


def expr(value: Operand) -> Expr:
    """Convert a Python number to an int and a text to a string expression."""
    if isinstance(value, Expr):
        return value
    return Text(pointer(const(CHAR)), value) if isinstance(value, str) else Number(INT, value)


def operands(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression."""
    found: list[Expr] = []
    for value in vars(expr).values():
        found += value if isinstance(value, tuple) else (value,) if isinstance(value, Expr) else ()
    return tuple(found)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it."""
    yield expr
    for item in operands(expr):
        yield from walk(item)


def common(a: Type, b: Type) -> Type:
    """Return the type in which C computes with two integers, or the pointer type if one is a pointer."""
    if a.to is not None:
        return a
    wide = [INT if kind.bits < INT.bits else kind for kind in (a, b)]
    return max(wide, key=lambda kind: (kind.bits, not kind.signed))


# statements -------------------------------------------------------------------------------------------------


@node(frozen=True, eq=False)
class Declare:
    """A local variable, or an array of `count` elements."""

    var: Name
    value: Expr | None = None
    count: int = 0


@node(frozen=True, eq=False)
class Table:
    """A static array of structs or numbers; without rows, `count` writable zeros."""

    var: Name
    rows: tuple[Expr | tuple[Expr, ...], ...] = ()
    count: int = 0


@node(frozen=True, eq=False)
class Assign:
    """Assign a variable, field or element; `op` makes it a compound assignment such as ``+=``."""

    place: Expr
    value: Expr
    op: str = ""


@node(frozen=True, eq=False)
class Evaluate:
    """Call a function for its effect."""

    call: Call


@node(frozen=True, eq=False)
class If:
    """Run statements if a condition is true."""

    condition: Expr
    body: tuple[Stmt, ...]


@node(frozen=True, eq=False)
class For:
    """Declare a counter, and run statements while a condition is true; each iteration adds `step` (1 or -1)."""

    var: Name
    start: Expr
    condition: Expr
    step: int
    body: tuple[Stmt, ...]


@node(frozen=True, eq=False)
class DoWhile:
    """Run statements, and repeat them while a condition is true."""

    body: tuple[Stmt, ...]
    condition: Expr


@node(frozen=True, eq=False)
class Label:
    """A jump target in a function; `is_unlikely` if only errors jump to it."""

    name: str
    is_unlikely: bool = False


@node(frozen=True, eq=False)
class LabelPlace:
    """The position of a label between the statements of a function."""

    label: Label


@node(frozen=True, eq=False)
class Jump:
    """Continue at a label."""

    label: Label


@node(frozen=True, eq=False)
class Return:
    """Leave the function."""

    value: Expr


@node(frozen=True, eq=False)
class Unused:
    """Marks a parameter as intentionally unused."""

    var: Name


@node(frozen=True, eq=False)
class Comment:
    """A line for the reader of the generated code."""

    text: str


Stmt: TypeAlias = (
    "Declare | Table | Assign | Evaluate | If | For | DoWhile | LabelPlace | Jump | Return | Unused | Comment"
)


@node(frozen=True, eq=False)
class Function:
    """A C function, or a declaration if it has no body."""

    name: str
    result: Type
    parameters: tuple[Name, ...]
    body: tuple[Stmt, ...] | None = None
    is_static: bool = False  # local to the file: a printer may define it at its first call
    # in C a macro of this name; other printers call the function with the name in lower case if code is traced
    is_hook: bool = False
    comment: str = ""  # comment printed above it

    def __call__(self, *arguments: Operand) -> Call:
        """Return a call of the function."""
        return Call(self.result, self, tuple(map(expr, arguments)))

    def at(self, place: Expr, *arguments: Operand) -> Call:
        """Return a call through a function pointer with this signature."""
        return Call(self.result, self, tuple(map(expr, arguments)), place)


def declaration(name: str, result: Type, *parameters: Type) -> Function:
    """Return a function that another file defines."""
    return Function(name, result, tuple(Name(kind, "") for kind in parameters))


MEMMOVE = declaration("memmove", pointer(VOID), pointer(VOID), pointer(const(VOID)), SIZE)
"""C's function, which the LLVM printer supports."""


def names(**parameters: Type) -> tuple[Name, ...]:
    """Return parameters by name."""
    return tuple(Name(kind, name) for name, kind in parameters.items())


class Body:
    """Collects the statements of a function."""

    def __init__(self) -> None:
        self._blocks: list[list[Stmt]] = [[]]

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        """The collected statements."""
        return tuple(self._blocks[0])

    def add(self, *stmts: Stmt) -> None:
        """Append statements."""
        self._blocks[-1].extend(stmts)

    def declare(self, name: str, kind: Type, value: Operand | None = None) -> Name:
        """Declare a local variable."""
        var = Name(kind, name)
        self.add(Declare(var, None if value is None else expr(value)))
        return var

    def array(self, name: str, kind: Type, count: int) -> Name:
        """Declare a local array."""
        var = Name(pointer(kind), name, is_array=True)
        self.add(Declare(var, None, count))
        return var

    def table(self, name: str, kind: Type, rows: Sequence[Expr | tuple[Expr, ...]] = (), count: int = 0) -> Name:
        """Declare a static array."""
        var = Name(pointer(kind), name, is_array=True)
        self.add(Table(var, tuple(rows), count or len(rows)))
        return var

    def assign(self, place: Expr, value: Operand, op: str = "") -> None:
        """Set a variable, field or element."""
        self.add(Assign(place, expr(value), op))

    def evaluate(self, call: Call) -> None:
        """Call a function for its effect."""
        self.add(Evaluate(call))

    def jump(self, label: Label) -> None:
        """Continue at a label."""
        self.add(Jump(label))

    def place(self, label: Label) -> None:
        """Insert a label here."""
        self.add(LabelPlace(label))

    def returns(self, value: Operand) -> None:
        """Leave the function."""
        self.add(Return(expr(value)))

    def fails_where(self, condition: Expr) -> None:
        """Return -1 if a condition is true."""
        with self.where(condition):
            self.returns(-1)

    def requires(self, call: Call) -> None:
        """Return -1 unless a call returns 0."""
        self.fails_where(call.ne(0))

    @contextmanager
    def where(self, condition: Expr) -> Iterator[None]:
        """Run the statements added in the block if a condition is true."""
        with self._nested() as block:
            yield
        self.add(If(condition, tuple(block)))

    @contextmanager
    def loop(self, name: str, count: Operand) -> Iterator[Name]:
        """Run the statements added in the block for every number below `count`."""
        var = Name(INT, name)
        with self.counting(var, 0, var < count):
            yield var

    @contextmanager
    def counting(self, var: Name, start: Operand, condition: Expr, step: int = 1) -> Iterator[None]:
        """Run the statements added in the block while a condition is true."""
        with self._nested() as block:
            yield
        self.add(For(var, expr(start), condition, step, tuple(block)))

    @contextmanager
    def repeat_while(self, condition: Expr) -> Iterator[None]:
        """Run the statements added in the block, and repeat them while a condition is true."""
        with self._nested() as block:
            yield
        self.add(DoWhile(tuple(block), condition))

    @contextmanager
    def _nested(self) -> Iterator[list[Stmt]]:
        self._blocks.append([])
        yield self._blocks[-1]
        self._blocks.pop()


def expressions(stmts: Sequence[Stmt]) -> Iterator[Expr]:
    """Yield the expressions of statements, but those in tables, and everything below them."""
    for stmt in stmts:
        for value in vars(stmt).values():
            if isinstance(value, Expr):
                yield from walk(value)
        if isinstance(stmt, (If, For, DoWhile)):
            yield from expressions(stmt.body)


def own_functions(functions: Iterable[Function]) -> list[Function]:
    """Return the functions of the module's own that functions call, each behind those that it calls."""
    found: dict[Function, None] = {}
    for function in functions:
        for expr in expressions(function.body or ()):
            if not isinstance(expr, Call) or expr.function in found:
                continue
            if expr.function.is_static and expr.function.body and not expr.function.is_hook:
                found.update(dict.fromkeys((*own_functions([expr.function]), expr.function)))
    return list(found)
