"""Constants and calls in the C that TVM generates. The text is searched for TVM's forms; nothing is executed.

TVM's AOT executor has no graph JSON and no parameter file. Its main function calls the operators in order, and the
constants are arrays: of the file, or fields of the struct ``global_const_workspace`` where pools are planned. The name
of an array lists the calls before its use: ``fused_nn_conv2d_constant_3``. All searches are linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlfc.archive.read.text_expressions import Array
from mlfc.errors import ArchiveError
from mlfc.runtime.executors.graph_json import GraphNode, TensorEntry

MAX_CODE = 64 << 20  # bytes; an element takes up to 16

_DTYPES = {f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES |= {"float": "float32", "double": "float64"}
_ATTRIBUTE = r"__attribute__\(\([^\n{}]{0,100}\)"
_ARRAY = re.compile(
    rf"^static const (\w+) {_ATTRIBUTE} (\w{{1,1024}})\[(\d{{1,9}})\] = \{{([^{{}};]*)\}};", re.MULTILINE
)
_FIELD = re.compile(rf"^ {{0,8}}(\w+) (\w{{1,1024}})\[(\d{{1,9}})\] {_ATTRIBUTE};", re.MULTILINE)
_FIELD_VALUE = re.compile(r"^ {0,8}\.(\w+) = \{([^{};]*)\}", re.MULTILINE)
_FUNCTION = re.compile(r"^TVM_DLL int32_t (\w{1,1024})\(([^()\n]*)\) \{$", re.MULTILINE)
_TENSOR = re.compile(r"void\* (\w+) = (?:TVMBackendAllocWorkspace\(|\(&\(\w+\[)[^;]*;")
_CALL = re.compile(r"if \((\w+)\((.*)\) != 0 ?\) ?(?:return -1;|\{)")
_POOL = re.compile(r"_workspace_\d{1,9}_var$")
_CALLED = re.compile(r"\b([A-Za-z_]\w*) ?\(")
_HARMLESS = {"if", "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace"}
# packed arguments: of a function, of main, and those that main passes
_PARAMETER = re.compile(r"void\* (\w+) = \(\(\(TVMValue\*\)args\)\[\d+\]\.v_handle\);")
_BUFFER = re.compile(r"void\* (\w+_buffer_var) = \(\(\(DLTensor\*\)\w+\)\[0\]\.data\);")
_PASSED = re.compile(r"\(\(\(DLTensor\*\)stack_array\)\[(\d{1,9})\]\.data\) = (\w+);")

_USE = re.compile(r"\*\)(\w+)\)\[")
_CONSTANT = re.compile(r"(\w+?)(?:_constant(?:_(\d{1,9}))?(?:_let)?)?")
_FLOAT = re.compile(r"(?<![\w.])(\d\.\d{6}e[+-]\d\d)f\b")
_OPERAND = r"(?:(\d{1,9}|[12]\d{9})|\(\(int32_t\*\)(\w+)\)\[[^][]{0,200}\])"
# (x << left) * multiplier + (1 << right + 31 - 1) >> right + 31, of numbers or of elements of arrays
_PRODUCT = re.compile(
    rf"\* \(?\(int64_t\){_OPERAND}\){{1,2}} \+ \(\(int64_t\)1 << \(\(int64_t\)\(\({_OPERAND} \+ 31\) - 1\)\)"
)
_LEFT_SHIFT = re.compile(rf"<< \(\(int64_t\){_OPERAND}\)")
_MOST_INDEXED = 1 << 15  # characters of a function whose indices are read; TVM's have some thousand


@dataclass(frozen=True)
class GeneratedFunction:
    """The C of a function; `arrays` are the constants of the module."""

    parameters: tuple[str, ...]
    body: str
    arrays: Mapping[str, Array]

    @cached_property
    def factors(self) -> list[Array] | None:
        """Multiplier, left and right shift of its fixed-point products; None without a product, or if they differ."""
        products = {*_PRODUCT.findall(self.body)}
        shifts = {*_LEFT_SHIFT.findall(self.body)} or {("0", "")}
        if len(products) != 1 or len(shifts) != 1:
            return None
        (*multiplier, right, right_name), left = *products, *shifts
        pairs = (multiplier, left, (right, right_name))
        if any(name and name not in self.arrays for _, name in pairs):
            return None
        return [np.array(int(number)) if number else self.arrays[name] for number, name in pairs]

    @cached_property
    def constants(self) -> list[tuple[str, str]]:
        """The arrays that it reads, except factors, in the order of the calls, and the calls before each."""
        names = {*_USE.findall(self.body)} & self.arrays.keys()
        names -= {name for pattern in (_PRODUCT, _LEFT_SHIFT) for item in pattern.findall(self.body) for name in item}
        found = [match for name in names if (match := _CONSTANT.fullmatch(name))]
        found.sort(key=lambda match: (len(match[1]), int(match[2] or -1)))
        return [(match[0], match[1]) for match in found]

    @cached_property
    def floats(self) -> set[np.float32]:
        """Its floats, which TVM prints with seven digits."""
        return {np.float32(digits) for digits in _FLOAT.findall(self.body)}

    def block(self, name: str) -> int:
        """Return n of an array in layout ``NC<n>n``: the factor between its indices and the data's; 0 if not proven."""
        patterns = rf"\*\){name}\)\[([^][]{{1,400}})\]", r"\bp0(?:_1\))?\[([^][]{1,400})\]"
        found = [{*re.findall(pattern, self.body)} for pattern in patterns if len(self.body) < _MOST_INDEXED]
        if [*map(len, found)] != [1, 1]:
            return 0
        strides, steps = (_strides(indices.pop()) for indices in found)
        factors = {divmod(strides[variable], steps[variable]) for variable in strides.keys() & steps.keys()}
        block, rest = factors.pop() if len(factors) == 1 else (0, 0)
        return 0 if rest else block


