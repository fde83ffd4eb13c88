"""The output of external generators: functions in separate files, objects, and runtime modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mlfc.byoc.generator import GENERATORS
from mlfc.codegen.operators import OperatorsFile
from mlfc.codegen.unit import Unit
from mlfc.errors import OptionError
from mlfc.tir.ir import External, PrimFunc

_MODULE = "bin"


@dataclass(frozen=True)
class ExternalPart:
    """A part of a module that an external generator made."""

    generator: str
    data: bytes  # a source file or object, or the serialized runtime module of the kind `generator`
    suffix: str  # ``c``, ``o``, or ``bin`` for a runtime module
    name: str  # of the file, without the suffix

    @property
    def is_module(self) -> bool:
        """True for a runtime module."""
        return self.suffix == _MODULE


def external_parts(
    unit: Unit, names: Mapping[str, str], compute_names: Mapping[str, str], first: str
) -> tuple[ExternalPart, ...]:
    """Return the output of external generators for a module: the C and objects of each, then the runtime modules.

    Parameters
    ----------
    unit : Unit
    names : mapping of str to str
        The name that executors use, by kernel.
    compute_names : mapping of str to str
        The C name of the function that computes it, by kernel.
    first : str
        First lines of a source file.
    """
    printed: dict[str, OperatorsFile] = {}
    objects: dict[tuple[str, bytes], None] = {}
    modules = []
    for kernel, external in _externals(unit):
        if external.module is not None:
            store = GENERATORS.get(external.generator).module_bytes
            assert store is not None
            data = store(names[kernel.name], external.module)
            modules.append(ExternalPart(external.generator, data, _MODULE, names[kernel.name]))
            continue
        file = printed.setdefault(external.generator, OperatorsFile(unit.contracts))
        file.declarations += [line for line in external.declarations if line not in file.declarations]
        calls = [call for call in unit.program.calls if call.kernel is kernel]
        file.add_kernel(kernel, compute_names[kernel.name], calls, aliased=unit.aliased_inputs(kernel))
        objects.update(dict.fromkeys((external.generator, data) for data in external.objects))
    files = [(generator, (first + file.text()).encode(), "c") for generator, file in printed.items()]
    files += [(generator, data, "o") for generator, data in objects]
    counts: Counter[str] = Counter()
    parts = []
    for generator, data, suffix in files:
        parts.append(ExternalPart(generator, data, suffix, f"{unit.module}_{generator}{counts[generator]}"))
        counts[generator] += 1
    return (*parts, *modules)


def require_code(unit: Unit) -> None:
    """Raise OptionError if the module requires a runtime module, which C code cannot call."""
    found = {external.generator: kernel for kernel, external in _externals(unit) if external.module is not None}
    for generator, kernel in found.items():
        nodes = [name for call in unit.program.calls if call.kernel is kernel for name in call.nodes]
        raise OptionError(
            f"code compiled ahead of time cannot call the runtime module of '{generator}'",
            place=", ".join(nodes) or None,
            next_step="Compile for the graph executor: --executor graph",
        )


def _externals(unit: Unit) -> list[tuple[PrimFunc, External]]:
    return [(kernel, kernel.external) for kernel in unit.program.kernels if kernel.external is not None]
