"""What boards cannot do with modules of the virtual machine."""

from __future__ import annotations

from mlfc.errors import OptionError
from mlfc.support.module_info import ModuleInterface
from mlfc.support.vm_info import bounding_option


def unbounded(details: ModuleInterface | None, name: str | None = None, place: str | None = None) -> OptionError:
    """Return the error of a module whose memory has no bound."""
    module = "the model" if name is None else f"module '{name}'"
    symbols = details.vm.symbols if details and details.vm else ()
    option = bounding_option(details.inputs if details else (), symbols)
    return OptionError(
        f"the memory of {module} has no bound, and firmware has no heap",
        place=place,
        next_step=f"Compile the model with bounds of its open extents: {option}",
    )


def refuse_interpreted(name: str, details: ModuleInterface) -> None:
    """Raise OptionError for a module of the virtual machine: firmware that takes inputs has arrays of fixed sizes."""
    if details.executor != "vm":
        return
    if details.vm is None or details.vm.work_bytes is None:
        raise unbounded(details, name)
    raise OptionError(
        f"module '{name}' is for the virtual machine, whose inputs have no fixed size; on a board it runs test vectors",
        next_step="Compile it with --test-vectors 3 and run it with --selftest",
    )