@dataclass(frozen=True)
class CompiledProgram:
    """The calls of a compiled model; `values` are those of arguments that are constants, by name."""

    nodes: tuple[GraphNode, ...]
    heads: tuple[int, ...]
    values: Mapping[str, Array]
    functions: Mapping[str, GeneratedFunction]
    entries: tuple[TensorEntry, ...] = ()  # none if shapes are unknown
    may_relay: bool = False  # whether weights may have another layout than in the text


def functions_in(text: str) -> dict[str, GeneratedFunction]:
    """Return the functions that TVM generated for a module; raise ArchiveError for code that is not TVM's."""
    types = {name: (dtype, size) for dtype, name, size in _FIELD.findall(text)}
    found = [(name, *types.get(name, ("", "")), body) for name, body in _FIELD_VALUE.findall(text)]
    found += [(name, dtype, size, body) for dtype, name, size, body in _ARRAY.findall(text)]
    if len({name for name, *_ in found}) != len(found):
        raise ArchiveError("its C has two arrays of the same name")
    arrays = {name: _array(name, dtype, int(size), body) for name, dtype, size, body in found if dtype in _DTYPES}
    functions: dict[str, GeneratedFunction] = {}
    end = 0
    for match in _FUNCTION.finditer(text):
        start, end = end, text.find("\n}", match.end())
        if end < 0 or match.start() < start or match[1] in functions:
            raise ArchiveError(f"its C has no end of {match[1]}, or has it twice")
        body = text[match.end() : end]
        parameters = _PARAMETER.findall(body) or [part.rpartition(" ")[2] for part in match[2].split(",")]
        functions[match[1]] = GeneratedFunction(tuple(parameters), body, arrays)
    return functions


