"""Recovery of values that TVM's Relay text lacks, from the program that TVM compiled from it.

TVM prints constants as references and six digits of floats, and binds weights before it fuses operators, so only
``p0``, ``p1``, ... of a graph and arrays in C have values. A value is recovered where the structure proves its place:
the name of each function lists the calls of the text that it contains, and its inputs are what these calls read, in
order. Packed layouts, transposed weights and biases that became operands of ``add`` are converted back. Other rewrites,
and functions that can be read in two ways, end the recovery. Nothing is inferred from shapes alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isclose, prod
from typing import TypeAlias

import numpy as np

from mlfc.archive.read.compiled_code import CompiledProgram
from mlfc.archive.read.scales import recovered_scales
from mlfc.archive.read.text_expressions import (
    DIGITS,
    FACTOR,
    VIEWS,
    Array,
    Expression,
    Expressions,
    Key,
    Node,
    is_rounded,
    key_of,
    prints_alike,
    text_of,
)
from mlfc.errors import ArchiveError
from mlfc.relay.ir import IRModule, TensorType, TupleType
from mlfc.relay.text import from_text
from mlfc.relay.text_parser import syntax_tree
from mlfc.relay.text_source import VERSION, Source
from mlfc.relay.text_types import TypeReader, trees
from mlfc.runtime.executors.graph_json import COPY, NOP, GraphNode
from mlfc.support.text import shortened

Types: TypeAlias = "Mapping[str, TensorType]"
Way: TypeAlias = "tuple[str, int, int, tuple[tuple[Expression, Array | int], ...]]"
"""A way to read a function up to a call: the names of calls, the numbers of inputs and of constants of its C, and for
each expression that it reads the value, or the entry of the program."""

_PACKED = {"contrib_dense_pack": "dense", "contrib_conv2d_NCHWc": "conv2d", "contrib_depthwise_conv2d_NCHWc": "conv2d"}
_LAYOUTS = {"nn.conv2d": ("kernel_layout", "OIHW"), "nn.dense": ("weight_layout", "NC")}
_SKIPPED = "|".join(name.replace(".", "_") for name in (*VIEWS, "layout_transform"))
_SKIPPED_NAME = re.compile(rf"(?:^|_)(?:{_SKIPPED})(?=_|$)(?!_like)")
_CUT_NAME = re.compile(r"(fused_.{74})_[0-9a-f]{1,16}_(?:_?[0-9]+)?")  # of more than 80 characters: with a hash
_INSIDE = -1  # in place of an entry: the function computes the expression itself
_PRINTED = 5.5e-6  # relative difference of a float from its six digits in the text, and from seven in C
_MOST_STEPS, _MOST_DEPTH = 200_000, 100


def recovered_module(
    text: str, place: str, module: str, inputs: Collection[str], program: CompiledProgram | None
) -> tuple[IRModule, dict[str, Array]]:
    """Return the module of a text that TVM printed, and its weights.

    `module` is the name in functions of `program`; `inputs` are the variables of ``main`` that are not weights. Raises
    ArchiveError if a value is missing or its place cannot be proven, TextError if the text is not Relay text.
    """
    source = Source(f'#[version = "{VERSION}"]\n{text}', place)
    prepared, tree = syntax_tree(source)
    definitions = trees(tree.children)
    if [item.children[0] for item in definitions] != ["@main"]:
        raise ArchiveError("it has other functions than main")
    *parts, body = trees(definitions[0].children)
    types = TypeReader({}, prepared.code, lambda _, cause, *__: ArchiveError(cause))
    known = {sanitized(name) for name in inputs}
    declared = {str(part.children[0])[1:]: types.type(part.children[1]) for part in parts if part.data == "parameter"}
    weights = {
        name: kind for name, kind in declared.items() if isinstance(kind, TensorType) and sanitized(name) not in known
    }
    for part in body.find_data("attribute"):
        if any(is_rounded(text_of(literal)) for literal in part.find_data("literal")):
            raise ArchiveError(f"the attribute {part.children[0]} has only {DIGITS} digits")
    expressions = Expressions(body, weights)
    sought = [
        leaf
        for leaf in expressions.leaves.values()
        if leaf.kind == "constant"
        or leaf.is_rounded
        or (leaf.kind == "local" and leaf.text[1:] in weights)
        or leaf in expressions.scales
    ]
    values: dict[Expression, Array] = {}
    if sought:
        if program is None:
            raise ArchiveError("it has neither a graph with parameters nor C code")
        values = _Recovery(expressions, weights, program, module).values()
        _add_scales(values, expressions)
    unused = {leaf for leaf in expressions.unused if leaf.is_rounded}
    lacking = [_shown(leaf) for leaf in sought if leaf not in values and leaf not in unused]
    if lacking:
        raise ArchiveError(f"no value of {shortened(', '.join(lacking))} was found")
    leaves = expressions.leaves.items()
    found = {key: values[leaf] for key, leaf in leaves if leaf in values and not _is_exact(leaf, values[leaf])}
    return _with_values(source, place, found, body, program)


def _with_values(
    source: Source, place: str, values: Mapping[Key, Array], body: Node, program: CompiledProgram | None
) -> tuple[IRModule, dict[str, Array]]:
    """Return the module of a text with the values of its leaves."""
    arrays = {str(node.children[-1]): values[key_of(node)] for node in body.find_data("constant")}
    if set(arrays) != set(map(str, range(len(arrays)))):
        raise ArchiveError("the constants are not numbered from 0 on")
    added, code = [arrays[str(index)] for index in range(len(arrays))], source.text
    for start, end in sorted((key for key in values if isinstance(key, tuple)), reverse=True):
        code = f"{code[:start]}meta[relay.Constant][{len(added)}]{code[end:]}"
        added.append(values[start, end])
    made = from_text(code, place, constants=added)
    kind = made.main.body.type
    kinds = kind.fields if isinstance(kind, TupleType) else (kind,)
    if program and program.entries:
        entries = [program.entries[at] for at in program.heads]
        if list(kinds) != [TensorType(entry.shape, entry.dtype) for entry in entries]:
            raise ArchiveError("the graph has outputs of other types")
    names = made.main.attrs.get("output_tensor_names", ())
    weights = {key[1:]: array for key, array in values.items() if isinstance(key, str) and key[0] == "%"}
    return replace(made, output_names=tuple(names)) if names else made, weights


def _add_scales(values: dict[Expression, Array], expressions: Expressions) -> None:
    """Add the scales of requantized tensors to `values`, which has the factors that TVM computed from them."""
    for item in expressions.rescalings:
        factors = [values[factor] for factor in item.factors if factor in values]
        printed, target, scales = item.from_scale.value, item.to_scale.value, None
        if target is not None and (printed is not None or item.from_scale.kind == "constant") and len(factors) == 3:
            scales = recovered_scales(factors, printed, target)
        if scales is None:
            which = f"the scales {_shown(item.from_scale)} and {_shown(item.to_scale)}"
            cause = "have the compiled multiplier" if factors else "were found, as the code has no multiplier of them"
            raise ArchiveError(f"no values of {which} {cause}")
        _add(values, item.from_scale, scales[0])
        _add(values, item.to_scale, scales[1])
        for data_scale, weight_scale in [item.linear] if item.linear else []:
            if weight_scale.kind == "constant" and data_scale.value is not None:
                # no result depends on it; scales of sums are those of data times those of weights
                _add(values, weight_scale, (scales[0] / data_scale.value).astype(np.float32))


def _add(values: dict[Expression, Array], part: Expression, value: Array) -> None:
    if values.setdefault(part, value).tobytes() != value.tobytes():
        raise ArchiveError(f"the compiled code has two values of {_shown(part)}")


class _Recovery:
    """The expressions of a text, beside the program that was compiled from them; `weights` have no values."""

    def __init__(self, expressions: Expressions, weights: Types, program: CompiledProgram, module: str) -> None:
        self._result, self._weights, self._program = expressions.result, weights, program
        self._prefix = f"tvmgen_{module}_"
        self._makers = {entry: node for node in program.nodes for entry in node.outputs}
        self._is_relaid = any("layout_transform" in (node.function or "") for node in program.nodes)
        self._steps = 0
        self._doubt: str | None = None  # why a value of the function was not accepted

    def values(self) -> dict[Expression, Array]:
        """Return the values of constants, except literals that are exact."""
        outputs = self._result.args if self._result.kind == "tuple" else (self._result,)
        if len(outputs) != len(self._program.heads):
            raise ArchiveError("the graph has other outputs")
        waiting: list[tuple[Expression, Array | int]] = [*zip(outputs, self._program.heads, strict=True)]
        found: dict[Expression, Array] = {}
        seen = set()
        while waiting:
            part, value = waiting.pop()
            if not isinstance(value, int):
                _add(found, part, value)
                continue
            node = self._maker(value)
            if (part, node.outputs.start) not in seen:
                seen.add((part, node.outputs.start))
                read = self._read(part, node)
                waiting += [item for item in read if item[1] is not _INSIDE]
                known = {item for item, _ in read}
                for call in (item for item, inside in read if inside is _INSIDE):
                    waiting += [item for item in self._from_code(call, node) if item[0] not in known]
        return found

    def _from_code(self, call: Expression, node: GraphNode) -> Iterator[tuple[Expression, Array]]:
        """Yield the operands of a call that the C of its function contains as numbers."""
        code = self._program.functions.get(node.function or "")
        for place, part in enumerate(call.args if code else ()):
            if part.kind == FACTOR and code and code.factors:
                yield part, code.factors[place - 1]
            elif code and part.value is not None and part.value.dtype == np.float32:
                floats = code.floats
                if call.text == "divide" and place:  # TVM multiplies by the reciprocal, which must be exact
                    floats = {1 / value for value in floats if np.frexp(value)[0] == 0.5}
                near = [value for value in floats if isclose(value, part.value.item(), rel_tol=_PRINTED)]
                if len(near) == 1:
                    yield part, np.array(near[0])

    def _maker(self, entry: int) -> GraphNode:
        """Return the node that computes an entry, apart from changes of its shape, dtype and layout."""
        node = self._makers[entry]
        while node.function is not None and node.inputs and not self._calls(node)[0]:
            node = self._makers[node.inputs[0]]
        return node

    def _calls(self, node: GraphNode) -> tuple[str, ...]:
        """Return the names of a function's calls, with and without the number that makes the function's name unique.

        A name that TVM cut has its first calls, and a `*`.
        """
        if node.function in (NOP, COPY):
            return ("",)
        name = (node.function or "").removeprefix(self._prefix)
        cut = _CUT_NAME.fullmatch(name)
        if cut is not None:  # a last word that may be one of those left out is left out, too
            first, _, last = cut[1].rpartition("_")
            return (f"{_calls_in(first if any(view.startswith(last) for view in VIEWS) else cut[1])}*",)
        return _calls_in(re.sub(r"_?[0-9]+$", "", name)), _calls_in(name)

    def _fits(self, joined: str, node: GraphNode, *, whole: bool) -> bool:
        """Return True if calls are all those in the name of a function, or the first ones."""
        return any(
            joined == name
            or (not whole and name.startswith(joined))
            or (name.endswith("*") and joined.startswith(name[:-1]))
            for name in self._calls(node)
        )

    def _read(self, part: Expression, node: GraphNode) -> Sequence[tuple[Expression, Array | int]]:
        """Return what a function of the program that computes an expression reads."""
        if node.function is None and part.kind == "local" and sanitized(part.text[1:]) == sanitized(node.name):
            return ()
        code = self._program.functions.get(node.function or "")
        ends = len(node.inputs), len(code.constants) if code else 0
        ways, self._doubt = {}, None
        for joined, at, own, found in self._call(part, node, ("", 0, 0, ()), 0):
            read = {(item, value if isinstance(value, int) else value.tobytes()) for item, value in found}
            is_whole = (at, own) == ends and self._fits(joined, node, whole=True)
            if is_whole and len(read) == len({key for key, _ in read}):
                ways[frozenset(read)] = found
        if len(ways) != 1:
            how = "can be read in two ways" if ways else "is not what the text computes"
            cause = f"{node.function or node.name} of the graph {how} with {_shown(part)}"
            raise ArchiveError(cause if ways or self._doubt is None else self._doubt)
        return next(iter(ways.values()))

    def _call(self, call: Expression, node: GraphNode, start: Way, depth: int) -> Iterator[Way]:
        """Yield the ways to read a call as part of a function, from a start on."""
        self._steps += 1
        if self._steps > _MOST_STEPS or depth > _MOST_DEPTH:
            raise ArchiveError("the graph is too large")
        if call.kind not in ("applied", "tuple"):
            return
        ways = [start]
        for part in call.args:
            ways = [more for way in ways for more in self._argument(part, call, node, way, depth)]
            self._steps += len(ways)
        for joined, at, own, found in ways:  # a tuple of arguments is not a call
            names = "_".join(filter(None, (joined, _name(call))))
            if self._fits(names, node, whole=False):
                yield names, at, own, (*found, (call, _INSIDE))

    def _argument(self, part: Expression, call: Expression, node: GraphNode, way: Way, depth: int) -> Iterator[Way]:
        joined, at, own, found = way
        if part in (item for item, _ in found):  # a function has one input for each value
            yield way
            return
        # functions share equal scalars
        for place in range(0 if part.kind == "literal" else at, min(at + 1, len(node.inputs))):
            maker = self._makers[node.inputs[place]]
            array = self._program.values.get(maker.name) if maker.function is None else None
            if array is None and part.varies and part.kind != "tuple":
                yield joined, at + 1, own, (*found, (part, node.inputs[place]))
            elif array is not None and not part.varies:
                if not self._program.entries:
                    array = self._shaped(part, maker.name, array, call, node)
                for item, value in self._original(part, array, call, node):
                    yield joined, max(at, place + 1), own, found if _is_exact(item, value) else (*found, (item, value))
        code = self._program.functions.get(node.function or "")
        name, calls = code.constants[own] if code and own < len(code.constants) else ("", "")
        if code and name and not part.varies and part.kind != "literal" and _calls_in(calls) == joined:
            array = self._shaped(part, name, code.arrays[name], call, node)
            for item, value in self._original(part, array, call, node):
                yield joined, at, own + 1, (*found, (item, value))
        if part.varies:
            yield from self._call(part, node, way, depth + 1)
        elif part.kind in ("literal", FACTOR):  # the code of a function contains some scalars
            yield way

    def _shaped(self, part: Expression, name: str, array: Array, call: Expression, node: GraphNode) -> Array | None:
        """Return an array of C, which has one dimension, in the shape and layout of the text; None if it cannot be."""
        if part.kind == FACTOR or call.text == "nn.bias_add":
            return array
        shape, code = self._shape(part), self._program.functions.get(node.function or "")
        if shape is None:
            self._doubt = f"its C does not contain the shape of {_shown(part)}"
        elif prod(shape) == array.size:
            block = 1
            if call.text in _LAYOUTS and any(packed in (node.function or "") for packed in _PACKED):
                block = code.block(name) if code and call.text == "nn.dense" else 0
            elif call.text not in _LAYOUTS or not self._program.may_relay:
                return array.reshape(shape)
            if block and not self._program.may_relay and not shape[0] % block:
                return _unpacked(array.reshape(-1, shape[1], block), f"NC{block}n", "NC")
            self._doubt = f"its C does not prove the layout of the weights of {node.function}"
        return None

    def _shape(self, part: Expression) -> tuple[int, ...] | None:
        """Return the shape of a variable, or of a change of its layout or zero point; None for others."""
        if part.kind == "local":
            return self._weights[part.text[1:]].shape
        inner = self._shape(part.args[0]) if part.text in ("transpose", "subtract") else None
        if inner is None or part.text == "subtract":
            return inner
        axes = _axes(part)
        return tuple(inner[axis] for axis in axes) if sorted(axes) == [*range(len(inner))] else None

    def _original(
        self, part: Expression, array: Array | None, call: Expression, node: GraphNode
    ) -> Iterator[tuple[Expression, Array]]:
        """Yield a constant of the text and its value, if the program can contain it as `array`."""
        if array is None:
            return
        found: Array | None = array
        if call.text == "nn.bias_add":  # an axis of channels, or one of their blocks and one of those in a block
            found = array.reshape(-1) if sum(extent > 1 for extent in array.shape[:-1]) <= 1 else None
        elif call.text in _LAYOUTS:
            name, usual = _LAYOUTS[call.text]
            own = call.attrs.get(name, usual).strip('"')
            found = _unpacked(array, node.attrs.get(name, own), own)
        elif array.ndim and self._is_relaid and part.kind != FACTOR:
            found = None  # the program does not describe the layouts of operands
        while found is not None and part.kind == "applied":
            inner = part.args[0]
            if part.text == "transpose":
                axes = _axes(part)
                found = found.transpose(np.argsort(axes)) if sorted(axes) == [*range(found.ndim)] else None
            elif part.text == "subtract" and inner.kind == "local" and found.dtype.kind == "i":
                found = _with_zero(found, part.args[1], self._weights[inner.text[1:]].dtype)
            else:
                return
            part = inner
        if found is None:
            return
        is_known = part.kind == "constant"
        if part.kind == "local":
            is_known = self._weights[part.text[1:]] == TensorType(found.shape, found.dtype.name)
        elif part.kind == FACTOR:
            is_known = found.dtype == np.int32 and found.ndim == 1
        elif part.value is not None and found.shape == ():
            is_known = _is_exact(part, found) or (found.dtype == part.value.dtype and prints_alike(found, part.value))
        if is_known:
            yield part, found


def _name(call: Expression) -> str:
    """Return the name of a call in names of functions; empty for tuples."""
    return _calls_in("add" if call.text == "nn.bias_add" else call.text.replace(".", "_"))


def _calls_in(name: str) -> str:
    """Return the calls in the name of a function, of its constants or of an operator, without those left out."""
    for packed, plain in _PACKED.items():
        name = name.replace(packed, plain)
    return _SKIPPED_NAME.sub("", name.removeprefix("fused").removeprefix("_")).removeprefix("_")


def _axes(transpose: Expression) -> list[int]:
    return [int(text) for text in re.findall(r"\d+", transpose.attrs.get("axes", ""))]


def _shown(part: Expression) -> str:
    return re.sub(r"^(relay\.Constant)(\d+)$", r"meta[\1][\2]", part.text)


def sanitized(name: str) -> str:
    """Return a name as TVM writes it in Relay text and C."""
    return re.sub(r"\W", "_", name)


def _is_exact(part: Expression, value: Array) -> bool:
    """Return True if the text has this value; the compiler changes the dtypes of integers."""
    if part.value is None or part.value.dtype.kind != value.dtype.kind:
        return False
    return bool(part.value == value if value.dtype.kind == "i" else part.value.tobytes() == value.tobytes())


def _with_zero(array: Array, zero: Expression, dtype: str) -> Array | None:
    """Return the sum of integers and a zero point in a dtype; None if it does not fit."""
    if zero.value is None or not dtype.startswith(("int", "uint")):
        return None
    wide = array.astype(np.int64) + zero.value
    narrow = wide.astype(dtype)
    return narrow if np.array_equal(wide, narrow) else None


def _unpacked(array: Array, layout: str, own: str) -> Array | None:
    """Return an array of a layout such as ``OIHW4i4o`` in another one, such as ``OIHW``; None if they do not match."""
    axes = re.findall(r"([0-9]*)([A-Za-z])", layout)
    if layout == own:
        return array
    if len(axes) != array.ndim or sorted(own) != sorted(letter for _, letter in axes if letter.isupper()):
        return None
    if any(count not in ("", str(extent)) for (count, _), extent in zip(axes, array.shape, strict=True)):
        return None
    groups = [[at for at, (_, each) in enumerate(axes) if each.upper() == letter] for letter in own]
    shape = [prod(array.shape[at] for at in group) for group in groups]
    return array.transpose([at for group in groups for at in group]).reshape(shape)
