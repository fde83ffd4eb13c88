"""Memory budgets: whether compiled modules fit, and what to look at where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlforge.archive.metadata import module_details
from mlforge.errors import BudgetError, OptionError
from mlforge.support.text import shortened

if TYPE_CHECKING:
    from mlforge.compiler import Factory

_LARGEST = 5


def check_budget(factories: Sequence[Factory], *, ram: int | None = None, flash: int | None = None) -> None:
    """Raise BudgetError if the modules together need more than is allowed.

    Parameters
    ----------
    factories : sequence of Factory
    ram : int, optional
        Bytes for the workspaces, inputs and outputs.
    flash : int, optional
        Bytes for the constants. The machine code comes on top: its size is known after a C compiler ran.
    """
    for name, limit in (("ram", ram), ("flash", flash)):
        if limit is not None and limit < 0:
            raise OptionError(f"a budget of {limit} bytes is negative", place=f"--{name}")
    if ram is None and flash is None:
        return
    details = {factory.module_name: module_details(factory) for factory in factories}
    used = sum(item["memory"]["workspace_bytes"] + item["memory"]["io_bytes"] for item in details.values())
    if ram is not None and used > ram:
        raise _ram_error(details, used, ram)
    constants = sum(item["memory"]["constants_bytes"] for item in details.values())
    if flash is not None and constants > flash:
        raise _flash_error(factories, constants, flash)


def _ram_error(details: Mapping[str, dict[str, Any]], used: int, limit: int) -> BudgetError:
    name, heaviest = max(
        details.items(), key=lambda item: int(item[1]["memory"]["workspace_bytes"] + item[1]["memory"]["io_bytes"])
    )
    peak = heaviest["peak"]
    sizes = heaviest["memory"]
    cause = f"{used:,} bytes of RAM are {used - limit:,} over the budget of {limit:,}"
    if len(details) > 1:
        cause += f", the largest part for module '{name}'"
    if peak is None:
        return BudgetError(f"{cause}: all of them are inputs and outputs ({sizes['io_bytes']:,})")
    busiest = shortened(", ".join(peak["nodes"]) or peak["function"])
    largest = ", ".join(f"{shortened(tensor['name'])} ({tensor['bytes']:,})" for tensor in peak["tensors"])
    return BudgetError(
        f"{cause}: workspace {sizes['workspace_bytes']:,}, inputs and outputs {sizes['io_bytes']:,}; "
        f"the peak is in {busiest} with {peak['live_bytes']:,} live bytes; "
        f"the largest tensors there: {largest}",
        next_step="Make these tensors smaller, or quantize the model",
    )


def _flash_error(factories: Sequence[Factory], used: int, limit: int) -> BudgetError:
    values = [value for factory in factories for value in factory.program.constants]
    largest = sorted(values, key=lambda value: (-value.nbytes, value.name))[:_LARGEST]
    listed = ", ".join(f"{shortened(value.name)} ({value.nbytes:,})" for value in largest)
    return BudgetError(
        f"{used:,} bytes of constants are {used - limit:,} over the budget of {limit:,}, and the machine code comes on "
        f"top; the largest: {listed}",
        next_step="Make these layers smaller, or quantize the model",
    )
