"""Where tensors live, in DLPack's numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes
    ----------
    kind : str
    type_code : int
        DLDeviceType: 1 is the CPU.
    index : int
    """

    kind: str
    type_code: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"


def cpu(index: int = 0) -> Device:
    """Return the host's processor."""
    return Device("cpu", 1, index)
