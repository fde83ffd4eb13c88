"""Recovery of values that TVM's Relay text lacks, from the graph that TVM compiled from it and the graph's parameters.

TVM prints constants as references and six digits of floats, and binds weights before it fuses operators, so only
``p0``, ``p1``, ... have values. A value is recovered where the structure proves its place: the name of each function in
the graph lists the calls of the text that it contains, and its inputs are what these calls read, in order. Packed
layouts, transposed weights and biases that became operands of ``add`` are converted back. Other rewrites, and functions
that can be read in two ways, end the recovery. Nothing is inferred from shapes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from lark import Token, Tree

from mlfc.errors import ArchiveError
from mlfc.relay.ir import IRModule, TensorType, TupleType
from mlfc.relay.text import from_text
from mlfc.relay.text_literals import number_value
from mlfc.relay.text_parser import syntax_tree
from mlfc.relay.text_source import VERSION, Source
from mlfc.relay.text_types import TypeReader, tree_of, trees
from mlfc.runtime.executors.graph_json import NOP, Graph, GraphNode

Array: TypeAlias = "npt.NDArray[Any]"
Arrays: TypeAlias = "Mapping[str, Array]"
Types: TypeAlias = "Mapping[str, TensorType]"
Node: TypeAlias = "Tree[Token]"
Place: TypeAlias = "tuple[int, int]"  # of an expression in the text: first and last character
Key: TypeAlias = "Place | str"  # of an expression: the text of a variable or reference, else the place
Way: TypeAlias = "tuple[str, int, tuple[tuple[Node, Array | int], ...]]"
"""A way to read a function up to a call: the names of calls, the number of inputs, and for each expression that it
reads the value, or the entry of the graph."""

_PACKED = {"contrib_dense_pack": "dense", "contrib_conv2d_NCHWc": "conv2d", "contrib_depthwise_conv2d_NCHWc": "conv2d"}
_LAYOUTS = {"nn.conv2d": ("kernel_layout", "OIHW"), "nn.dense": ("weight_layout", "NC")}
_VIEWS = ("reshape", "expand_dims", "squeeze", "nn.batch_flatten")
_DIGITS = 6  # of floats in TVM's text
_INSIDE = -1  # in place of an entry: the function computes the expression itself
_MOST_STEPS, _MOST_DEPTH = 200_000, 100


def recovered_module(
    text: str, place: str, module: str, inputs: Iterable[str], graph: Graph | None, params: Arrays
) -> tuple[IRModule, dict[str, Array]]:
    """Return the module of a text that TVM printed, and its weights.

    `module` is the name in functions of `graph`, which has the parameters `params`; `inputs` are the variables of
    ``main`` that are not weights. Raises ArchiveError if a value is missing or its place cannot be proven, TextError if
    the text is not Relay text.
    """
    source = Source(f'#[version = "{VERSION}"]\n{text}', place)
    prepared, tree = syntax_tree(source)
    definitions = trees(tree.children)
    if [item.children[0] for item in definitions] != ["@main"]:
        raise ArchiveError("it has other functions than main")
    *parts, body = trees(definitions[0].children)
    if not _is_sequence(body):
        raise ArchiveError("only calls of operators with one result, in sequence, are supported")
    types = TypeReader({}, prepared.code, lambda _, cause, *__: ArchiveError(cause))
    known = {_sanitized(name) for name in inputs}
    declared = {_variable(part): types.type(part.children[1]) for part in parts if part.data == "parameter"}
    weights = {
        name: kind for name, kind in declared.items() if isinstance(kind, TensorType) and _sanitized(name) not in known
    }
    for part in body.find_data("attribute"):
        if any(map(_is_rounded, part.find_data("literal"))):
            raise ArchiveError(f"the attribute {part.children[0]} has only {_DIGITS} digits")
    constants = [*body.find_data("constant")]
    sought = [*constants, *filter(_is_rounded, body.find_data("literal"))]
    sought += [node for node in body.find_data("local") if _variable(node) in weights]
    values: dict[Key, Array] = {}
    if sought:
        if graph is None:
            raise ArchiveError("it has no graph with parameters")
        values = _Recovery(body, weights, graph, params, module).values()
    for node in sought:
        if _key(node) not in values:
            raise ArchiveError(f"no value of {_shown(node)} was found")
    arrays = {str(node.children[-1]): values[_key(node)] for node in constants}
    if set(arrays) != set(map(str, range(len(arrays)))):
        raise ArchiveError("the constants are not numbered from 0 on")
    added, code = [arrays[str(index)] for index in range(len(arrays))], source.text
    for node in sorted(body.find_data("literal"), key=_place, reverse=True):
        start, end = _place(node)
        if (start, end) in values:
            code = f"{code[:start]}meta[relay.Constant][{len(added)}]{code[end:]}"
            added.append(values[start, end])
    made = from_text(code, place, constants=added)
    kind = made.main.body.type
    kinds = kind.fields if isinstance(kind, TupleType) else (kind,)
    if graph and list(kinds) != [TensorType(graph.entries[at].shape, graph.entries[at].dtype) for at in graph.heads]:
        raise ArchiveError("the graph has outputs of other types")
    found = {_variable(node): values[_key(node)] for node in sought if node.data == "local"}
    names = made.main.attrs.get("output_tensor_names", ())
    return replace(made, output_names=tuple(names)) if names else made, found


class _Recovery:
    """The calls of a text, beside the graph that was compiled from them; `weights` are the variables without values."""

    def __init__(self, body: Node, weights: Types, graph: Graph, params: Arrays, module: str) -> None:
        *statements, self._result = trees(body.children)
        self._bound = {str(item.children[0]): tree_of(item.children[-1]) for item in statements}
        self._weights, self._graph, self._params, self._prefix = weights, graph, params, f"tvmgen_{module}_fused_"
        self._makers = {entry: node for node in graph.nodes for entry in node.outputs}
        self._is_relaid = any("layout_transform" in (node.function or "") for node in graph.nodes)
        self._varying: dict[Place, bool] = {}
        self._steps = 0
        for item in self._bound.values():  # in order, which bounds the recursion
            self._varies(item)

    def values(self) -> dict[Key, Array]:
        """Return the values of constants, except literals that are exact."""
        result = self._plain(self._result)
        outputs = _arguments(result) if result.data == "tuple" else [result]
        if len(outputs) != len(self._graph.heads):
            raise ArchiveError("the graph has other outputs")
        waiting: list[tuple[Node, Array | int]] = [*zip(outputs, self._graph.heads, strict=True)]
        found: dict[Key, Array] = {}
        seen = set()
        while waiting:
            part, value = waiting.pop()
            if isinstance(value, int):
                part, node = self._plain(part), self._maker(value)
                if (_place(part), node.outputs.start) not in seen:
                    seen.add((_place(part), node.outputs.start))
                    waiting += [item for item in self._read(part, node) if item[1] is not _INSIDE]
            elif found.setdefault(_key(part), value).tobytes() != value.tobytes():
                raise ArchiveError(f"the graph has two values of {_shown(part)}")
        return found

    def _maker(self, entry: int) -> GraphNode:
        """Return the node that computes an entry, apart from changes of its layout."""
        node = self._makers[entry]
        while node.function is not None and node.inputs and not self._calls(node)[0]:
            node = self._makers[node.inputs[0]]
        return node

    def _calls(self, node: GraphNode) -> tuple[str, ...]:
        """Return the names of a function's calls, with and without the number that makes the function's name unique."""
        name = (node.function or "").removeprefix(self._prefix)
        for packed, plain in _PACKED.items():
            name = name.replace(packed, plain)
        name = re.sub(r"_?layout_transform(?=_|$)", "", name).removeprefix("_")
        return re.sub(r"_?[0-9]+$", "", name), name

    def _plain(self, part: Node) -> Node:
        """Return what an expression is bound to, without dropout, which has no effect in inference."""
        while True:
            if part.data == "local" and part.children[0] in self._bound:
                part = self._bound[str(part.children[0])]
            elif part.data == "applied" and isinstance(part.children[1], Token):
                part = tree_of(part.children[0])
            elif _operator(part) == "nn.dropout":
                part = _arguments(part)[0]
            else:
                return part

    def _read(self, part: Node, node: GraphNode) -> Sequence[tuple[Node, Array | int]]:
        """Return what a function of the graph that computes an expression reads."""
        if node.function is None and part.data == "local" and _sanitized(_variable(part)) == _sanitized(node.name):
            return ()
        names = (_name(part),) if node.function == NOP and _operator(part) in _VIEWS else self._calls(node)
        ways = {}
        for joined, at, found in self._call(part, node, ("", 0, ()), 0):
            read = {(_key(item), value if isinstance(value, int) else value.tobytes()) for item, value in found}
            if at == len(node.inputs) and joined in names and len(read) == len({key for key, _ in read}):
                ways[frozenset(read)] = found
        if len(ways) != 1:
            how = "can be read in two ways" if ways else "is not what the text computes"
            raise ArchiveError(f"{node.function or node.name} of the graph {how} with {_shown(part)}")
        return next(iter(ways.values()))

    def _call(self, call: Node, node: GraphNode, start: Way, depth: int) -> Iterator[Way]:
        """Yield the ways to read a call as part of a function, from a start on."""
        self._steps += 1
        if self._steps > _MOST_STEPS or depth > _MOST_DEPTH:
            raise ArchiveError("the graph is too large")
        if call.data not in ("applied", "tuple"):
            return
        ways = [start]
        for part in map(self._plain, _arguments(call)):
            ways = [more for way in ways for more in self._argument(part, call, node, way, depth)]
            self._steps += len(ways)
        for joined, at, found in ways:  # a tuple of arguments is not a call
            names = "_".join(filter(None, (joined, _name(call))))
            if any(name.startswith(names) for name in self._calls(node)) or node.function == NOP:
                yield names, at, (*found, (call, _INSIDE))

    def _argument(self, part: Node, call: Node, node: GraphNode, way: Way, depth: int) -> Iterator[Way]:
        joined, at, found = way
        if _key(part) in (_key(item) for item, _ in found):  # a function has one input for each value
            yield way
            return
        varies = self._varies(part)
        # functions share equal scalars
        for place in range(0 if part.data == "literal" else at, min(at + 1, len(node.inputs))):
            maker = self._makers[node.inputs[place]]
            array = self._params.get(maker.name) if maker.function is None else None
            if array is None and varies and part.data != "tuple":
                yield joined, at + 1, (*found, (part, node.inputs[place]))
            elif array is not None and not varies:
                for item, value in self._original(part, array, call, node):
                    own = _literal(item) if item.data == "literal" else None
                    exact = own is not None and own.tobytes() == value.tobytes()
                    yield joined, max(at, place + 1), found if exact else (*found, (item, value))
        if varies:
            yield from self._call(part, node, way, depth + 1)
        elif part.data == "literal":  # the code of a function contains some scalars
            yield way

    def _varies(self, part: Node) -> bool:
        """Return True if an expression depends on an input."""
        part = self._plain(part)
        if part.data == "local":
            return _variable(part) not in self._weights
        place = _place(part)
        if place not in self._varying:
            self._varying[place] = part.data in ("applied", "tuple") and any(map(self._varies, _arguments(part)))
        return self._varying[place]

    def _original(self, part: Node, array: Array, call: Node, node: GraphNode) -> Iterator[tuple[Node, Array]]:
        """Yield a constant of the text and its value, if the graph can contain it as `array`."""
        found: Array | None = array
        operator = _operator(call)
        if operator == "nn.bias_add":  # an axis of channels, or one of their blocks and one of those in a block
            found = array.reshape(-1) if sum(extent > 1 for extent in array.shape[:-1]) <= 1 else None
        elif operator in _LAYOUTS:
            name, usual = _LAYOUTS[operator]
            own = _attribute(call, name).strip('"') or usual
            found = _unpacked(array, node.attrs.get(name, own), own)
        elif array.ndim and self._is_relaid:
            found = None  # the graph does not describe the layouts of operands
        while found is not None and _operator(part) == "transpose":
            axes = [int(text) for text in re.findall(r"\d+", _attribute(part, "axes"))]
            found = found.transpose(np.argsort(axes)) if sorted(axes) == [*range(found.ndim)] else None
            part = self._plain(_arguments(part)[0])
        if found is None or part.data == "applied":
            return
        is_known = part.data == "constant"
        if part.data == "local":
            is_known = self._weights[_variable(part)] == TensorType(found.shape, found.dtype.name)
        elif part.data == "literal" and (value := _literal(part)) is not None and found.shape == ():
            digits = f".{_DIGITS}g" if found.dtype.kind == "f" else ""
            is_known = found.dtype == value.dtype and format(found.item(), digits) == format(value.item(), digits)
        if is_known:
            yield part, found


def _is_sequence(body: Node) -> bool:
    """Return True if a text has only calls of operators with one result, each after its arguments."""
    seen: set[str] = set()
    dropped: set[str] = set()  # results of dropout, which are tuples
    for item in trees(body.children):
        names = {str(node.children[0]) for node in item.find_data("local")}
        calls = [(node.children[-1], _arguments(node)) for node in item.find_data("applied") if len(node.children) == 2]
        if any(name[1:].isdecimal() for name in names - seen) or len(calls) != len([*item.find_data("applied")]):
            return False
        for suffix, arguments in calls:
            if not arguments or (isinstance(suffix, Token) and _shown(arguments[0]) not in dropped):
                return False
        if item.data == "binding":
            name, value = str(item.children[0]), tree_of(item.children[1])
            if name in seen:
                return False
            seen.add(name)
            dropped |= {name} if _operator(value) == "nn.dropout" else set()
    return not any(True for name in ("let", "chain", "if", "function", "global_function") for _ in body.find_data(name))


def _operator(node: Node) -> str | None:
    head = node.children[0] if node.data == "applied" else None
    return str(head.children[0]) if isinstance(head, Tree) and head.data == "operator" else None


def _arguments(node: Node) -> list[Node]:
    suffix = node if node.data == "tuple" else node.children[1]
    return [
        part
        for part in trees(suffix.children if isinstance(suffix, Tree) else node.children)
        if part.data != "attribute"
    ]


def _attribute(node: Node, name: str) -> str:
    """Return the text of an attribute's value; empty without it."""
    for part in trees(tree_of(node.children[1]).children):
        if part.data == "attribute" and part.children[0] == name:
            return "".join(map(str, tree_of(part.children[1]).scan_values(lambda _: True)))
    return ""


def _name(call: Node) -> str:
    """Return the name of a call in names of functions; empty for tuples."""
    operator = _operator(call) or ""
    return "add" if operator == "nn.bias_add" else operator.replace(".", "_")


def _variable(node: Node) -> str:
    return str(node.children[0]).removeprefix("%")


def _place(node: Node) -> Place:
    return node.meta.start_pos, node.meta.end_pos


def _key(node: Node) -> Key:
    return _shown(node) if node.data in ("local", "constant") else _place(node)


def _shown(node: Node) -> str:
    return _operator(node) or "".join(map(str, node.scan_values(lambda _: True)))


def _sanitized(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _literal(node: Node) -> Array | None:
    return number_value(str(node.children[-1]), negative=len(node.children) > 1)


def _is_rounded(node: Node) -> bool:
    """Return True if a float has as many digits as TVM prints, so its value may have more."""
    digits, suffix, _ = str(node.children[-1]).partition("f")
    return bool(suffix) and len(re.sub(r"[.]|e.*", "", digits).strip("0")) >= _DIGITS


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
