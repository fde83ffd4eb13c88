"""The calls of a graph in order: those of a device as one piece of work once they stay the same from run to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlfc.runtime.devices.device import Device, DeviceApi, Recording, timed_call
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
    """Consecutive calls, on one device or here."""

    device: Device
    calls: Sequence[tuple[GraphNode, Call]]
    recording: Recording | None = None
    timed: Recording | None = None


class CallSchedule:
    """Runs the calls of a graph.

    The first run after addresses of arguments have changed calls one operator after another. The second records the
    launches between two copies, where the device can do that; from then on they are given to it all at once.

    Parameters
    ----------
    graph : Graph
    memory : GraphMemory
    calls : sequence of (Node, callable)
        In order. Each returns its status, 0 for success.
    compiled : collection of str
        The functions that are compiled code: what it does on a device is all seen here, what others do is not.
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
        self._launched = [piece for piece in self._pieces if _is_launched(piece, compiled)]
        self._runs = 0

    def moved(self) -> None:
        """Take note that arguments have other addresses than before."""
        self._runs = 0
        for piece in self._launched:
            piece.recording = piece.timed = None

    def run(self) -> None:
        """Run all calls, without waiting for devices; raise CallFailed for one that fails."""
        if self._launched and self._is_settled():
            for piece in self._pieces:
                if piece.recording is not None:
                    piece.recording.launch()
                else:
                    _run(piece.calls)
        else:
            _run(self.calls)

    def timed(self) -> list[tuple[int, int]]:
        """Run, and return for each call when it began, by this process's clock, and its nanoseconds.

        Calls here are timed by this process's clock, those on a device by its own. If its launches are recorded, the
        times do not include any waiting for this process.
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
        if device.kind == "cpu":
            # waiting for a device is not the time of the operator that has to wait
            self._memory.synchronize()
        status, start, nanoseconds = timed_call(device, call)
        if status:
            raise CallFailed(node, status)
        return lambda: [(start, nanoseconds())]

    def _is_settled(self) -> bool:
        """Count a run; tell whether launches are recorded."""
        self._runs += 1
        if self._runs == 2:
            for piece in self._launched:
                piece.recording = _recorded(piece, self._earlier(piece))
        return self._runs >= 2

    def _earlier(self, piece: _CallSequence) -> list[set[int]]:
        """Return for each call the earlier ones of its piece that have to be done before: by the blocks they touch."""
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


def _is_launched(piece: _CallSequence, compiled: Collection[str | None]) -> bool:
    """Tell whether a piece is more than one call that launches kernels."""
    return (
        piece.device.kind != "cpu"
        and len(piece.calls) > 1
        and all(node.function in compiled for node, _ in piece.calls)
    )


def _pieces(calls: Sequence[tuple[GraphNode, Call]], memory: GraphMemory) -> Iterator[_CallSequence]:
    """Yield the calls in pieces: those on one device that are no copies are together."""
    gathered: list[tuple[GraphNode, Call]] = []
    device: Device | None = None
    for node, call in calls:
        place = memory.device(node.outputs.start)
        if gathered and (node.function == COPY or place != device):
            yield _CallSequence(memory.device(gathered[0][0].outputs.start), gathered)
            gathered = []
        gathered.append((node, call))
        device = place if node.function != COPY else None
    if gathered:
        yield _CallSequence(memory.device(gathered[0][0].outputs.start), gathered)


def _run(calls: Sequence[tuple[GraphNode, Call]]) -> None:
    for node, call in calls:
        if status := call():
            raise CallFailed(node, status)


def _recorded(piece: _CallSequence, earlier: Sequence[Collection[int]] | None) -> Recording | None:
    api: DeviceApi = piece.device.api
    return api.record([lambda call=call: _run([call]) for call in piece.calls], earlier)  # type: ignore[misc]


def _timed_at_once(recording: Recording) -> Callable[[], Iterable[tuple[int, int]]]:
    start = time.perf_counter_ns()
    recording.launch()

    def times() -> Iterator[tuple[int, int]]:
        at = start
        for nanoseconds in recording.nanoseconds():
            yield at, nanoseconds
            at += nanoseconds

    return times
