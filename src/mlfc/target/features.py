"""What a target can do, as the templates need to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """Abilities of a target.

    Attributes
    ----------
    vector_bytes : int
        Width of the vectors that templates write with, 0 for a core without useful vectors (Cortex-M).
        64 is also right for machines with 16 or 32 byte registers: compilers split such vectors.
    vector_registers : int
        Registers of `vector_bytes` that a tile may fill.
    dot4 : bool
        The int8 templates may use ``dot4_u8s8`` (its portable form is right everywhere, so this
        only says which shape of loop is worth while).
    dsp : bool
        The int8 templates may use ``dot2`` and what feeds it: ARM's DSP extension does it in one instruction.
    mve : bool
        The int8 templates may use ``dots1``, ``dots2`` and ``taps``, and loops over elements become loops over four
        lanes: ARM's vector extension for microcontrollers (Helium) has instructions for both.
    gpu : bool
        Kernels are launched over a grid of work-groups; templates bind loops to groups and their items.
    group_items : int
        Most work-items of a group.
    shared_bytes : int
        Most bytes that the work-items of a group may have together.
    wide_double : bool
        C's double has 64 bits.
    optimize : str
        ``speed`` or ``size``.
    """

    vector_bytes: int = 64
    vector_registers: int = 16
    dot4: bool = True
    dsp: bool = False
    mve: bool = False
    gpu: bool = False
    group_items: int = 256
    shared_bytes: int = 32768
    wide_double: bool = True
    optimize: str = "speed"

    @property
    def is_microcontroller(self) -> bool:
        """Whether it is a core that runs no operating system, hence no other runtime."""
        return self.vector_bytes == 0 and not self.gpu
