"""What measurements chose for kernels: values of the parameters that templates have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = "int | str | tuple[int, ...]"
Choices: TypeAlias = Mapping[str, str]
"""Values, as `text_of` writes them, by the names of a template's parameters."""


def text_of(value: Value) -> str:
    """Return a value as logs have it: ``8``, ``1x7x4``, ``pixels``."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class TemplateParameter:
    """A parameter that a template decides by a rule: what the rule says, and what else there is."""

    default: Value
    allowed: Callable[[], Sequence[Value]]  # asked by who tunes: a template that nobody tunes spends no time on it


@dataclass(frozen=True, eq=False)
class Tuned:
    """The choices for kernels of one processor, by `transform.lower_group`."""

    kernels: Mapping[str, Choices]
    # of the processor in whose order weights are packed, where kernels for several read the same
    packing: Mapping[str, Choices] = field(default_factory=dict)
    # whether the choices are another processor's: kernels of this one may have other parameters
    is_borrowed: bool = False
    used: set[str] = field(default_factory=set)  # keys of kernels that were asked for
    refused: set[str] = field(default_factory=set)  # those of which a template had no such value


TEMPLATES = 1
"""The version of the templates' parameters: to be raised when one of them means something else."""
