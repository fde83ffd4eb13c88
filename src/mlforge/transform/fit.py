"""Choosing the layers that are computed in stripes so that the workspace fits a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from mlforge import memory
from mlforge.relay import ir
from mlforge.support import dtypes
from mlforge.target.features import Features
from mlforge.tir.ir import Program
from mlforge.transform.lower import lower
from mlforge.transform.lower_stage import Stage
from mlforge.transform.stripes import Layer, Piece, find_stage, schedule

# how many stages are lowered and planned before the smallest workspace found so far is taken
_MOST_TRIALS = 8


@dataclass(frozen=True, eq=False)
class Fitted:
    """A program with a stage in stripes, and its plan."""

    program: Program
    plan: memory.Plan
    stage: Stage


def fit(module: ir.IRModule, features: Features, whole: Program, plan: memory.Plan, limit: int) -> Fitted | None:
    """Return the program with its first layers in stripes, so that the workspace is at most `limit` bytes.

    Parameters
    ----------
    module : IRModule
        The fused module.
    features : Features
    whole, plan : Program, Plan
        Without stripes; the workspace is larger than the limit.
    limit : int

    Returns
    -------
    Fitted or None
        The one with the fewest calls among those that fit; where none does, the one with the smallest workspace.
        None where stripes save nothing.
    """
    best: Fitted | None = None
    for stage in _candidates(find_stage(module), plan, limit):
        program = lower(module, features, whole.name, stage)
        trial = Fitted(program, memory.plan(program), stage)
        if trial.plan.size <= limit:
            return trial
        if trial.plan.size < (best.plan.size if best else plan.size):
            best = trial
    return best


def _candidates(layers: Sequence[Layer], plan: memory.Plan, limit: int) -> list[Stage]:
    """Return the stages that may fit, the one with the fewest calls first; if none may, the smallest ones."""
    found = []
    for depth in range(1, len(layers) + 1):
        chain = tuple(layers[:depth])
        after = max(plan.live[depth:], default=0)
        for rows in _heights(chain[-1].out_rows):
            needed = max(after, _least_bytes(chain, rows))
            found.append((max(0, needed - limit), depth * -(-chain[-1].out_rows // rows), depth, Stage(chain, rows)))
    found.sort(key=lambda item: item[:3])
    return [stage for *_, stage in found[:_MOST_TRIALS]]


def _heights(rows: int) -> Iterator[int]:
    """Yield the heights of stripes that make so many rows, each number of stripes once."""
    yield from sorted({-(-rows // count) for count in range(2, rows + 1)}, reverse=True)


def _least_bytes(layers: Sequence[Layer], rows: int) -> int:
    """Return the most bytes that a stage holds at a time if every output takes the place of its input."""
    carried = [0] * len(layers)
    most = 0
    stripes = schedule(layers, rows)
    for number, pieces in enumerate(stripes):
        for index, piece in enumerate(pieces):
            if piece is None:
                continue
            data = _input_bytes(layers[index], piece) if index else 0
            following = pieces[index + 1] if index + 1 < len(layers) else None
            output = _input_bytes(layers[index + 1], following) if following else 0
            carried[index] = 0
            most = max(most, sum(carried) + max(data, output))
            later = next((item[index] for item in stripes[number + 1 :] if item[index] is not None), None)
            if index and later is not None:
                carried[index] = later.carried * _row_bytes(layers[index].input)
    return most + layers[-1].output.size * dtypes.nbytes(layers[-1].output.dtype)


def _input_bytes(layer: Layer, piece: Piece) -> int:
    return (piece.needs_end - piece.needs_first) * _row_bytes(layer.input)


def _row_bytes(kind: ir.TensorType) -> int:
    return prod(kind.shape[2:]) * dtypes.nbytes(kind.dtype)
