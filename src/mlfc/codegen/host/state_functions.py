"""The functions of the C interface that reset, save and restore a module's states."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.codegen.c_interface import Interface
from mlfc.tir import host
from mlfc.tir.host import INT32, NULL, UINT8, VOID, Body, Expr, Function, Name, const, pointer

STATE_ARRAY = "mlfc_state"
"""The static array of a module's states in generated code."""
STATE_FLAG = "mlfc_state_is_set"
"""The static variable beside it, where states do not begin as zeros."""

_BYTES, _READ_ONLY = pointer(UINT8), pointer(const(UINT8))


@dataclass(frozen=True, eq=False)
class StateFunctions:
    """``..._state_reset``, ``..._state_save`` and ``..._state_restore``.

    A static array begins as zeros. Where that is not what states begin with, a variable is 1 once they have been set:
    whoever comes first resets them.
    """

    interface: Interface
    given: tuple[Name, ...]  # the parameter with the caller's memories, if the states are among them

    @property
    def memory(self) -> Expr:
        """The memory of the states."""
        if self.interface.external_workspace:
            return self.given[0]["state"].cast(_BYTES)
        return host.Global(_BYTES, STATE_ARRAY, is_array=True)

    def set_first(self, body: Body) -> None:
        """Reset states that are not zeros, unless they have been set."""
        if self.interface.has_state_flag:
            with body.where(host.Global(UINT8, STATE_FLAG).eq(0)):
                body.requires(self._function("reset")(*self.given))

    def functions(self) -> tuple[Function, ...]:
        """Return all three."""
        if not self.interface.states:
            return ()
        other = Name(pointer(VOID), "to")
        save = self._start(other)
        self.set_first(save)
        self._copy(save, other.cast(_BYTES), self.memory)
        source = Name(pointer(const(VOID)), "from")
        restore = self._start(source)
        self._copy(restore, self.memory, source.cast(_READ_ONLY))
        self._note_set(restore)
        for body in (save, restore):
            body.returns(0)
        return (
            self._function("reset", self._reset()),
            self._function("save", save, other),
            self._function("restore", restore, source),
        )

    def _reset(self) -> Body:
        body = self._start()
        for number, state in enumerate(self.interface.states):
            place = self.memory + state.offset if state.offset else self.memory
            image = state.image
            is_uniform = (image == image[:1]).all()
            values = None
            if not is_uniform:
                rows = [host.Number(UINT8, int(item)) for item in image]
                values = body.table(f"initial_{number}", UINT8, rows)
            with body.loop("i", image.size) as index:
                body.assign(place[index], int(image[0]) if values is None else values[index])
        self._note_set(body)
        body.returns(0)
        return body

    def _start(self, *others: Name) -> Body:
        body = Body()
        pointers: list[Expr] = [*self.given, *others, *(memories["state"] for memories in self.given)]
        for item in pointers:
            body.fails_where(item.eq(NULL))
        return body

    def _copy(self, body: Body, to: Expr, source: Expr) -> None:
        with body.loop("i", self.interface.state_bytes) as index:
            body.assign(to[index], source[index])

    def _note_set(self, body: Body) -> None:
        if self.interface.has_state_flag:
            body.assign(host.Global(UINT8, STATE_FLAG), 1)

    def _function(self, what: str, body: Body | None = None, *others: Name) -> Function:
        name = self.interface.state_function(what)
        return Function(name, INT32, (*self.given, *others), None if body is None else body.stmts)
