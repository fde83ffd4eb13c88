"""CUDA graphs: many launches that the driver gives to a GPU at once, in a fraction of the time of one after another."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from mlfc.runtime.devices.kernel_launch import KernelLaunch


class CudaCalls(Protocol):
    """What graphs need of a GPU's API.

    Attributes
    ----------
    bindings : module
        Of cuda-python.
    stream : CUstream
    """

    bindings: Any
    stream: Any

    def run(self, doing: str, function: Any, *args: Any) -> Any:
        """Call the driver and return its result; raise DeviceError if it fails."""

    def drop(self, doing: str, destroy: Any, thing: Any) -> None:
        """Destroy something of the driver's, once no work has it any more."""

    def new_mark(self) -> CudaMark:
        """Return a mark that is not in the stream yet."""

    def nanoseconds(self, start: CudaMark, end: CudaMark) -> int:
        """Return the device's time between two marks."""


class CudaMark:
    """An event in the stream, destroyed with this object."""

    def __init__(self, event: Any, destroy: Callable[[Any], Any]) -> None:
        self.event = event
        weakref.finalize(self, destroy, event).atexit = False


@dataclass(frozen=True)
class CudaLaunch:
    """A launch as the driver takes it."""

    function: Any
    name: str
    launch: KernelLaunch
    parameters: int  # the address of the addresses of its arguments
    kept: tuple[object, ...]  # what is there

    @property
    def doing(self) -> str:
        """What an error says of it."""
        return f"launching kernel {self.name} over groups {self.launch.grid} of {self.launch.block} items"


class CudaRecording:
    """A graph of launches, which the driver gives to the GPU at once; parallel where they need not wait.

    Parameters
    ----------
    api : CudaApi
    steps : sequence of sequence of CudaLaunch
        The launches of a step come one after another.
    after : sequence of collection of int or None
        As for `DeviceApi.record`.
    """

    def __init__(
        self, api: CudaCalls, steps: Sequence[Sequence[CudaLaunch]], after: Sequence[Collection[int]] | None
    ) -> None:
        self._api = api
        self._steps = steps
        self._marks: list[CudaMark] = []
        cu = api.bindings
        self._graph = graph = api.run("making a graph", cu.cuGraphCreate, 0)
        try:
            if after is None:
                self._add_in_turn()
            else:
                self._add_where_ready(after)
            self._executable = api.run("making a graph", cu.cuGraphInstantiate, graph, 0)
        finally:
            api.drop("making a graph", cu.cuGraphDestroy, graph)
        weakref.finalize(self, api.drop, "dropping a graph", cu.cuGraphExecDestroy, self._executable).atexit = False

    def _add_in_turn(self) -> None:
        """Add steps one after another, with marks around each."""
        ends = self._add_mark([])
        for launches in self._steps:
            ends = self._add_mark(self._add_launches(launches, ends))

    def _add_where_ready(self, after: Sequence[Collection[int]]) -> None:
        ends: list[list[Any]] = []
        for launches, earlier in zip(self._steps, after, strict=True):
            nodes = {int(node): node for step in sorted(earlier) for node in ends[step]}
            ends.append(self._add_launches(launches, list(nodes.values())))

    def _add_launches(self, launches: Sequence[CudaLaunch], ends: list[Any]) -> list[Any]:
        """Add launches behind nodes; return the nodes behind which to go on."""
        cu = self._api.bindings
        for work in launches:
            node = cu.CUDA_KERNEL_NODE_PARAMS()
            node.func = work.function
            node.gridDimX, node.gridDimY, node.gridDimZ = work.launch.grid
            node.blockDimX, node.blockDimY, node.blockDimZ = work.launch.block
            node.sharedMemBytes = work.launch.shared_bytes
            node.kernelParams = work.parameters
            ends = [self._api.run(work.doing, cu.cuGraphAddKernelNode, self._graph, ends, len(ends), node)]
        return ends

    def _add_mark(self, ends: list[Any]) -> list[Any]:
        cu = self._api.bindings
        mark = self._api.new_mark()
        self._marks.append(mark)
        return [
            self._api.run("marking a graph", cu.cuGraphAddEventRecordNode, self._graph, ends, len(ends), mark.event)
        ]

    def launch(self) -> None:
        """Put the graph into the device's stream; raise DeviceError if the driver fails."""
        self._api.run("launching a graph", self._api.bindings.cuGraphLaunch, self._executable, self._api.stream)

    def nanoseconds(self) -> list[int]:
        """Return the device's time for each step of the latest launch, once it is done; empty unless timed."""
        return [self._api.nanoseconds(start, end) for start, end in pairwise(self._marks)]
