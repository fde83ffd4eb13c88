"""A C function that takes the addresses of all tensors of a module, and hands them to its C interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlfc.codegen.writer import Writer
from mlfc.errors import OptionError

_ALIGNMENT = 64


def require_no_loaded(pools: Iterable[str], module: str) -> None:
    """Raise OptionError if there are memories of constants that the C interface's caller must load."""
    names = ", ".join(pools)
    if names:
        raise OptionError(
            f"functions on tensors have no argument for constants that the caller loads: {names}",
            place=module,
            next_step="Compile it without --load-constants",
        )


@dataclass(frozen=True)
class Slot:
    """A tensor: its field in the C interface's struct, and its bytes."""

    field: str
    nbytes: int


@dataclass(frozen=True)
class RunFunction:
    """What the function knows of a module.

    Attributes
    ----------
    prefix : str
        What the module's symbols start with.
    entry : str
        The C interface's function.
    inputs, outputs : tuple of Slot
    pools : tuple of (str, int)
        Name and bytes of the memories that the caller of the C interface passes in: the runtime's workspace.
    workspace_io : bool
        Inputs and outputs lie in the workspace, so they are copied there and back.
    """

    prefix: str
    entry: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    pools: tuple[tuple[str, int], ...] = ()
    workspace_io: bool = False

    def write(self, writer: Writer, name: str = "run") -> None:
        """Write the function: inputs first, then outputs."""
        groups = (("inputs", self.inputs), ("outputs", self.outputs))
        with writer.block(f"static int32_t {name}(void *const *data)"):
            writer.lines([f"struct {self.prefix}_{kind} {kind};" for kind, _ in groups])
            if self.pools:
                writer.lines([f"struct {self.prefix}_workspace_pools pools;", "void *memory;", "uint8_t *pool;"])
            writer.line("int32_t status;")
            if not (self.inputs or self.outputs):
                writer.line("(void)data;")
            if self.pools:
                self._take_pools(writer)
            self._call(writer, groups)
            if self.pools:
                with writer.block("if (TVMBackendFreeWorkspace(kDLCPU, 0, memory) != 0)"):
                    writer.line("return -1;")
            writer.line("return status;")
        writer.line()

    def _take_pools(self, writer: Writer) -> None:
        size = sum(-(-nbytes // _ALIGNMENT) * _ALIGNMENT for _, nbytes in self.pools) + _ALIGNMENT
        writer.line(f"memory = TVMBackendAllocWorkspace(kDLCPU, 0, {size}, kDLUInt, 8);")
        with writer.block("if (memory == NULL)"):
            writer.line("return -1;")
        writer.line(f"pool = (uint8_t *)memory + ({_ALIGNMENT} - (uintptr_t)memory % {_ALIGNMENT}) % {_ALIGNMENT};")
        offset = 0
        for name, nbytes in self.pools:
            writer.line(f"pools.{name} = pool + {offset};")
            offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def _call(self, writer: Writer, groups: Sequence[tuple[str, Sequence[Slot]]]) -> None:
        given = ["&pools"] if self.pools else []
        first = {"inputs": 0, "outputs": len(self.inputs)}
        if self.workspace_io:
            for kind, _ in groups:
                writer.line(f"{kind} = {self.prefix}_map_{kind}({', '.join(given)});")
            writer.lines(_copies("inputs", self.inputs, 0))
            writer.line(f"status = {self.entry}({', '.join(given)});")
            writer.lines(_copies("outputs", self.outputs, len(self.inputs)))
            return
        for kind, group in groups:
            writer.lines([f"{kind}.{slot.field} = data[{first[kind] + index}];" for index, slot in enumerate(group)])
            if not group:
                writer.line(f"{kind}.unused = NULL;")
        writer.line(f"status = {self.entry}({', '.join(['&inputs', '&outputs', *given])});")


def _copies(kind: str, group: Sequence[Slot], first: int) -> list[str]:
    lines = []
    for index, slot in enumerate(group):
        ends = (f"{kind}.{slot.field}", f"data[{first + index}]")
        target, source = ends if kind == "inputs" else reversed(ends)
        lines.append(f"memcpy({target}, {source}, {slot.nbytes});")
    return lines
