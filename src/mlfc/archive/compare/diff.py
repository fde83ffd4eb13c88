"""What differs between two archives: memory, code, operators, weights, and whether C callers break."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from mlfc.archive.compare.interface_changes import BREAK, Face, bounds_text, interface_changes
from mlfc.archive.describe.code_size import code_sizes
from mlfc.archive.describe.inspect import describe
from mlfc.archive.read.c_header import MAX_HEADER_BYTES, Header, parse_header
from mlfc.archive.read.model import ModuleRecord
from mlfc.archive.read.opening import Archive, open_archive
from mlfc.errors import OptionError

POOLS: Final = ("workspace_bytes", "storages_bytes", "scratch_bytes", "io_bytes", "constants_bytes", "state_bytes")
_FACTS = ("executor", "target", "source", "build", "exported", "vm", "facts")
_OPERATOR_FACTS = ("function", "macs", "bytes", "workspace_bytes", "live_bytes")
_CHUNK = 1 << 20
_LONGEST_NAME = 64
# many times what there are: a file with more is no generated code
_MAX_CALLS = 1_000
# what generated code takes from TVM's runtime; its own functions begin with tvmgen_ in lower case
_RUNTIME_CALL = re.compile(rb"\b(TVM(?:Backend|API|Func|Platform)[A-Za-z]{1,40})\s*\(")


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    modules: Mapping[str, str] | None = None,
    compile_code: bool = False,
    ram: int | None = None,
    flash: int | None = None,
) -> dict[str, Any]:
    """Compare two archives of any versions, whoever wrote them.

    Parameters
    ----------
    a, b : path
        Before and after.
    modules : mapping of str to str, optional
        For modules of `a` the name in `b`, where it differs.
    compile_code : bool
        Compile the code of both for this machine and compare the sizes of the objects.
    ram, flash : int, optional
        Bytes that workspace, inputs, outputs and state of `b` may take, and its constants.

    Returns
    -------
    dict
        ``equal``; ``breaks``, whether a C caller of `a` breaks with `b`; ``facts`` of the whole archives; ``totals``
        in bytes; ``modules`` by the name in `a`, each with ``interface``, ``memory``, ``operators``, ``weights``,
        ``facts``; ``modules_removed``, ``modules_added``; and ``files`` removed, added and changed.
        Values are pairs: of `a` and of `b`. With `ram` or `flash` also ``budget``: of each what `b` has and may have.

    Raises
    ------
    ArchiveError
        If one is not an archive.
    OptionError
        If `modules` names a module that is not there, or `b` does not say what it takes of what is limited.
    ToolchainError
        If the code of one does not compile.
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
    files = _file_changes(*(item["files"] for item in described))
    result = {
        "breaks": bool(removed)
        or any(change["level"] == BREAK for item in found.values() for change in item["interface"]),
        "facts": _facts(*described, ("version", "form", "style", "writer")),
        "totals": {
            **_different(*(_totals(item) for item in described)),
            **_different(*sizes),
        },
        "modules": found,
        "modules_removed": removed,
        "modules_added": added,
        "files": files,
    }
    changed = [result["facts"], result["totals"], removed, added, *files.values()]
    equal = not any(changed) and not any(_changed(item) for item in found.values())
    limits = {"ram_bytes": ram, "constants_bytes": flash}
    budget = _budget(_totals(described[1]), {key: limit for key, limit in limits.items() if limit is not None}, str(b))
    return {"a": str(a), "b": str(b), "equal": equal, **result, **({"budget": budget} if budget else {})}


