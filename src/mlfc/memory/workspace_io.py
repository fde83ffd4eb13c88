"""Inputs and outputs that lie in the workspace, beside intermediates, instead of in arrays of the caller's."""

from __future__ import annotations

from dataclasses import replace

from mlfc.tir.ir import Program, Value


def with_workspace_io(program: Program) -> Program:
    """Return the same program with inputs and outputs that the memory plan places like intermediates.

    The caller writes the inputs before the first call and reads the outputs after the last one; between, the bytes of
    an input that is no longer needed are anybody's.
    """
    moved: dict[Value, Value] = {}

    def move(value: Value) -> Value:
        if value.kind not in ("input", "output"):
            return value
        if value not in moved:
            alias = value.alias_of and move(value.alias_of)
            moved[value] = replace(value, kind="intermediate", alias_of=alias)
        return moved[value]

    return replace(
        program,
        inputs=tuple(map(move, program.inputs)),
        outputs=tuple(map(move, program.outputs)),
        calls=tuple(
            replace(call, inputs=tuple(map(move, call.inputs)), output=move(call.output)) for call in program.calls
        ),
    )
