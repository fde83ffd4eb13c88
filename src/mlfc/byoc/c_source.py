"""C files of users as external code generators: one function per dtype, called with pointers and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlfc.byoc.generator import Composite, Generator, Subgraph
from mlfc.byoc.pattern import op
from mlfc.errors import OptionError, TypeCheckError
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.support import dtypes, user_files
from mlfc.support.dims import Dim
from mlfc.support.text import shortest_digits
from mlfc.tir.ir import Buffer, External

_C_TYPES = {
    **{dtype: f"{dtype}_t" for dtype in dtypes.INTEGERS},
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
}  # fmt: skip
_OMITTED = "const void *"
_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE
)
_HEAD = re.compile(r"(?<![\w*])((?:[A-Za-z_]\w*[\s*]+)+)([A-Za-z_]\w*)\s*\(([^()]*)\)\s*([{;])")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*(?:include[ \t]*"([^"\n]+)"|pragma[ \t]+once\b)[^\n]*', re.MULTILINE)
_SPECIFIERS = ("static", "inline", "extern", "restrict", "__restrict", "__restrict__")
_QUIET = '#if defined(__GNUC__)\n#pragma GCC diagnostic ignored "-Wunused-function"\n#endif\n'


@dataclass(frozen=True)
class CSource:
    """A C file that computes an operator, for hosts and boards.

    A function receives pointers to the inputs and the result, then a ``void *`` to scratch memory if `scratch` is set,
    then `arguments`; it returns an ``int``, 0 for success. Omitted optional inputs are NULL. A function of an operator
    with several results receives a pointer to each. File-level functions become static. Files that it includes with
    quotes are inserted, relative to its folder.

    Attributes
    ----------
    path : path
        The file, relative to the Python file of ``--op``.
    functions : mapping of str to str
        The function for each dtype of the first input.
    arguments : callable ``(*types, **attributes) -> sequence of numbers``, optional
        Further arguments: an int or a dimension is an ``int64_t``, a float a ``float``. Default: the number of elements
        of the first result, then the attributes in declared order.
    scratch : int, or callable ``(*types, **attributes) -> int``
        Bytes of memory that the function needs while it runs.
    """

    path: str | PathLike[str]
    functions: Mapping[str, str]
    arguments: Callable[..., Sequence[Any]] | None = None
    scratch: int | Callable[..., Any] = 0


class OperatorRules(Protocol):
    """The rules of an operator."""

    def inputs(self) -> tuple[int, int | None]:
        """Return the least and the largest number of inputs; None if unbounded."""
        ...

    def results(self, types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        """Return the types of the results."""
        ...

    def run(self, what: str, function: Callable[..., Any], args: Sequence[Any], attrs: Attrs) -> Any:
        """Return the result of a function with the attributes that it names; raise TypeCheckError if it fails."""
        ...


def check_dtypes(title: str, source: CSource, types: Sequence[TensorType]) -> None:
    """Raise TypeCheckError if a file has no function for types, those of the inputs first, or C has no type for one."""
    if types[0].dtype not in source.functions:
        cause = f"{title} has no C function for {types[0].dtype}, only for {', '.join(source.functions)}"
        raise TypeCheckError(cause, next_step="Add a function, or put a Cast before the node")
    if odd := [kind.dtype for kind in types if kind.dtype not in _C_TYPES]:
        raise TypeCheckError(f"{title}: C has no type for {odd[0]}")


def packed(results: Sequence[TensorType]) -> tuple[TensorType, list[Any]]:
    """Return the type of a tensor that contains the results of an operator one after another, and where each starts."""
    unit = max((kind.dtype for kind in results), key=dtypes.nbytes)
    counts = (-(-kind.nbytes // dtypes.nbytes(unit)) for kind in results)
    *starts, size = accumulate(counts, initial=0)
    return TensorType((size,), unit), starts


def c_generator(operators: tuple[str, ...], key: str, source: CSource, rules: OperatorRules) -> Generator:
    """Return the generator `key` of Relay operators whose calls run a C file, and return its result, or all `packed`.

    Raises OptionError if the file cannot be read, or lacks a function.
    """
    beside = user_files.loading()
    path = Path(source.path) if beside is None else beside.parent / source.path
    text, functions = _with_internal_linkage(_with_includes(path, set()))
    for dtype, name in source.functions.items():
        if name not in functions:
            cause = f"the file does not define the function '{name}' for {dtype}"
            raise OptionError(cause, place=str(path), next_step=f"It defines: {', '.join(functions) or 'none'}")

    def generate(part: Subgraph) -> External:
        name = source.functions[part.name]
        types, values = _arguments(part, source, rules)
        given = functions[name]
        pairs = zip(("int", *types), given, strict=False)
        if len(given) != len(types) + 1 or any(a != b and not (a == _OMITTED and b[-1] == "*") for a, b in pairs):
            found = f"{given[0]} {name}({', '.join(given[1:])})"
            raise OptionError(
                f"expected the function int {name}({', '.join(types)}), got {found}",
                place=f"{path}, node '{', '.join(part.function.body.span.nodes)}'",
                next_step="Change it, or CSource(arguments=...)",
            )
        call = f"if ({name}({', '.join(values)}) != 0) {{\n  return -1;\n}}"
        return External(key, call, (_QUIET + text.strip("\n"),))

    def is_of(dtype: str) -> Callable[[relay.Call], bool]:
        return lambda call: relay.tensor_type((*call.args, call)[0]).dtype == dtype

    table = tuple(Composite(dtype, op(operators, where=is_of(dtype))) for dtype in source.functions)
    return Generator(key, table, generate, always=True, takes_open=True)


def _arguments(part: Subgraph, source: CSource, rules: OperatorRules) -> tuple[list[str], list[str]]:
    """Return the C types and the values of the arguments of a call."""
    call = part.function.body
    assert isinstance(call, relay.Call)
    kinds = [relay.tensor_type(arg) for arg in call.args]
    attrs = {name: value for name, value in call.attrs.items() if name != "output"}
    buffers: dict[relay.Expr, Buffer] = dict(zip(part.function.params, part.inputs, strict=True))
    found: list[tuple[str, str]] = []
    for index, (arg, kind) in enumerate(zip(call.args, kinds, strict=True)):
        buffer = part.constant(f"constant{index}", arg.data) if isinstance(arg, relay.Constant) else buffers[arg]
        found.append((f"const {_C_TYPES[kind.dtype]} *", f"${{{buffer.name}}}"))
    most = rules.inputs()[1]
    found += [(_OMITTED, "NULL")] * (0 if most is None else most - len(kinds))
    made = rules.results(kinds, call.attrs)
    for index, (kind, start) in enumerate(zip(made, packed(made)[1], strict=True)):
        if isinstance(start, Dim):
            part.extent(f"start{index}", start)
        place = f"${{output}} + {f'${{start{index}}}' if isinstance(start, Dim) else start}" if index else "${output}"
        c_type = f"{_C_TYPES[kind.dtype]} *"
        found.append((c_type, f"({c_type})(void *)({place})" if index else place))
    if source.scratch:
        nbytes = rules.run("scratch", source.scratch, kinds, attrs) if callable(source.scratch) else source.scratch
        if not isinstance(nbytes, Dim) and not (isinstance(nbytes, int) and nbytes >= 0):
            raise OptionError(f"expected a number of bytes as scratch, got {nbytes!r}", place=call.span.place)
        found.append(("void *", f"${{{part.scratch('scratch', nbytes).name}}}"))
    numbers: Sequence[Any] = (made[0].size, *attrs.values())
    if source.arguments is not None:
        numbers = rules.run("arguments", source.arguments, kinds, attrs)
    for value in numbers:
        if isinstance(value, Dim):
            part.extent(f"number{len(found)}", value)
            found.append(("int64_t", f"${{number{len(found)}}}"))
        elif isinstance(value, (int, np.integer)):
            found.append(("int64_t", str(int(value))))
        elif isinstance(value, float) and math.isfinite(value):
            digits = shortest_digits(np.float32(value))
            found.append(("float", f"{digits}{'' if any(mark in digits for mark in '.e') else '.0'}f"))
        else:
            cause = f"expected integers and finite floats as arguments of a C function, got {value!r}"
            raise OptionError(cause, place=call.span.place, next_step="Set CSource(arguments=...)")
    return [kind for kind, _ in found], [value for _, value in found]


def _with_includes(path: Path, seen: set[Path]) -> str:
    """Return the text of a C file with the files that it includes, each once; `seen` are those already inserted."""
    seen.add(path.resolve())

    def inserted(found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        other = path.parent / found[1]
        if not other.is_file():  # a header of the compiler or of mlfc
            return found[0]
        return "" if other.resolve() in seen else _with_includes(other, seen)

    return _INCLUDE.sub(inserted, user_files.read_text(path))


def _with_internal_linkage(text: str) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return C text with static functions, and the types of their results and parameters by name.

    Several files of a program may then contain the same text.
    """
    code = _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    depth, outside = 0, []
    for char in code:
        depth -= char == "}"
        outside.append(char if depth <= 0 or char == "\n" else " ")
        depth += char == "{"
    heads = list(_HEAD.finditer("".join(outside)))
    defined = {match[2]: match for match in heads if match[4] == "{"}
    for match in reversed(heads):
        if match[2] in defined and "static" not in match[1].split():
            text = f"{text[: match.start()]}static {text[match.start() :]}"
    found = {}
    for name, match in defined.items():
        params = [] if match[3].strip() in ("", "void") else match[3].split(",")
        found[name] = tuple(map(_type_of, (match[1], *params)))
    return text, found


def _type_of(declaration: str) -> str:
    """Return the type in the declaration of a parameter or result, without names and specifiers."""
    text = re.sub(r"(\w+)\s*\[[^\]]*\]", r"*\1", declaration)
    words = [word for word in re.findall(r"\w+|\*", text) if word not in _SPECIFIERS]
    is_named = words[-1] != "*" and len([word for word in words if word not in ("const", "*")]) > 1
    return " ".join(words[:-1] if is_named else words)
