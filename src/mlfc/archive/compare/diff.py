"""Differences between two archives: memory, code, operators, weights, and changes that break C callers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from mlfc.archive.describe.inspect import code_sizes, describe
from mlfc.archive.read.c_header import MAX_HEADER_BYTES, Header, Prototype, StructField, parse_header
from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.errors import OptionError

POOLS: Final = ("workspace_bytes", "storages_bytes", "scratch_bytes", "io_bytes", "constants_bytes", "state_bytes")
_FACTS = ("executor", "target", "source", "build", "exported", "vm", "facts")
_OPERATOR_FACTS = ("function", "macs", "bytes", "workspace_bytes", "live_bytes")
_CHUNK = 1 << 20
_LONGEST_NAME = 64
# far more than exist: a file with more is not generated code
_MAX_CALLS = 1_000
# functions of TVM's runtime that generated code calls; its own functions start with tvmgen_ in lower case
_RUNTIME_CALL = re.compile(rb"\b(TVM(?:Backend|API|Func|Platform)[A-Za-z]{1,40})\s*\(")
BREAK: Final = "break"
WARNING: Final = "warning"
NOTE: Final = "note"
_LEVELS = (BREAK, WARNING, NOTE)
_POOL_SIZES = ("_WORKSPACE_POOL_SIZE", "_VM_WORK_SIZE")
_POOL_CONSTANTS = ("_CONSTANT_POOL_SIZE", "_CONSTANT_POOL_DATA")
Item = TypeVar("Item")


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    modules: Mapping[str, str] | None = None,
    compile_code: bool = False,
    ram: int | None = None,
    flash: int | None = None,
) -> dict[str, Any]:
    """Compare two archives of any version and from any writer.

    Parameters
    ----------
    a, b : path
        Before and after.
    modules : mapping of str to str, optional
        Names in `b` of modules of `a` that are named differently there.
    compile_code : bool
        Compile the code of both for this machine and compare the sizes of the objects.
    ram, flash : int, optional
        Limits in bytes: RAM for workspace, inputs, outputs and state of `b`, flash for its constants.

    Returns
    -------
    dict
        ``equal``; ``breaks``, whether a C caller of `a` breaks with `b`; ``facts`` of the whole archives; ``totals``
        in bytes; ``modules`` by the name in `a`, each with ``interface``, ``memory``, ``operators``, ``weights``,
        ``facts``; ``modules_removed``, ``modules_added``; and ``files`` removed, added and changed.
        Values are pairs (`a`, `b`). With `ram` or `flash` also ``budget``: used and allowed bytes of `b` for each.

    Raises
    ------
    ArchiveError
        If `a` or `b` is not an archive.
    OptionError
        If `modules` names an unknown module, or `b` does not record the size that is limited.
    ToolchainError
        If the code of `a` or `b` does not compile.

    Examples
    --------
    >>> mlfc.diff("digits.tar", "digits.tar")["equal"]
    True
    """
    with open_archive(a) as first, open_archive(b) as second:
        pairs = _pairs(first, second, modules or {})
        described = (describe(first), describe(second))
        calls = [_runtime_calls(archive) for archive in (first, second)]
        found = {
            name: _module_diff((first, second), described, calls, (name, other))
            for name, other in sorted(pairs.items())
        }
        sizes = (code_sizes(first), code_sizes(second)) if compile_code else ({}, {})
    removed = sorted(set(described[0]["modules"]) - set(pairs))
    added = sorted(set(described[1]["modules"]) - set(pairs.values()))
    totals = [_totals(item) for item in described]
    old, new = ({item["path"]: item["sha256"] for item in one["files"]} for one in described)
    files = {
        "removed": sorted(set(old) - set(new)),
        "added": sorted(set(new) - set(old)),
        "changed": sorted(path for path in old if path in new and old[path] != new[path]),
    }
    result = {
        "breaks": bool(removed)
        or any(change["level"] == BREAK for item in found.values() for change in item["interface"]),
        "facts": _facts(*described, ("version", "form", "style", "writer")),
        "totals": {**_different(*totals), **_different(*sizes)},
        "modules": found,
        "modules_removed": removed,
        "modules_added": added,
        "files": files,
    }
    changed = [result["facts"], result["totals"], removed, added, *files.values()]
    for item in found.values():
        changed += [item["interface"], item["memory"], item["facts"]]
        changed += [*item["operators"].values(), *item["weights"].values()]
    budget: dict[str, list[int]] = {}
    for key, limit in (("ram_bytes", ram), ("constants_bytes", flash)):
        if limit is not None:
            size = totals[1][key]
            if size is None:
                cause = f"the archive does not record its {key.removesuffix('_bytes')}"
                raise OptionError(cause, place=str(b), next_step="Compile the model again")
            budget[key] = [size, limit]
    return {"a": str(a), "b": str(b), "equal": not any(changed), **result, **({"budget": budget} if budget else {})}


def _pairs(a: Archive, b: Archive, names: Mapping[str, str]) -> dict[str, str]:
    """Return the name in `b` of each module of `a` that has a counterpart."""
    for archive, given in ((a, names), (b, names.values())):
        for name in given:
            if name not in archive.record.modules:
                raise OptionError(
                    f"unknown module '{name}'",
                    place=archive.path,
                    next_step=f"Known: {', '.join(archive.record.modules)}",
                )
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise OptionError(f"two modules are compared with '{twice[0]}'", place=b.path)
    taken = set(names.values())
    return {**{name: name for name in a.record.modules if name in b.record.modules and name not in taken}, **names}


def _module_diff(
    archives: tuple[Archive, Archive],
    described: tuple[dict[str, Any], dict[str, Any]],
    calls: Sequence[Mapping[str, frozenset[str]]],
    names: tuple[str, str],
) -> dict[str, Any]:
    a, b = (item["modules"][name] for item, name in zip(described, names, strict=True))
    first, second = (
        _face(archive, archive.record.modules[name], item, called)
        for archive, name, item, called in zip(archives, names, described, calls, strict=True)
    )
    return {
        "b": names[1],
        "headers": [face.header is not None for face in (first, second)],
        "interface": [asdict(change) for change in interface_changes(first, second)],
        "memory": _different(a["memory"], b["memory"]),
        "operators": _operator_changes(a, b),
        "weights": _weight_changes(a["constants"], b["constants"]),
        "facts": _facts(a, b, _FACTS),
    }


def _face(
    archive: Archive, module: ModuleRecord, described: Mapping[str, Any], calls: Mapping[str, frozenset[str]]
) -> Face:
    prefix, header = f"tvmgen_{module.name.lower()}", None
    for path in module.files.headers:
        if header is None and PurePosixPath(path).name == f"{prefix}.h":
            header = parse_header(archive.tar.read(path, MAX_HEADER_BYTES).decode("utf-8", errors="replace"))
    together = _workspace_partners(described)
    shares = together - {module.name} if module.name in together else frozenset[str]()
    called = frozenset[str]().union(*(calls[path] for path in module.files.sources))
    return Face(prefix, header, called, shares, described["modules"][module.name])


def _workspace_partners(described: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules that share one workspace."""
    shared = described["shared"] or {}
    return frozenset(shared["workspace_modules"]) if shared.get("workspace_bytes") else frozenset()


