"""Whether metadata that fit their schema contradict themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from math import prod
from typing import Any

from mlfc.archive.read.layout import is_module_name
from mlfc.archive.read.record import is_operator_style
from mlfc.support import dtypes

# time.strptime would import locales for as long as all the rest takes
MAX_MODULES = 1_000
_SIZES = ("workspace", "constants", "io")
_TENSORS = ("inputs", "outputs")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)Z")


def module_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``path: what is wrong`` for each contradiction.

    `document` is as `record.upgraded` returns it.
    """
    if is_operator_style(document):
        yield from _time_faults(document, "$")
        yield from _operator_faults(document)
        return
    if not document["modules"]:
        yield "$.modules: there is no module"
    if len(document["modules"]) > MAX_MODULES:
        yield f"$.modules: {len(document['modules']):,} modules are more than the {MAX_MODULES:,} allowed here"
        return
    for name, module in document["modules"].items():
        place = f"$.modules.{name[:80]}"
        if not is_module_name(name):
            yield f"{place}: no module may have this name"
        if module["model_name"] != name:
            yield f"{place}.model_name: expected '{name}', found '{module['model_name'][:80]}'"
        yield from _time_faults(module, place)
        if "mlfc" in module:
            yield from _details_faults(module, place)


def export_seconds(text: str) -> int:
    """Return the seconds since 1970 of a time as the format writes it; raise ValueError where there is no such time."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is no time")
    year, month, day, hour, minute, second = map(int, match.groups())
    return int(datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp())


def _time_faults(module: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        export_seconds(module["export_datetime"])
    except ValueError:
        yield f"{place}.export_datetime: there is no time {module['export_datetime']}"


def _operator_faults(document: Mapping[str, Any]) -> Iterator[str]:
    for name, buffers in document["memory"].items():
        for index, buffer in enumerate(buffers):
            expected = tensor_bytes(buffer["shape"], buffer["dtype"])
            if expected != buffer["size_bytes"]:
                place = f"$.memory.{name[:80]}[{index}].size_bytes"
                yield f"{place}: {buffer['size_bytes']}, but shape and dtype give {expected}"


def tensor_bytes(shape: list[int], dtype: str) -> int:
    """Return the bytes of a tensor of any writer's dtype; bits of small elements are packed, but for bool."""
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return (prod(shape) * (int(digits) if digits else 8) + 7) // 8


def _details_faults(module: Mapping[str, Any], place: str) -> Iterator[str]:
    details, entries = module["mlfc"], module["memory"]["functions"]["main"]
    if not entries:
        yield f"{place}.memory.functions.main: a module of mlfc has an entry here"
        return
    sizes = {f"{key}_size_bytes": sum(entry[f"{key}_size_bytes"] for entry in entries) for key in _SIZES}
    main = {kind: {name: item for entry in entries for name, item in entry.get(kind, {}).items()} for kind in _TENSORS}
    for key in _SIZES:
        ours, theirs = details["memory"][f"{key}_bytes"], sizes[f"{key}_size_bytes"]
        if ours != theirs:
            yield f"{place}.mlfc.memory.{key}_bytes: {ours} is not {key}_size_bytes of main, {theirs}"
    for kind in _TENSORS:
        names = [tensor["name"] for tensor in details[kind]]
        if len(set(names)) != len(names) or set(names) != set(main[kind]):
            yield f"{place}.mlfc.{kind}: the names are not those of main.{kind}"
            continue
        for index, tensor in enumerate(details[kind]):
            size = prod(tensor["shape"]) * dtypes.nbytes(tensor["dtype"])
            if main[kind][tensor["name"]] != {"dtype": tensor["dtype"], "size": size}:
                yield f"{place}.mlfc.{kind}[{index}]: shape and dtype do not give the size in main.{kind}"
    total = sum(entry["size"] for kind in _TENSORS for entry in main[kind].values())
    if total != sizes["io_size_bytes"]:
        yield f"{place}: inputs and outputs have {total} bytes together, io_size_bytes says {sizes['io_size_bytes']}"
