"""A profile as JSON, and as a trace that Chrome and Perfetto show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlfc.library.peaks import Peaks
from mlfc.runtime.executors.profile import OperatorTime, Profile
from mlfc.support.text import printable, shortened

_PROCESS = 1
_SHOWN_TENSORS = 32
_NAME = 200


def operator_name(item: OperatorTime) -> str:
    """Return what people call an operator: its nodes of the original model, else its function."""
    return ", ".join(item.nodes) or item.function


def operator_row(item: OperatorTime, peaks: Peaks | None) -> dict[str, Any]:
    """Return a JSON object of an operator; without peaks it lacks what compares it with the machine."""
    limit = None if peaks is None else peaks.limit(item)
    return {
        "index": item.index,
        "function": item.function,
        "nodes": list(item.nodes),
        "macs": item.macs,
        "bytes": item.nbytes,
        "tensors": list(item.tensors),
        "median_us": item.nanoseconds / 1e3,
        "share": item.share,
        "gmacs_per_second": item.gmacs_per_second,
        "gbytes_per_second": item.gbytes_per_second,
        "bound": limit and limit.bound,
        "share_of_peak": limit and limit.share,
        "compute_share_of_peak": limit and limit.compute,
        "memory_share_of_peak": limit and limit.memory,
        "threads_us": [spent / 1e3 for spent in item.threads],
        "balance": item.balance,
    }


def trace_text(name: str, profile: Profile, peaks: Peaks | None) -> str:
    """Return a profile in the trace-event format: a track for each thread, an event for each call of an operator.

    Times are in microseconds from the first operator on; events of a run are inside one of the whole run.
    """
    timeline = profile.timeline
    left_out = 0 if timeline is None else timeline.left_out
    document: dict[str, Any] = {
        "displayTimeUnit": "ns",
        "otherData": {"model": name, "runs": len(profile.runs), "calls_left_out": left_out},
        "traceEvents": list(_events(name, profile, peaks)),
    }
    if peaks is not None:
        document["otherData"]["peaks"] = peaks.to_json()
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _events(name: str, profile: Profile, peaks: Peaks | None) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, _text(name))
    timeline = profile.timeline
    if timeline is None or not len(timeline):
        return
    for thread in np.unique(timeline.thread).tolist():
        yield _named("thread_name", thread, "caller's thread" if thread == 0 else f"thread {thread}")
    ends = timeline.start + timeline.duration
    for run in np.unique(timeline.run).tolist():
        inside = timeline.run == run
        start = int(timeline.start[inside].min())
        yield _event(f"run {run}", "run", 0, start, int(ends[inside].max()) - start, {"run": run})
    described = [_arguments(item, peaks) for item in profile.operators]
    columns = (timeline.run, timeline.operator, timeline.thread, timeline.start, timeline.duration)
    for run, operator, thread, start, duration in zip(*(column.tolist() for column in columns), strict=True):
        title = _text(operator_name(profile.operators[operator]))
        yield _event(title, "operator", thread, start, duration, {"run": run, **described[operator]})


def _arguments(item: OperatorTime, peaks: Peaks | None) -> dict[str, Any]:
    row = operator_row(item, peaks)
    told = ("index", "function", "macs", "bytes", "bound", "share_of_peak")
    return {**{key: row[key] for key in told}, "shapes": list(map(_text, item.tensors[:_SHOWN_TENSORS]))}


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(
    name: str, category: str, thread: int, start: int, duration: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": thread,
        "ts": start / 1e3,
        "dur": duration / 1e3,
        "args": arguments,
    }


def _text(name: str) -> str:
    return shortened(printable(name), _NAME)
