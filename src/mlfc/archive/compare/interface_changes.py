"""Which changes between two builds of a module a C caller notices, and which break it.

A change breaks if a caller that was compiled against the old header misbehaves with the new code, or does not compile
or link with it. Such a caller fills the structs field by field, and has sizes compiled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from mlfc.archive.read.c_header import Header, Prototype, StructField

BREAK: Final = "break"
WARNING: Final = "warning"
NOTE: Final = "note"
_LEVELS = (BREAK, WARNING, NOTE)
_POOL_SIZES = ("_WORKSPACE_POOL_SIZE", "_VM_WORK_SIZE")
_POOL_CONSTANTS = ("_CONSTANT_POOL_SIZE", "_CONSTANT_POOL_DATA")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Change:
    """Something that differs; `a` and `b` are the values before and after, where they are short."""

    level: str  # `BREAK`, `WARNING` or `NOTE`
    what: str  # in words
    a: object = None
    b: object = None


@dataclass(frozen=True)
class Face:
    """A module as a C caller sees it."""

    prefix: str  # what its symbols begin with
    header: Header | None
    calls: frozenset[str]  # functions of TVM's C runtime that its code calls: the caller must link them
    shares: frozenset[str]  # other modules that work in the same memory: no two may run at the same time
    module: Mapping[str, Any]  # of `inspect`


def interface_changes(a: Face, b: Face) -> list[Change]:
    """Return what changes for a caller of `a` that gets `b`, the worst first."""
    changes: list[Change] = []
    header = b.header
    if a.prefix != b.prefix:
        changes.append(Change(BREAK, "the prefix of every symbol", a.prefix, b.prefix))
        header = header and header.renamed(b.prefix, a.prefix)
    if a.module["executor"] != b.module["executor"]:
        changes.append(Change(BREAK, "the executor that runs the module", a.module["executor"], b.module["executor"]))
    if a.header and header is None:
        changes.append(Change(BREAK, "the C interface (the header) is gone"))
    elif header and a.header is None:
        changes.append(Change(NOTE, "there is a C interface now (a header)"))
    elif a.header and header:
        changes += _named_changes("struct {}", a.header.structs, header.structs, _struct_changes)
        changes += _named_changes("function {}", a.header.functions, header.functions, _function_change)
        macro_change = partial(_macro_change, a, "TVMBackendAllocWorkspace" in b.calls)
        changes += _named_changes("macro {}", a.header.macros, header.macros, macro_change)
    if b.calls - a.calls:
        # who runs graphs, or code that calls some of it, links that runtime already
        linked = bool(a.calls) or a.module["executor"] == "graph"
        called = [", ".join(sorted(calls)) or None for calls in (a.calls, b.calls - a.calls)]
        changes.append(Change(NOTE if linked else BREAK, "the code calls TVM's C runtime", *called))
    if a.shares != b.shares:
        partners = [", ".join(sorted(face.shares)) or None for face in (a, b)]
        changes.append(Change(WARNING if b.shares - a.shares else NOTE, "may not run at the same time as", *partners))
    changes += _tensor_changes(a, b, fields_say_names=bool(a.header and header))
    changes += _bound_changes(a.module["vm"], b.module["vm"])
    changes += _state_changes(a.module["states"], b.module["states"])
    changes += _buffer_changes(a.module["functions"] or {}, b.module["functions"] or {})
    return sorted(changes, key=lambda change: _LEVELS.index(change.level))


def bounds_text(low: int, high: int | None) -> str:
    """Return bounds of an open extent as options have them: ``1..32``, or ``1..`` without an upper one."""
    return f"{low}..{'' if high is None else high}"


def _bound_changes(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Iterator[Change]:
    """Yield which open extents take other values; those that are gone are in the shapes of tensors."""
    old, new = ({item["name"]: (item["low"], item["high"]) for item in (vm or {}).get("symbols", ())} for vm in (a, b))
    for name, before in old.items():
        after = new.get(name, before)
        if after != before:
            keeps = after[0] <= before[0] and (after[1] is None or (before[1] is not None and after[1] >= before[1]))
            level = NOTE if keeps else BREAK
            yield Change(level, f"bounds of '{name}'", bounds_text(*before), bounds_text(*after))


def _state_changes(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    """Yield whether states that a caller saved are others, or elsewhere among the bytes."""
    old, new = ([(item["offset"], item["dtype"], *item["shape"], item["name"]) for item in group] for group in (a, b))
    if a and b and old != new:
        names = [", ".join(item["name"] for item in group) for group in (a, b)]
        yield Change(WARNING, "states that were saved do not fit", *names)


def _named_changes(
    kind: str,
    a: Mapping[str, Item],
    b: Mapping[str, Item],
    changed: Callable[[str, Item, Item], Iterable[Change]],
    *,
    gone: str = BREAK,
    added: str = NOTE,
) -> Iterator[Change]:
    """Yield what is gone, what differs as `changed` finds it, and what is new.

    `kind`: what has the names, with a place for one: ``struct {}``.
    `gone`, `added`: the levels of these.
    """
    for name, item in a.items():
        if name not in b:
            yield Change(gone, f"{kind.format(name)} is gone")
        elif item != b[name]:
            yield from changed(name, item, b[name])
    for name, item in b.items():
        if name not in a:
            yield Change(added, f"{kind.format(name)} is there now", None, item if isinstance(item, str) else None)


def _struct_changes(name: str, a: Sequence[StructField], b: Sequence[StructField]) -> Iterator[Change]:
    old, new = ({item.name: item.type for item in group} for group in (a, b))
    for gone in [field for field in old if field not in new]:
        yield Change(BREAK, f"struct {name} lost the field {gone}")
    for added in [field for field in new if field not in old]:
        yield Change(BREAK, f"struct {name} got the field {added}")
    for field in old:
        if field in new and old[field] != new[field]:
            yield Change(BREAK, f"struct {name}: the type of {field}", old[field], new[field])
    kept = [field for field in old if field in new]
    if kept != [field for field in new if field in old]:
        yield Change(BREAK, f"struct {name}: the order of the fields", ", ".join(old), ", ".join(new))


def _function_change(name: str, a: Prototype, b: Prototype) -> Iterator[Change]:
    yield Change(BREAK, f"function {name}: result and parameters", str(a), str(b))


def _macro_change(caller: Face, allocates: bool, name: str, value: str, other: str) -> Iterator[Change]:
    workspace = f"{caller.prefix.upper()}_WORKSPACE_SIZE"
    if name.endswith(_POOL_CONSTANTS):
        yield Change(BREAK, f"{name}: the caller holds the old constants")
    elif name == workspace and not allocates:
        yield Change(NOTE, name, value, other)
    elif name == workspace or name.endswith(_POOL_SIZES):
        # memory that the caller gives: more than enough does no harm
        yield Change(BREAK if _grows(value, other) else NOTE, name, value, other)
    elif caller.module["vm"] and name.endswith("_SIZE"):
        # the most bytes of a tensor: a caller that knows a smaller limit keeps it
        yield Change(NOTE if _grows(value, other) else BREAK, name, value, other)
    else:
        yield Change(BREAK, name, value, other)


def _grows(a: str, b: str) -> bool:
    # what is not a plain number cannot be told to be small enough
    return not (a.isdecimal() and b.isdecimal() and len(a) < 20 and len(b) < 20 and int(b) <= int(a))


def _tensor_changes(a: Face, b: Face, *, fields_say_names: bool) -> Iterator[Change]:
    for kind in ("input", "output"):
        old, new = ({tensor["name"]: tensor for tensor in face.module[f"{kind}s"]} for face in (a, b))
        if not old or not new:
            continue  # older archives do not list them
        level = WARNING if fields_say_names else BREAK
        yield from _named_changes(f"{kind} '{{}}'", old, new, partial(_one_tensor, kind), gone=level, added=level)


def _one_tensor(kind: str, name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    where = f"{kind} '{name}'"

    def both(key: str) -> bool:
        return a[key] is not None and b[key] is not None and a[key] != b[key]

    if both("dtype"):
        yield Change(BREAK, f"{where}: dtype", a["dtype"], b["dtype"])
    is_open = any(isinstance(extent, str) for tensor in (a, b) for extent in tensor["shape"] or ())
    if both("bytes") and not is_open:  # of open extents the bounds say it
        yield Change(BREAK, f"{where}: bytes", a["bytes"], b["bytes"])
    if both("shape"):
        # extents of one move no element
        same = [size for size in a["shape"] if size != 1] == [size for size in b["shape"] if size != 1]
        yield Change(NOTE if same else BREAK, f"{where}: shape", a["shape"], b["shape"])
    for key in ("scale", "zero_point"):
        if both(key):
            yield Change(WARNING, f"{where}: {key.replace('_', ' ')}", a[key], b[key])


def _buffer_changes(a: Mapping[str, Sequence[Any]], b: Mapping[str, Sequence[Any]]) -> Iterator[Change]:
    """Yield how the functions of archives of operator style differ."""
    old, new = (
        {name: [(item["dtype"], item["shape"]) for item in buffers] for name, buffers in functions.items()}
        for functions in (a, b)
    )
    yield from _named_changes(
        "function {}", old, new, lambda name, *pair: [Change(BREAK, f"function {name}: its parameters", *pair)]
    )
