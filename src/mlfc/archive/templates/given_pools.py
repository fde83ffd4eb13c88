"""The memories that a caller hands to a module, as a program without files has them: arrays in sections."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.archive.templates.subject import Subject
from mlfc.codegen.constants import LARGEST_MACRO, section
from mlfc.errors import OptionError
from mlfc.memory.pools import DEFAULT_POOL, POOL_ALIGNMENT, pool_section


@dataclass(frozen=True)
class GivenPool:
    """An array that a program hands to a module."""

    name: str  # of the memory
    array: str
    size: str  # the macro with its bytes
    section: str
    data: str | None  # the macro with what it holds; None for memory to work in

    @property
    def definition(self) -> list[str]:
        """The lines that define it; what an attribute says of the section only ELF has a place for."""
        kind, value = ("const uint8_t", f" = {{{self.data}}}") if self.data else ("uint8_t", "")
        return [
            "#if defined(__ELF__)",
            f'__attribute__((section("{self.section}"), aligned({POOL_ALIGNMENT})))',
            "#endif",
            f"static {kind} {self.array}[{self.size}]{value};",
        ]


def given_pools(subject: Subject) -> tuple[GivenPool, ...]:
    """Return the memories of a module in the order of the struct that takes them.

    Raises
    ------
    OptionError
        If the module has more constants to load than its header spells out.
    """
    pools = [
        GivenPool(
            name,
            "workspace" if name == DEFAULT_POOL else f"workspace_{name}",
            subject.pool_size(name),
            pool_section(name),
            None,
        )
        for name in subject.passed_pools
    ]
    sizes = {pool.name: pool.nbytes for pool in subject.details.constant_pools}
    for name, path in subject.loaded.items():
        if sizes[name] > LARGEST_MACRO:
            raise OptionError(
                f"the {sizes[name]:,} bytes of constants '{name}' are more than the {LARGEST_MACRO:,} that firmware "
                "can hold as an array",
                place=path,
                next_step="Compile with --constants instead of --load-constants, or load the file yourself",
            )
        size = subject.pool_size(name)
        data = f"{size.removesuffix('_SIZE')}_DATA"
        pools.append(GivenPool(name, f"constants_{name}", size, section(name), data))
    return tuple(pools)
