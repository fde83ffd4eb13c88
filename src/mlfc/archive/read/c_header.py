"""C interface of a module, parsed from its flat header without a compiler; shapes are from Relay text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO

from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.errors import ArchiveError
from mlfc.support.module_info import MemoryInfo, ModuleInterface, PoolInfo
from mlfc.support.tensor_info import TensorInfo

MAX_HEADER_BYTES = 4 << 20  # constants of pools that the caller owns are macros, byte by byte
_LONGEST = 1 << 20  # a struct of ten thousand tensors

_TOKEN = re.compile(r"[A-Za-z_]\w*|[^\s\w]|\w+")
_BOUNDARY = re.compile(r"[{};]")
_DEFINE = re.compile(r"\s*#\s*define\s+([A-Za-z_]\w*)(.*)")
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(\w*)")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PARAMETER = re.compile(r"%([^\s,()]+?):\s*(?:Tensor\[\(([0-9, ]*)\),\s*(\w+)\]|(\w+))")
_SIGNATURE = "def @main("


@dataclass(frozen=True)
class StructField:
    """A field of a struct: its type in single-spaced tokens and its name."""

    type: str
    name: str


@dataclass(frozen=True)
class Prototype:
    """A declared function: the types of its result and parameters. Parameter names do not matter to callers."""

    result: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.result} ({', '.join(self.parameters)})"


@dataclass
class Header:
    """The declarations of one header, each by name, in source order."""

    structs: dict[str, tuple[StructField, ...]] = field(default_factory=dict)
    functions: dict[str, Prototype] = field(default_factory=dict)
    # single-spaced; without the include guard, which has no value
    macros: dict[str, str] = field(default_factory=dict)

    def renamed(self, old: str, new: str) -> Header:
        """Return the header with the prefix `old` of every name, type and macro replaced by `new`."""
        word = re.compile(rf"\b(?:{re.escape(old)}|{re.escape(old.upper())})(?=_)")

        def change(text: str) -> str:
            return word.sub(lambda found: new if found[0] == old else new.upper(), text)

        return Header(
            {
                change(name): tuple(StructField(change(item.type), item.name) for item in fields)
                for name, fields in self.structs.items()
            },
            {
                change(name): Prototype(change(item.result), tuple(map(change, item.parameters)))
                for name, item in self.functions.items()
            },
            {change(name): value for name, value in self.macros.items()},
        )


def parse_header(text: str) -> Header:
    """Return the declarations of a header's text; unrecognized ones are skipped without an error."""
    header = Header()
    lines = []
    for line in _lines_for_c("".join(_without_comments(text)).replace("\\\n", " ")):
        define = _DEFINE.match(line) if "#" in line else None
        if define:
            name, value = define[1], " ".join(define[2].split())
            if value:
                header.macros.setdefault(name, value)
        elif not line.lstrip().startswith("#"):
            lines.append(line)
    for statement, body in _statements("".join(lines)):
        if len(statement) + len(body or "") <= _LONGEST:
            _declare(header, statement, body)
    return header


def _without_comments(text: str) -> Iterator[str]:
    """Yield the text between comments. `find` is linear; a regular expression would search to the end each time."""
    at = 0
    block, line = text.find("/*"), text.find("//")
    while block >= 0 or line >= 0:
        start, closing = (block, "*/") if line < 0 or 0 <= block < line else (line, "\n")
        yield text[at:start]
        yield " "
        end = text.find(closing, start + 2)
        if end < 0:
            return
        at = end + 2 if closing == "*/" else end
        block = block if block < 0 or block >= at else text.find("/*", at)
        line = line if line < 0 or line >= at else text.find("//", at)
    yield text[at:]


def _lines_for_c(text: str) -> Iterator[str]:
    """Yield the lines visible to a C compiler, without those between ``#ifdef __cplusplus`` and its end."""
    hidden = 0
    for line in StringIO(text):
        directive = _DIRECTIVE.match(line) if "#" in line else None
        word = directive[1] if directive else ""
        if hidden:
            hidden += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
        elif directive and word == "ifdef" and directive[2] == "__cplusplus":
            hidden = 1
        elif not line.isspace():
            yield line


