"""What an inference takes, in the units of an emulator, and the time of that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """What an inference takes, or why that is not known."""

    instructions: int | None = None
    cycles: int | None = None  # where the emulator knows the duration of each instruction
    unknown: str = ""

    def milliseconds(self, clock_hz: int | None) -> float | None:
        """Return the time at a clock: of cycles, else of instructions that take a cycle each."""
        taken = self.instructions if self.cycles is None else self.cycles
        return None if taken is None or not clock_hz else 1000 * taken / clock_hz
