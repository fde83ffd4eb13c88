"""What applications call: typed arrays for a module's inputs and outputs, and one function that runs it.

The C interface of generated code takes structs of pointers and, on request, the workspace. Firmware that runs one
model has one buffer for each tensor, so projects carry a C file with these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlforge.codegen.c_interface import POOL, RESERVED
from mlforge.codegen.c_types import scalar_type
from mlforge.micro.project.render import render
from mlforge.micro.project.template import ProjectModel
from mlforge.support import dtypes
from mlforge.support.c_names import unique

_PRINTED = {"uint64": ("%llu", "unsigned long long"), "int64": ("%lld", "long long")}


@dataclass(frozen=True)
class ModelTensor:
    """An input or output of a module.

    Attributes
    ----------
    name : str
        The model's own, of any characters.
    field : str
        In the structs of the C interface and of the test vectors.
    array, macro : str
        The array of the application's interface, and what its macros start with.
    shape : tuple of int
    dtype : str
    scale, zero_point : float and int, or None
    """

    name: str
    field: str
    array: str
    macro: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None
    zero_point: int | None

    @property
    def count(self) -> int:
        """Number of elements; at least one, for C has no arrays of none."""
        return max(1, prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.count * dtypes.nbytes(self.dtype)

    @property
    def c_type(self) -> str:
        """C's type of an element."""
        return scalar_type(self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether C has it as a floating-point number: halves are bits to it."""
        return self.c_type in ("float", "double")

    @property
    def printed(self) -> tuple[str, str]:
        """How printf takes an element: the conversion, and the type to cast to."""
        if self.is_float:
            return "%g", "double"
        return _PRINTED.get(self.dtype, ("%lu", "unsigned long") if self.c_type[0] == "u" else ("%ld", "long"))

    @property
    def description(self) -> str:
        """Shape, type and meaning, in one line."""
        text = f"{self.name[:200]}: {' x '.join(map(str, self.shape)) or 'scalar'} {self.dtype}"
        if self.scale is not None:
            text += f", real = {_digits(self.scale)} * (value - {self.zero_point})"
        return text

    @property
    def scale_digits(self) -> str:
        """The scale as a literal of C."""
        return f"{_digits(self.scale or 0.0)}f"


@dataclass(frozen=True)
class ModelInterface:
    """The names by which an application calls a module.

    Attributes
    ----------
    name : str
        The module's.
    inputs, outputs : tuple of ModelTensor
    """

    name: str
    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]

    @property
    def header(self) -> str:
        """The header's file name."""
        return f"{self.name}_model.h"

    @property
    def source(self) -> str:
        """The C file's name."""
        return f"{self.name}_model.c"

    @property
    def run(self) -> str:
        """The function that runs the module."""
        return f"{self.name}_run"

    @property
    def prints_floats(self) -> bool:
        """Whether printing its outputs takes floating-point conversions."""
        return any(item.is_float for item in self.outputs)


def interface_of(model: ProjectModel) -> ModelInterface:
    """Return the application's names for a module."""
    inputs, outputs = model.details["inputs"], model.details["outputs"]
    fields = unique((entry["name"] for entry in (*inputs, *outputs)), RESERVED)
    return ModelInterface(
        model.name,
        _tensors(f"{model.name}_input", inputs, fields[: len(inputs)]),
        _tensors(f"{model.name}_output", outputs, fields[len(inputs) :]),
    )


def interface_files(model: ProjectModel) -> dict[str, bytes]:
    """Return ``<module>_model.h`` and ``<module>_model.c``."""
    interface = interface_of(model)
    values = {
        "model": interface,
        "prefix": f"tvmgen_{model.name}",
        "pool": POOL if model.details["external_workspace"] else None,
    }
    return {
        interface.header: render("application/model.h", **values),
        interface.source: render("application/model.c", **values),
    }


def main_file(model: ProjectModel, entry: str = "int main(void)") -> bytes:
    """Return a main that runs the module once, on the first test vector where there is one, and prints its outputs.

    Parameters
    ----------
    model : ProjectModel
    entry : str
        The declaration of the function that the system starts; one of type ``void`` returns nothing.
    """
    is_void = entry.startswith("void")
    return render(
        "application/main.c",
        model=interface_of(model),
        entry=entry,
        has_vectors=bool(model.vectors),
        failed="" if is_void else " 1",
        succeeded="" if is_void else " 0",
    )


def _tensors(stem: str, entries: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> tuple[ModelTensor, ...]:
    """Return tensors whose arrays are named after their fields, where there are several."""
    arrays = [stem] if len(fields) == 1 else [f"{stem}_{field}" for field in fields]
    return tuple(
        ModelTensor(
            entry["name"], field, array, array.upper(), tuple(entry["shape"]), entry["dtype"], entry["scale"],
            entry["zero_point"],
        )
        for entry, field, array in zip(entries, fields, arrays, strict=True)
    )  # fmt: skip


def _digits(scale: float) -> str:
    return repr(float(scale))
