"""C files of users as external code generators: one function per dtype, called with pointers and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mlfc.byoc.generator import Composite, Generator, Subgraph
from mlfc.byoc.pattern import op
from mlfc.errors import OptionError, TypeCheckError
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.support import dtypes, user_files
from mlfc.support.dims import Dim
from mlfc.support.text import shortest_digits
from mlfc.tir.ir import External

Results: TypeAlias = Callable[[Sequence[TensorType], Attrs], Sequence[TensorType]]
_C_TYPES = {
    **{dtype: f"{dtype}_t" for dtype in dtypes.INTEGERS},
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
}  # fmt: skip
_OMITTED = "const void *"
_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE
)
_HEAD = re.compile(r"(?<![\w*])((?:[A-Za-z_]\w*[\s*]+)+)([A-Za-z_]\w*)\s*\(([^()]*)\)\s*([{;])")
_SPECIFIERS = ("static", "inline", "extern", "restrict", "__restrict", "__restrict__")
_QUIET = '#if defined(__GNUC__)\n#pragma GCC diagnostic ignored "-Wunused-function"\n#endif\n'
_UNBOUNDED = 1 << 31


@dataclass(frozen=True)
class CSource:
    """A C file that computes an operator, for hosts and boards.

    A function receives pointers to the inputs and the result, then a ``void *`` to scratch memory if `scratch` is set,
    then `arguments`; it returns an ``int``, 0 for success. Omitted optional inputs are NULL. A function of an operator
    with several results receives a pointer to each, and runs once for each result that the model uses. File-level
    functions become static, and files that it includes with quotes are inserted if they are beside it.

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


def check_dtypes(title: str, source: CSource, types: Sequence[TensorType]) -> None:
    """Raise TypeCheckError if a file has no function for types, those of the inputs first, or C has no type for one."""
    if types[0].dtype not in source.functions:
        cause = f"{title} has no C function for {types[0].dtype}, only for {', '.join(source.functions)}"
        raise TypeCheckError(cause, next_step="Add a function, or put a Cast before the node")
    if odd := [kind.dtype for kind in types if kind.dtype not in _C_TYPES]:
        raise TypeCheckError(f"{title}: C has no type for {odd[0]}")


def c_generator(operator: str, key: str, source: CSource, results: Results, most_inputs: int) -> Generator:
    """Return the generator `key` of a Relay operator whose calls run a C file.

    `results` is the type rule; missing operands up to `most_inputs` are NULL. The attribute ``output`` of a call is the
    index of its result. Raises OptionError if the file cannot be read, or lacks a function.
    """
    beside = user_files.loading()
    path = Path(source.path) if beside is None else beside.parent / source.path
    text, functions = _with_internal_linkage(user_files.read_text(path))
    for dtype, name in source.functions.items():
        if name not in functions:
            cause = f"the file does not define the function '{name}' for {dtype}"
            raise OptionError(cause, place=str(path), next_step=f"It defines: {', '.join(functions) or 'none'}")

    def generate(part: Subgraph) -> External:
        name = source.functions[part.name]
        types, values = _arguments(part, source, results, most_inputs)
        given = functions[name]
        pairs = zip(("int", *types), given, strict=False)
        if len(given) != len(types) + 1 or any(a != b and not (a == _OMITTED and b[-1] == "*") for a, b in pairs):
            cause = (
                f"expected the function int {name}({', '.join(types)}), got {given[0]} {name}({', '.join(given[1:])})"
            )
            nodes = ", ".join(part.function.body.span.nodes)
            raise OptionError(cause, place=f"{path}, node '{nodes}'", next_step="Change it, or CSource(arguments=...)")
        return External(
            key, f"if ({name}({', '.join(values)}) != 0) {{\n  return -1;\n}}", (_QUIET + text.strip("\n"),)
        )

    def is_of(dtype: str) -> Callable[[relay.Call], bool]:
        return lambda call: relay.tensor_type((*call.args, call)[0]).dtype == dtype

    table = tuple(Composite(dtype, op(operator, where=is_of(dtype))) for dtype in source.functions)
    return Generator(key, table, generate, always=True, takes_open=True)


def _arguments(part: Subgraph, source: CSource, results: Results, most_inputs: int) -> tuple[list[str], list[str]]:
    """Return the C types and the values of the arguments of a call."""
    call = part.function.body
    assert isinstance(call, relay.Call)
    kinds = [relay.tensor_type(arg) for arg in call.args]
    attrs = {name: value for name, value in call.attrs.items() if name != "output"}
    names: dict[relay.Expr, str] = {
        param: buffer.name for param, buffer in zip(part.function.params, part.inputs, strict=True)
    }
    found: list[tuple[str, str]] = []
    for index, (arg, kind) in enumerate(zip(call.args, kinds, strict=True)):
        name = part.constant(f"constant{index}", arg.data).name if isinstance(arg, relay.Constant) else names[arg]
        found.append((f"const {_C_TYPES[kind.dtype]} *", f"${{{name}}}"))
    found += [(_OMITTED, "NULL")] * (most_inputs - len(kinds) if most_inputs < _UNBOUNDED else 0)
    made = results(kinds, call.attrs)
    for index, kind in enumerate(made):
        c_type, name = f"{_C_TYPES[kind.dtype]} *", "${output}"
        if index != call.attrs["output"]:
            name = f"({c_type})${{{part.scratch(f'unused{index}', kind.nbytes).name}}}"
        found.append((c_type, name))
    if source.scratch:
        nbytes = source.scratch(*kinds, **named(source.scratch, attrs)) if callable(source.scratch) else source.scratch
        found.append(("void *", f"${{{part.scratch('scratch', nbytes).name}}}"))
    numbers: Sequence[Any] = (made[0].size, *attrs.values())
    if source.arguments is not None:
        numbers = source.arguments(*kinds, **named(source.arguments, attrs))
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
            raise OptionError(cause, place=part.function.body.span.place, next_step="Set CSource(arguments=...)")
    types, values = zip(*found, strict=True)
    return list(types), list(values)


def named(function: Callable[..., Any], attrs: Attrs) -> dict[str, Any]:
    """Return the attributes that a function accepts as keywords."""
    import inspect

    params = inspect.signature(function).parameters.values()
    if any(param.kind is param.VAR_KEYWORD for param in params):
        return dict(attrs)
    names = {param.name for param in params if param.kind in (param.KEYWORD_ONLY, param.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in attrs.items() if name in names}


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
    return text, {name: tuple(map(_type_of, (match[1], *_params(match[3])))) for name, match in defined.items()}


def _params(text: str) -> list[str]:
    return [] if text.strip() in ("", "void") else text.split(",")


def _type_of(declaration: str) -> str:
    """Return the type in the declaration of a parameter or result, without names and specifiers."""
    text = re.sub(r"(\w+)\s*\[[^\]]*\]", r"*\1", declaration)
    words = [word for word in re.findall(r"\w+|\*", text) if word not in _SPECIFIERS]
    is_named = words[-1] != "*" and len([word for word in words if word not in ("const", "*")]) > 1
    return " ".join(words[:-1] if is_named else words)