def _array(name: str, dtype: str, size: int, body: str) -> Array:
    """Return the elements of an array: integers, or floats in hexadecimal or decimal digits."""
    kind = np.dtype(_DTYPES[dtype])
    is_float = kind.kind == "f"
    try:
        values = np.fromiter(
            map(_float if is_float else _integer, (match[0] for match in re.finditer(r"[^,\s]+", body))),
            np.float64 if is_float else np.uint64 if kind == np.uint64 else np.int64,
        )
    except (ValueError, OverflowError):
        raise ArchiveError(f"the array {name} of its C has an element that is not a number") from None
    if len(values) != size:
        raise ArchiveError(f"the array {name} of its C has {len(values):,} elements; {size:,} are declared")
    with np.errstate(over="ignore"):
        result = values.astype(kind)
    if not is_float and not np.array_equal(result, values):
        raise ArchiveError(f"the array {name} of its C has an element that {dtype} cannot represent")
    return result


def _integer(text: str) -> int:
    return int(text.rstrip("uUlL"), 0)


def _float(text: str) -> float:
    digits = text.rstrip("fF")
    return float.fromhex(digits) if "x" in digits else float(digits)


def program_in(functions: Mapping[str, GeneratedFunction], module: str, inputs: Collection[str]) -> CompiledProgram:
    """Return the calls of a module's main function; raise ArchiveError if it has other statements."""
    main = functions.get(f"tvmgen_{module}___tvm_main__")
    if main is None:
        raise ArchiveError("its C has no main function of TVM's form")
    nodes: list[GraphNode] = []
    current: dict[str, int] = {}  # the entry in each variable

    def add(name: str, function: str | None, reads: Collection[str], results: Collection[str]) -> None:
        start = nodes[-1].outputs.stop if nodes else 0
        outputs = range(start, start + len(results))
        nodes.append(GraphNode(name, function, tuple(current[read] for read in reads), outputs, False, {}))
        current.update(zip(results, outputs, strict=True))

    names = _BUFFER.findall(main.body) or [name for name in main.parameters if name.endswith("_buffer_var")]
    outputs = [name for name in names if name.removesuffix("_buffer_var") not in inputs]
    for name in (*names, *main.arrays):
        if name not in outputs:
            add(name.removesuffix("_buffer_var"), None, (), [name])
    tensors, passed = {*outputs}, dict[int, str]()
    for line in map(str.strip, main.body.splitlines()):
        if (tensor := _TENSOR.fullmatch(line)) is not None:
            tensors.add(tensor[1])
        elif (item := _PASSED.fullmatch(line)) is not None:
            passed[int(item[1])] = item[2]
        elif (call := _CALL.fullmatch(line)) is not None and call[1] in functions:
            parameters = functions[call[1]].parameters
            is_packed = "stack_value" in call[2]
            arguments = [passed[key] for key in sorted(passed)] if is_packed else call[2].split(", ")
            passed = {}
            pairs = [*zip(parameters, arguments, strict=False)]
            reads = [name for parameter, name in pairs if re.fullmatch(r"p\d+", parameter)]
            results = [name for parameter, name in pairs if not _POOL.search(parameter)][len(reads) :]
            if len(parameters) != len(arguments) or {*reads} - current.keys() or {*results} - tensors:
                raise ArchiveError(f"its main function calls {call[1]} with other arguments than its parameters")
            add(call[1], call[1], reads, results)
        elif {*_CALLED.findall(line)} - _HARMLESS:
            raise ArchiveError(f"its main function has the statement {line[:80]}")
    if {*outputs} - current.keys():
        raise ArchiveError("its main function does not compute all outputs")
    return CompiledProgram(tuple(nodes), tuple(current[name] for name in outputs), main.arrays, functions)


def _strides(index: str) -> dict[str, int]:
    """Return the factor of each variable of an index that is a sum of variables times numbers; empty for others."""
    terms = [] if ") *" in index else index.replace("(", "").replace(")", "").split(" + ")
    found = [re.fullmatch(r"([A-Za-z_]\w*)(?: \* ([1-9]\d{0,8}))?", term) for term in terms]
    return {match[1]: int(match[2] or 1) for match in found if match} if all(found) else {}
