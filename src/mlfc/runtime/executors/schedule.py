"""The calls of a graph in order, and recordings of those that a device can submit as one unit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from mlfc.runtime.devices.device import Device, Recording
from mlfc.runtime.executors.graph_json import COPY, Graph, GraphNode
from mlfc.runtime.executors.graph_memory import GraphMemory

Call: TypeAlias = Callable[[], int]


class CallFailed(Exception):  # noqa: N818  (never leaves the executors)
    """A call of an operator that returned `status`."""

    def __init__(self, node: GraphNode, status: int) -> None:
        super().__init__(node.name)
        self.node = node
        self.status = status


@dataclass
class _CallSequence:
    """Consecutive calls, on one device or on the host."""

    device: Device
    calls: list[tuple[GraphNode, Call]]
    recording: Recording | None = None
    timed: Recording | None = None


class CallSchedule:
    """Runs the calls of a graph.

    The first run after addresses of arguments have changed calls the operators one by one. The second records the
    launches between two copies, if the device supports it; later runs submit each recording at once. Each of `calls`
    returns its status, 0 for success. `compiled` functions use devices only through this process.
    """

    def __init__(
        self,
        graph: Graph,
        memory: GraphMemory,
        calls: Sequence[tuple[GraphNode, Call]],
        compiled: Collection[str | None],
    ) -> None:
        self.calls = calls
        self._graph = graph
        self._memory = memory
        self._pieces = list(_pieces(calls, memory))
        # pieces with more than one call that launches kernels
        self._launched = [
            piece
            for piece in self._pieces
            if piece.device.kind != "cpu"
            and len(piece.calls) > 1
            and all(node.function in compiled for node, _ in piece.calls)
        ]
        self._runs = 0

    def moved(self) -> None:
        """Drop recordings, because addresses of arguments have changed."""
        self._runs = 0
        for piece in self._launched:
            piece.recording = piece.timed = None

    def run(self) -> None:
        """Run all calls, without waiting for devices; raise CallFailed if one fails."""
        if self._launched and self._is_settled():
            for piece in self._pieces:
                if piece.recording is not None:
                    piece.recording.launch()
                else:
                    _run(piece.calls)
        else:
            _run(self.calls)

    def timed(self) -> list[tuple[int, int]]:
        """Run, and return the start, by this process's clock, and the nanoseconds of each call.

        Host calls are timed by this process's clock, device calls by the device's. Times of recorded launches exclude
        waiting for this process.
        """
        settled = bool(self._launched) and self._is_settled()
        passed: list[Callable[[], Iterable[tuple[int, int]]]] = []
        for piece in self._pieces:
            if settled and piece.recording is not None and piece.timed is None:
                piece.timed = _recorded(piece, None)
            if settled and piece.timed is not None:
                passed.append(_timed_at_once(piece.timed))
            else:
                passed += [self._timed_call(piece.device, *call) for call in piece.calls]
        self._memory.synchronize()
        return [item for times in passed for item in times()]

    def _timed_call(self, device: Device, node: GraphNode, call: Call) -> Callable[[], Iterable[tuple[int, int]]]:
        """Run an operator; return a function that returns its start and nanoseconds once the device is done."""
        is_here = device.kind == "cpu"
        if is_here:
            # the time of an operator excludes waiting for a device
            self._memory.synchronize()
        start = time.perf_counter_ns()
        first = None if is_here else device.api.mark()
        status = call()
        last = time.perf_counter_ns() if is_here else device.api.mark()
        if status:
            raise CallFailed(node, status)
        return lambda: [(start, last - start if is_here else device.api.nanoseconds(first, last))]

    def _is_settled(self) -> bool:
        """Count a run; return whether launches are recorded."""
        self._runs += 1
        if self._runs == 2:
            for piece in self._launched:
                piece.recording = _recorded(piece, self._earlier(piece))
        return self._runs >= 2

    def _earlier(self, piece: _CallSequence) -> list[set[int]]:
        """Return, for each call, the earlier calls of its piece that it depends on through the blocks they access."""
        storage = [entry.storage_id for entry in self._graph.entries]
        writer: dict[int, int] = {}
        readers: dict[int, set[int]] = {}
        found: list[set[int]] = []
        for number, (node, _) in enumerate(piece.calls):
            read, written = ({storage[entry] for entry in entries} for entries in (node.inputs, node.outputs))
            earlier = {writer[block] for block in read | written if block in writer}
            for block in written:
                earlier |= readers.pop(block, set())
                writer[block] = number
            for block in read - written:
                readers.setdefault(block, set()).add(number)
            found.append(earlier - {number})
        return found


def _pieces(calls: Sequence[tuple[GraphNode, Call]], memory: GraphMemory) -> Iterator[_CallSequence]:
    """Yield the calls in groups: consecutive calls on one device that are not copies form a group."""
    piece: _CallSequence | None = None
    for node, call in calls:
        device = memory.device(node.outputs.start)
        if piece is None or COPY in (node.function, piece.calls[-1][0].function) or device != piece.device:
            if piece is not None:
                yield piece
            piece = _CallSequence(device, [])
        piece.calls.append((node, call))
    if piece is not None:
        yield piece


def _run(calls: Sequence[tuple[GraphNode, Call]]) -> None:
    for node, call in calls:
        if status := call():
            raise CallFailed(node, status)


def _recorded(piece: _CallSequence, earlier: Sequence[Collection[int]] | None) -> Recording | None:
    return piece.device.api.record([partial(_run, [call]) for call in piece.calls], earlier)


def _timed_at_once(recording: Recording) -> Callable[[], Iterable[tuple[int, int]]]:
    start = time.perf_counter_ns()
    recording.launch()

    def times() -> Iterator[tuple[int, int]]:
        at = start
        for nanoseconds in recording.nanoseconds():
            yield at, nanoseconds
            at += nanoseconds

    return times
