"""The numbers in which kernels of one shared function differ: a struct, and one constant of it for each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlfc.codegen.c_types import literal, scalar_type
from mlfc.codegen.writer import Writer, comment_text
from mlfc.support import dtypes
from mlfc.support.c_names import unique
from mlfc.tir.parameters import Parameter, SharedFunction

_NARROW = ("int8", "int16")


@dataclass(frozen=True, eq=False)
class ValuesField:
    """A field of the struct: the parameter that it holds, its name, and its dtype, which may be narrower."""

    parameter: Parameter
    name: str
    dtype: str


@dataclass(frozen=True, eq=False)
class KernelValues:
    """The struct of a shared function."""

    shared: SharedFunction
    function: str  # its C name

    @property
    def type_name(self) -> str:
        """The C type."""
        return f"struct {self.function}_values"

    def symbol(self, kernel: str) -> str:
        """Return the C name of the constant of a kernel of that C name."""
        return f"{kernel}_values"

    def fields(self) -> tuple[ValuesField, ...]:
        """Return the fields, the widest first, so that nothing is left free between them."""
        parameters = self.shared.parameters
        names = unique(parameter.var.name for parameter in parameters)
        fields = [
            ValuesField(parameter, name, _narrowest(parameter))
            for parameter, name in zip(parameters, names, strict=True)
        ]
        return tuple(sorted(fields, key=lambda field: -dtypes.nbytes(field.dtype)))

    def declaration(self) -> str:
        """Return the definition of the struct."""
        writer = Writer()
        writer.line(f"/* the numbers in which the kernels of {comment_text(self.function)} differ */")
        with writer.block(self.type_name, "};"):
            writer.lines([f"{scalar_type(field.dtype)} {field.name};" for field in self.fields()])
        return writer.text()

    def definition(self, member: int, kernel: str, comment: Sequence[str]) -> str:
        """Return the constant of one kernel under a comment."""
        writer = Writer()
        writer.lines(list(comment))
        with writer.block(f"static const {self.type_name} {self.symbol(kernel)} =", "};"):
            writer.lines([f"{line}," for line in self._initializers(member)])
        return writer.text()

    def _initializers(self, member: int) -> Iterator[str]:
        for field in self.fields():
            value = field.parameter.values[member]
            yield f".{field.name} = {value if field.dtype in _NARROW else literal(value, field.dtype)}"


def _narrowest(parameter: Parameter) -> str:
    """Return the narrowest dtype that holds all values of a parameter."""
    dtype = parameter.var.dtype
    if dtype != "int32":
        return dtype
    for narrow in _NARROW:
        low, high = dtypes.limits(narrow)
        if all(low <= value <= high for value in parameter.values):
            return narrow
    return dtype
