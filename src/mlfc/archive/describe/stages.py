"""Operators as a tree by the names of their nodes: model, stages, blocks, operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfc.runtime.executors.profile import OperatorTime

_DEPTH = 4  # of stages within stages
_WORDS = 32  # of a name that count
_PATH = re.compile(r"[^/.]*[/.]+|[^/.]+")
_UNDERSCORED = re.compile(r"[^/._]*[/.]+|[^/._]*_+(?:\d+(?:_+|(?=[/.]|$)))*|[^/._]+")


@dataclass
class Stage:
    """A part of a model, and what it took."""

    name: str
    nanoseconds: float = 0.0
    parts: dict[str, Stage] = field(default_factory=dict)
    operators: list[OperatorTime] = field(default_factory=list)


def stages(model: str, operators: Sequence[OperatorTime]) -> Stage:
    """Return the tree of a model's operators; parts are in the order of their first operators."""
    root = Stage(model)
    names = [_name(item) for item in operators]
    pattern = _PATH if sum("/" in name or "." in name for name in names) * 2 > len(names) else _UNDERSCORED
    for item, name in zip(operators, names, strict=True):
        at = root
        at.nanoseconds += item.nanoseconds
        # the last word is the operator's own
        for word in pattern.findall(name)[:_WORDS][:-1]:
            at = at.parts.setdefault(word, Stage(word))
            at.nanoseconds += item.nanoseconds
        at.operators.append(item)
    whole = root
    while len(whole.parts) == 1 and not whole.operators:  # what all names begin with says nothing
        (whole,) = whole.parts.values()
    return _joined(Stage(model, root.nanoseconds, whole.parts, whole.operators), 0)


def _name(item: OperatorTime) -> str:
    """Return the first node's name: converters join those of fused ones, and importers add the kind of operator."""
    first = item.nodes[0] if item.nodes else item.function
    return first.partition(";")[0].partition(" (")[0]


def _joined(stage: Stage, depth: int) -> Stage:
    """Join stages of one part with it, and leave out those that are too deep or stand for one operator."""
    parts: dict[str, Stage] = {}
    operators = list(stage.operators)
    for key, whole in stage.parts.items():
        part = whole
        while len(part.parts) == 1 and not part.operators:
            (inner,) = part.parts.values()
            part = Stage(part.name + inner.name, inner.nanoseconds, inner.parts, inner.operators)
        if depth == _DEPTH or _count(part, 2) < 2:
            operators += _all_operators(part)
        else:
            parts[key] = _joined(part, depth + 1)
    operators.sort(key=lambda item: item.index)
    return Stage(stage.name, stage.nanoseconds, parts, operators)


def _count(stage: Stage, enough: int) -> int:
    """Return how many operators a stage has, at most `enough`."""
    count = len(stage.operators)
    for part in stage.parts.values():
        if count >= enough:
            break
        count += _count(part, enough - count)
    return min(count, enough)


def _all_operators(stage: Stage) -> list[OperatorTime]:
    found = list(stage.operators)
    for part in stage.parts.values():
        found += _all_operators(part)
    return found
