"""Tuning results for kernels: values of template parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = "int | str | tuple[int, ...]"
Choices: TypeAlias = Mapping[str, str]
"""Values, in the form of `text_of`, by parameter name."""


def text_of(value: Value) -> str:
    """Return a value as written in tuning logs: ``8``, ``1x7x4``, ``pixels``."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class TemplateParameter:
    """A tunable parameter of a template: the default of the template's rule, and the allowed values."""

    default: Value
    allowed: Callable[[], Sequence[Value]]  # evaluated only when tuning


@dataclass(frozen=True, eq=False)
class Tuned:
    """The choices for kernels of one processor, for `transform.lower_group`."""

    kernels: Mapping[str, Choices]
    # the choices of the processor whose weight packing is used, if kernels for several share the weights
    packing: Mapping[str, Choices] = field(default_factory=dict)
    # whether the choices are another processor's, so kernels of this one may have other parameters
    is_borrowed: bool = False
    used: set[str] = field(default_factory=set)  # keys of the kernels that were looked up
    refused: set[str] = field(default_factory=set)  # keys of kernels whose template lacks a chosen parameter or value


TEMPLATES = 1
"""Version of the template parameters; increase it when the meaning of one changes."""