def _statements(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each statement: the text before its braces or semicolon, and the text between braces."""
    start, opened, depth = 0, 0, 0
    head: str | None = None
    for mark in _BOUNDARY.finditer(text):
        symbol = mark[0]
        if symbol == "{":
            if depth == 0:
                head, opened = text[start : mark.start()], mark.end()
            depth += 1
        elif symbol == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if head is not None:
                    yield head, text[opened : mark.start()]
                head, start = None, mark.end()
        elif depth == 0:
            yield text[start : mark.start()], None
            start = mark.end()


def _declare(header: Header, statement: str, body: str | None) -> None:
    tokens = _TOKEN.findall(statement)
    if body is not None:
        if len(tokens) == 2 and tokens[0] == "struct":
            header.structs.setdefault(tokens[1], tuple(map(_field, filter(str.strip, body.split(";")))))
        return
    if tokens[-1:] != [")"] or "(" not in tokens:
        return
    opening = tokens.index("(")
    if opening < 2 or tokens.count("(") != 1:
        return
    result, name, inside = tokens[: opening - 1], tokens[opening - 1], tokens[opening + 1 : -1]
    parameters = [_field(text).type for text in " ".join(inside).split(",")] if inside not in ([], ["void"]) else []
    header.functions.setdefault(name, Prototype(" ".join(result), tuple(parameters)))


def _field(text: str) -> StructField:
    tokens = _TOKEN.findall(text)
    # a parameter may be an unnamed type
    if len(tokens) > 1 and (tokens[-1][0].isalpha() or tokens[-1][0] == "_") and tokens[-2] != "struct":
        return StructField(" ".join(tokens[:-1]), tokens[-1])
    return StructField(" ".join(tokens), "")


def c_interface(record: ModuleRecord, header_text: str, relay: str | None, place: str) -> ModuleInterface:
    """Return the description of a module's C entry for `AotModule`.

    Raises ArchiveError if the header declares no entry, if the entry requires resources that only firmware has, or if
    the size of a tensor is unknown.
    """
    header = parse_header(header_text)
    prefix = f"tvmgen_{record.name.lower()}"
    entry = f"{prefix}_run"
    if entry not in header.functions:
        raise ArchiveError(
            f"the header declares no function {entry}", place=place, next_step="Export the archive again"
        )
    if f"{prefix}_devices" in header.structs:
        raise ArchiveError(
            f"the module '{record.name}' requires device contexts",
            place=place,
            next_step="Run it as firmware: only its own project can provide them",
        )
    main = record.main[0] if record.main else None
    shapes = relay_inputs(relay or "")
    pools = _pools(header, prefix, place)
    inputs = _tensors(header, f"{prefix}_inputs", main.inputs if main else (), shapes, place)
    outputs = _tensors(header, f"{prefix}_outputs", main.outputs if main else (), {}, place)
    return ModuleInterface(
        entry=entry,
        inputs=inputs,
        outputs=outputs,
        external_workspace=bool(pools),
        pools=pools,
        workspace_io=f"{prefix}_map_inputs" in header.functions,
        memory=MemoryInfo(main.workspace_bytes if main else 0, 0, 0, 0),
    )


def relay_inputs(text: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of each parameter of ``main`` in Relay text, by its name as a C identifier.

    The result is empty if the text has no such function: the text is not validated.
    """
    start = text.find(_SIGNATURE)
    if start < 0:
        return {}
    # comments may contain any character, even braces, so they are removed first; signatures have one line
    end = text.find("\n", start)
    signature = _COMMENT.sub("", text[start : end if end >= 0 else len(text)]).partition("{")[0]
    found = {}
    for name, extents, dtype, scalar in _PARAMETER.findall(signature):
        shape = tuple(int(extent) for extent in extents.replace(" ", "").split(",") if extent)
        found[_identifier(name)] = (shape, dtype or scalar)
    return found


def graph_outputs(outputs: Sequence[TensorRecord], known: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return the outputs `known` of a graph under the metadata's names, if sizes identify them."""
    left = {tensor.name: (tensor.dtype, tensor.nbytes) for tensor in outputs}
    kinds = [(info.dtype, info.nbytes) for info in known]
    if sorted(left.values()) != sorted(kinds) or len(set(kinds)) != len(kinds):
        return tuple(known)
    names = {kind: name for name, kind in left.items()}
    return tuple(TensorInfo(names[kind], info.shape, info.dtype) for info, kind in zip(known, kinds, strict=True))


def _tensors(
    header: Header,
    struct: str,
    known: Sequence[TensorRecord],
    shapes: dict[str, tuple[tuple[int, ...], str]],
    place: str,
) -> tuple[TensorInfo, ...]:
    by_field = {_identifier(tensor.name): tensor for tensor in known}
    tensors = []
    for entry in header.structs.get(struct, ()):
        tensor, relay = by_field.get(_identifier(entry.name)), shapes.get(_identifier(entry.name))
        if tensor is None and relay is None:
            raise ArchiveError(
                f"neither the metadata nor the Relay text contain the size of '{entry.name}'",
                place=place,
                next_step="Compile the model again with mlfc",
            )
        dtype = tensor.dtype if tensor else relay[1] if relay else ""
        info = TensorInfo(tensor.name if tensor else entry.name, relay[0] if relay else (), dtype)
        if tensor and (relay is None or info.nbytes != tensor.nbytes or relay[1] != dtype):
            flat = (tensor.nbytes // max(1, TensorInfo(tensor.name, (), dtype).nbytes),)
            info = TensorInfo(tensor.name, tensor.shape or flat, dtype)
        tensors.append(info)
    return tuple(tensors)


def _pools(header: Header, prefix: str, place: str) -> tuple[PoolInfo, ...]:
    """Return each pool that the caller provides, in the order of the struct."""
    pools = []
    for entry in header.structs.get(f"{prefix}_workspace_pools", ()):
        macro = f"{prefix}_{entry.name}_WORKSPACE_POOL_SIZE".upper()
        text = header.macros.get(macro, "").strip("()uUlL ")
        if not text.isdecimal() or len(text) > 15:
            raise ArchiveError(
                f"pool '{entry.name}' contains constants, or the header does not declare its size",
                place=place,
                next_step="Run it as firmware, which provides the pool",
            )
        pools.append(PoolInfo(entry.name, int(text), base=0, lower_bound_bytes=0))
    return tuple(pools)


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)