def _budget(sizes: Mapping[str, int | None], limits: Mapping[str, int], place: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, limit in limits.items():
        size = sizes[key]
        if size is None:
            what = key.removesuffix("_bytes")
            raise OptionError(f"the archive does not say its {what}", place=place, next_step="Compile the model again")
        found[key] = [size, limit]
    return found


def _pairs(a: Archive, b: Archive, names: Mapping[str, str]) -> dict[str, str]:
    """Return for each module of `a` that has a counterpart its name in `b`."""
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
    return {
        **{name: name for name in a.record.modules if name in b.record.modules and name not in taken},
        **names,
    }


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


def _changed(module: Mapping[str, Any]) -> bool:
    groups = [module["interface"], module["memory"], module["facts"]]
    return any((*groups, *module["operators"].values(), *module["weights"].values()))


def _face(
    archive: Archive, module: ModuleRecord, described: Mapping[str, Any], calls: Mapping[str, frozenset[str]]
) -> Face:
    prefix = f"tvmgen_{module.name.lower()}"
    together = _workspace_partners(described)
    return Face(
        prefix,
        _header(archive, module, prefix),
        frozenset[str]().union(*(calls[path] for path in module.files.sources)),
        together - {module.name} if module.name in together else frozenset(),
        described["modules"][module.name],
    )


def _workspace_partners(described: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules that have one workspace together."""
    shared = described["shared"] or {}
    return frozenset(shared["workspace_modules"]) if shared.get("workspace_bytes") else frozenset()


def _header(archive: Archive, module: ModuleRecord, prefix: str) -> Header | None:
    for path in module.files.headers:
        if PurePosixPath(path).name == f"{prefix}.h":
            return parse_header(archive.tar.read(path, MAX_HEADER_BYTES).decode("utf-8", errors="replace"))
    return None


def _runtime_calls(archive: Archive) -> dict[str, frozenset[str]]:
    """Return by source file the functions of TVM's runtime that it calls, found by their names."""
    paths = {path for module in archive.record.modules.values() for path in module.files.sources}
    return {path: _calls_of_file(archive, path) for path in sorted(paths)}


def _calls_of_file(archive: Archive, path: str) -> frozenset[str]:
    found: set[bytes] = set()
    with archive.tar.open(path) as file:
        rest = b""
        while len(found) < _MAX_CALLS and (piece := file.read(_CHUNK)):
            text = rest + piece
            calls = (match[1] for match in _RUNTIME_CALL.finditer(text))
            found.update(islice(calls, _MAX_CALLS))
            rest = text[-_LONGEST_NAME:]
    return frozenset(name.decode() for name in found)


def _different(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the pairs of values that differ, by key; a key that one lacks is None there."""
    return {key: [a.get(key), b.get(key)] for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)}


def _facts(a: Mapping[str, Any], b: Mapping[str, Any], keys: Iterable[str]) -> dict[str, list[Any]]:
    """Return the facts that differ, those within an object one by one."""
    found: dict[str, list[Any]] = {}
    for key in keys:
        if isinstance(a[key] or b[key], dict):
            parts = _different(_plain(a[key] or {}), _plain(b[key] or {}))
            group = "" if key == "facts" else f"{key} "
            found.update({f"{group}{part}": pair for part, pair in parts.items() if part not in keys})
        elif a[key] != b[key]:
            found[key] = [a[key], b[key]]
    return found


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with dynamic dimensions as text."""
    found = dict(facts)
    if "symbols" in facts and "work_bytes" in facts:
        found["symbols"] = ", ".join(
            f"{item['name']}={bounds_text(item['low'], item['high'])}" for item in facts["symbols"]
        )
    return found


def _totals(described: Mapping[str, Any]) -> dict[str, int | None]:
    """Return RAM and constants of a whole archive: what modules share counts once."""
    modules = described["modules"]
    shared = described["shared"] or {}
    together = _workspace_partners(described)
    memory = {name: module["memory"] for name, module in modules.items()}
    if any(item["workspace_bytes"] is None for item in memory.values()):
        return {"ram_bytes": None, "constants_bytes": _constants(described)}
    apart = sum(item["workspace_bytes"] for name, item in memory.items() if name not in together)
    tensors = sum(memory[name]["io_bytes"] for name, module in modules.items() if not module["workspace_io"])
    states = sum(memory[name]["state_bytes"] or 0 for name, module in modules.items() if module["executor"] == "aot")
    ram = apart + tensors + states + (shared["workspace_bytes"] if together else 0)
    return {"ram_bytes": ram, "constants_bytes": _constants(described)}


def _constants(described: Mapping[str, Any]) -> int | None:
    """Return the bytes of constants of a whole archive, those that modules share once; None where one tells nothing."""
    modules, shared = described["modules"].values(), described["shared"] or {}
    sizes: list[int | None] = [module["memory"]["constants_bytes"] for module in modules]
    if None in sizes:
        return None
    if not shared.get("constants_bytes"):
        return sum(size for size in sizes if size is not None)
    known = [item for module in modules for item in module["constants"] or ()]
    nbytes: dict[tuple[str, str], int] = {(item["sha256"], item["dtype"]): item["bytes"] for item in known}
    return sum(nbytes.values())


@dataclass(frozen=True)
class Matched:
    """An operator of both archives, or of one of them.

    Attributes
    ----------
    name : str
        Of its nodes, else of its function.
    places : pair of int or None
        Its position in each.
    operators : pair of mapping or None
        What `describe` says of it.
    changes : mapping of str to list
        The pairs of what both say and that differs.
    """

    name: str
    places: tuple[int | None, int | None]
    operators: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
    changes: Mapping[str, list[Any]]


def matched_operators(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Matched] | None:
    """Match the operators of two described modules by the model's nodes, else by their functions.

    Those of `a` come first. Returns None where one archive lists calls and the other functions or nothing, or only one
    names the nodes: then there is nothing to match by.
    """
    old, new = a["operators"], b["operators"]
    told = [bool(group) and all(operator["nodes"] is not None for operator in group) for group in (old, new)]
    if told[0] != told[1] or not (old and new) or (not all(told) and a["executor"] != b["executor"]):
        return None
    before, after = (_by_name(group, by_nodes=any(told)) for group in (old, new))
    found = []
    for name, place in before.items():
        other = after.get(name)
        if other is None:
            found.append(Matched(name[0], (place, None), (old[place], None), {}))
            continue
        pairs = {key: [old[place][key], new[other][key]] for key in _OPERATOR_FACTS}
        # what one archive does not say has not changed
        known = {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and None not in pair}
        found.append(Matched(name[0], (place, other), (old[place], new[other]), known))
    added = ((name, place) for name, place in after.items() if name not in before)
    return [*found, *(Matched(name[0], (None, place), (None, new[place]), {}) for name, place in added)]


def _operator_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return operators removed, added and changed.

    Where they cannot be matched, ``count`` has the numbers of operators, if they differ.
    """
    result: dict[str, list[Any]] = {"removed": [], "added": [], "changed": [], "count": []}
    matched = matched_operators(a, b)
    if matched is None:
        counts = [len(module["operators"]) for module in (a, b)]
        return {**result, "count": counts if counts[0] != counts[1] else []}
    for item in matched:
        before, after = item.operators
        if before is None or after is None:
            result["added" if before is None else "removed"].append(_listed(item.name, before or after or {}))
        elif item.changes:
            result["changed"].append({"name": item.name, **item.changes})
    return result


def _by_name(operators: list[dict[str, Any]], *, by_nodes: bool) -> dict[tuple[str, int], int]:
    """Return the positions of operators by name and how many of that name came before."""
    seen: Counter[str] = Counter()
    named = {}
    for place, operator in enumerate(operators):
        name = ", ".join(operator["nodes"]) if by_nodes and operator["nodes"] else operator["function"]
        named[name, seen[name]] = place
        seen[name] += 1
    return named


def _listed(name: str, operator: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, **{key: operator[key] for key in _OPERATOR_FACTS}}


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
    """Return weights by the names that the compiler gave them; graph executors know them by numbers."""
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


def _file_changes(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, list[str]]:
    old, new = ({item["path"]: item["sha256"] for item in group} for group in (a, b))
    return {
        "removed": sorted(set(old) - set(new)),
        "added": sorted(set(new) - set(old)),
        "changed": sorted(path for path in old if path in new and old[path] != new[path]),
    }