def _runtime_calls(archive: Archive) -> dict[str, frozenset[str]]:
    """Return the functions of TVM's runtime that each source file calls, found by name."""
    calls: dict[str, frozenset[str]] = {}
    for path in sorted({path for module in archive.record.modules.values() for path in module.files.sources}):
        found, rest = set[bytes](), b""
        with archive.tar.open(path) as file:
            while len(found) < _MAX_CALLS and (piece := file.read(_CHUNK)):
                text = rest + piece
                found.update(islice((match[1] for match in _RUNTIME_CALL.finditer(text)), _MAX_CALLS))
                rest = text[-_LONGEST_NAME:]
        calls[path] = frozenset(name.decode() for name in found)
    return calls


def _different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the pairs of values that differ, by key; a missing key counts as None."""
    return {key: [a.get(key), b.get(key)] for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)}


def _facts(a: Mapping[str, Any], b: Mapping[str, Any], keys: Iterable[str]) -> dict[str, list[Any]]:
    """Return the facts that differ; objects are compared key by key."""
    found: dict[str, list[Any]] = {}
    for key in keys:
        if isinstance(a[key] or b[key], dict):
            groups = [dict(side[key] or {}) for side in (a, b)]
            for facts in groups:
                if "symbols" in facts and "work_bytes" in facts:  # dynamic dimensions as text
                    bounds = [(item["name"], bounds_text(item["low"], item["high"])) for item in facts["symbols"]]
                    facts["symbols"] = ", ".join(f"{name}={text}" for name, text in bounds)
            prefix = "" if key == "facts" else f"{key} "
            parts = _different(*groups)
            found.update({f"{prefix}{part}": pair for part, pair in parts.items() if part not in keys})
        elif a[key] != b[key]:
            found[key] = [a[key], b[key]]
    return found


def memory_totals(path: str | os.PathLike[str]) -> dict[str, int | None]:
    """Return RAM and constant bytes of an archive, None where it does not record them."""
    with open_archive(path) as archive:
        return _totals(describe(archive))


def _totals(described: Mapping[str, Any]) -> dict[str, int | None]:
    """Return RAM and constant bytes of a whole archive; what modules share counts once."""
    together = _workspace_partners(described)
    ram: int | None = described["shared"]["workspace_bytes"] if together else 0
    for name, module in described["modules"].items():
        memory = module["memory"]
        if ram is None or memory["workspace_bytes"] is None:
            ram = None
            continue
        ram += 0 if name in together else memory["workspace_bytes"]
        ram += 0 if module["workspace_io"] else memory["io_bytes"]
        ram += (memory["state_bytes"] or 0) if module["executor"] == "aot" else 0
    return {"ram_bytes": ram, "constants_bytes": _constants(described)}


def _constants(described: Mapping[str, Any]) -> int | None:
    """Return the constant bytes of a whole archive, shared ones counted once; None if a module does not record them."""
    modules, shared = described["modules"].values(), described["shared"] or {}
    sizes: list[Any] = [module["memory"]["constants_bytes"] for module in modules]
    if shared.get("constants_bytes") and None not in sizes:
        known = [item for module in modules for item in module["constants"] or ()]
        sizes = [*{(item["sha256"], item["dtype"]): item["bytes"] for item in known}.values()]
    return None if None in sizes else sum(sizes)


@dataclass(frozen=True)
class Matched:
    """An operator of one or both archives."""

    name: str  # names of its nodes, else of its function
    places: tuple[int | None, int | None]  # its index in each
    operators: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]  # results of `describe`
    changes: Mapping[str, list[Any]]  # pairs of values that both have and that differ


def matched_operators(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Matched] | None:
    """Match the operators of two described modules by the model's nodes, else by their functions.

    Operators of `a` come first. Returns None if operators cannot be matched: one archive lists calls and the other
    functions or nothing, or only one names the nodes.
    """
    old, new = a["operators"], b["operators"]
    told = [bool(group) and all(operator["nodes"] is not None for operator in group) for group in (old, new)]
    if told[0] != told[1] or not (old and new) or (not all(told) and a["executor"] != b["executor"]):
        return None
    before, after = (_places(group, by_nodes=any(told)) for group in (old, new))
    found = []
    for name, place in before.items():
        other = after.get(name)
        if other is None:
            found.append(Matched(name[0], (place, None), (old[place], None), {}))
            continue
        pairs = {key: [old[place][key], new[other][key]] for key in _OPERATOR_FACTS}
        # a value that one archive does not record has not changed
        known = {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and None not in pair}
        found.append(Matched(name[0], (place, other), (old[place], new[other]), known))
    added = ((name, place) for name, place in after.items() if name not in before)
    return [*found, *(Matched(name[0], (None, place), (None, new[place]), {}) for name, place in added)]


def _places(operators: list[dict[str, Any]], *, by_nodes: bool) -> dict[tuple[str, int], int]:
    """Return the index of each operator, by name and number of earlier operators of that name."""
    seen: Counter[str] = Counter()
    named = {}
    for place, operator in enumerate(operators):
        name = ", ".join(operator["nodes"]) if by_nodes and operator["nodes"] else operator["function"]
        named[name, seen[name]] = place
        seen[name] += 1
    return named


def _operator_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return operators removed, added and changed; if they cannot be matched, only ``count``, if it differs."""
    result: dict[str, list[Any]] = {"removed": [], "added": [], "changed": [], "count": []}
    matched = matched_operators(a, b)
    if matched is None:
        counts = [len(module["operators"]) for module in (a, b)]
        return {**result, "count": counts if counts[0] != counts[1] else []}
    for item in matched:
        before, after = item.operators
        if before is None or after is None:
            listed = {key: (before or after or {})[key] for key in _OPERATOR_FACTS}
            result["added" if before is None else "removed"].append({"name": item.name, **listed})
        elif item.changes:
            result["changed"].append({"name": item.name, **item.changes})
    return result


def _weight_changes(a: list[dict[str, Any]] | None, b: list[dict[str, Any]] | None) -> dict[str, list[Any]]:
    """Return weights removed, added, changed and renamed (equal content under another name)."""
    if a is None or b is None:
        return {"removed": [], "added": [], "changed": [], "renamed": []}
    old, new = _by_weight(a), _by_weight(b)
    removed = [(name, item) for name, item in old.items() if name not in new]
    added = [(name, item) for name, item in new.items() if name not in old]
    places = {_content(item): name for name, item in reversed(added)}
    renamed = [[name, places[_content(item)]] for name, item in removed if _content(item) in places]
    moved = {name for pair in renamed for name in pair}
    return {
        "removed": [item for name, item in removed if name not in moved],
        "added": [item for name, item in added if name not in moved],
        "changed": [
            [item, new[name]] for name, item in old.items() if name in new and _content(item) != _content(new[name])
        ],
        "renamed": renamed,
    }


def _by_weight(weights: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return weights by the names that the compiler assigned; graph executors number them."""
    sources = [item.get("source") for item in weights]
    told = None not in sources and len(set(sources)) == len(sources)
    seen: Counter[str] = Counter()
    named = {}
    for item in weights:
        name = item["source"] if told else item["name"]
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} ({seen[name]})"] = item
    return named


def _content(weight: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    return weight["sha256"], weight["dtype"], tuple(weight["shape"])


@dataclass(frozen=True)
class Change:
    """A difference; `a` and `b` are the values before and after, if short."""

    level: str  # `BREAK`, `WARNING` or `NOTE`
    what: str  # description
    a: object = None
    b: object = None


@dataclass(frozen=True)
class Face:
    """A module as seen by a C caller."""

    prefix: str  # prefix of its symbols
    header: Header | None
    calls: frozenset[str]  # functions of TVM's C runtime that its code calls: the caller must link them
    shares: frozenset[str]  # other modules that use the same memory: no two may run at the same time
    module: Mapping[str, Any]  # from `inspect`


def interface_changes(a: Face, b: Face) -> list[Change]:
    """Return the changes that a caller of `a` sees with `b`, the most severe first."""
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
        prototypes = (a.header.functions, header.functions)
        changes += _named_changes("function {}", *prototypes, partial(_break, "function {}: result and parameters"))
        macro_change = partial(_macro_change, a, "TVMBackendAllocWorkspace" in b.calls)
        changes += _named_changes("macro {}", a.header.macros, header.macros, macro_change)
    if b.calls - a.calls:
        # a caller that runs graphs, or whose code already calls some of it, links that runtime already
        linked = bool(a.calls) or a.module["executor"] == "graph"
        called = [", ".join(sorted(calls)) or None for calls in (a.calls, b.calls - a.calls)]
        changes.append(Change(NOTE if linked else BREAK, "the code calls TVM's C runtime", *called))
    if a.shares != b.shares:
        partners = [", ".join(sorted(face.shares)) or None for face in (a, b)]
        changes.append(Change(WARNING if b.shares - a.shares else NOTE, "may not run at the same time as", *partners))
    changes += _tensor_changes(a, b, fields_say_names=bool(a.header and header))
    changes += _bound_changes(a.module["vm"], b.module["vm"])
    # saved states may have changed, or have moved within the state buffer
    states = [face.module["states"] for face in (a, b)]
    saved, kept = ([(item["offset"], item["dtype"], *item["shape"], item["name"]) for item in each] for each in states)
    if all(states) and saved != kept:
        names = [", ".join(item["name"] for item in group) for group in states]
        changes.append(Change(WARNING, "saved states do not fit", *names))
    old, new = (
        {name: [(item["dtype"], item["shape"]) for item in listed] for name, listed in functions.items()}
        for functions in (a.module["functions"] or {}, b.module["functions"] or {})
    )
    changes += _named_changes("function {}", old, new, partial(_break, "function {}: its parameters"))
    return sorted(changes, key=lambda change: _LEVELS.index(change.level))


def bounds_text(low: int, high: int | None) -> str:
    """Return bounds of a dynamic dimension in option syntax: ``1..32``, or ``1..`` without an upper bound."""
    return f"{low}..{'' if high is None else high}"


def _bound_changes(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Iterator[Change]:
    """Yield the dynamic dimensions whose bounds changed; removed ones appear in the shapes of tensors."""
    old, new = ({item["name"]: (item["low"], item["high"]) for item in (vm or {}).get("symbols", ())} for vm in (a, b))
    for name, before in old.items():
        after = new.get(name, before)
        if after != before:
            keeps = after[0] <= before[0] and (after[1] is None or (before[1] is not None and after[1] >= before[1]))
            level = NOTE if keeps else BREAK
            yield Change(level, f"bounds of '{name}'", bounds_text(*before), bounds_text(*after))


def _named_changes(
    kind: str,
    a: Mapping[str, Item],
    b: Mapping[str, Item],
    changed: Callable[[str, Item, Item], Iterable[Change]],
    *,
    gone: str = BREAK,
    added: str = NOTE,
) -> Iterator[Change]:
    """Yield removed items, differences found by `changed`, and added items; `kind` is for example ``struct {}``."""
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
    yield from (Change(BREAK, f"struct {name} lost the field {field}") for field in old if field not in new)
    yield from (Change(BREAK, f"struct {name} got the field {field}") for field in new if field not in old)
    kept = [field for field in old if field in new]
    for field in kept:
        if old[field] != new[field]:
            yield Change(BREAK, f"struct {name}: the type of {field}", old[field], new[field])
    if kept != [field for field in new if field in old]:
        yield Change(BREAK, f"struct {name}: the order of the fields", ", ".join(old), ", ".join(new))


def _break(what: str, name: str, a: object, b: object) -> list[Change]:
    pair = (str(item) if isinstance(item, Prototype) else item for item in (a, b))
    return [Change(BREAK, what.format(name), *pair)]


def _macro_change(caller: Face, allocates: bool, name: str, value: str, other: str) -> Iterator[Change]:
    workspace = f"{caller.prefix.upper()}_WORKSPACE_SIZE"
    if name.endswith(_POOL_CONSTANTS):
        yield Change(BREAK, f"{name}: the caller holds the old constants")
    elif name == workspace and not allocates:
        yield Change(NOTE, name, value, other)
    elif name == workspace or name.endswith(_POOL_SIZES):
        # memory that the caller provides: more than needed is harmless
        yield Change(BREAK if _grows(value, other) else NOTE, name, value, other)
    elif caller.module["vm"] and name.endswith("_SIZE"):
        # maximum bytes of a tensor: a caller that respects a smaller limit still does
        yield Change(NOTE if _grows(value, other) else BREAK, name, value, other)
    else:
        yield Change(BREAK, name, value, other)


def _grows(a: str, b: str) -> bool:
    # a value that is not a plain number may be larger
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
    if both("bytes") and not is_open:  # bounds of dynamic dimensions cover this
        yield Change(BREAK, f"{where}: bytes", a["bytes"], b["bytes"])
    if both("shape"):
        # dimensions of size 1 do not move elements
        same = [size for size in a["shape"] if size != 1] == [size for size in b["shape"] if size != 1]
        yield Change(NOTE if same else BREAK, f"{where}: shape", a["shape"], b["shape"])
    for key in ("scale", "zero_point"):
        if both(key):
            yield Change(WARNING, f"{where}: {key.replace('_', ' ')}", a[key], b[key])
