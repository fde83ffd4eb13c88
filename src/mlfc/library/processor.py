"""What compilers are told of the processor that a library is for."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.library.toolchain import NATIVE, Compiler
from mlfc.support.platforms import this_platform
from mlfc.target.features import LIBRARY_CPUS

_CHOICES = ("-march", "-mcpu", "-mtune", "-target", "--target")


def processor_flags(compiler: Compiler, cpu: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the flags that say which processor a library is for.

    Parameters
    ----------
    compiler : Compiler
    cpu : str
        Of the target that the code was generated for. One that the library's machine cannot have says nothing.
    options : sequence of str
        The user's flags, which count instead where they speak of processors.

    Notes
    -----
    With nothing said, code for this machine uses all that its processor has, and other code what all of the kind have.
    """
    if any(option.startswith(_CHOICES) for option in options):
        return ()
    machine = compiler.platform()
    if any(cpu.startswith(start) and machine.arch == LIBRARY_CPUS.get(start) for start in LIBRARY_CPUS):
        if compiler.is_zig:
            return (f"-mcpu={cpu.replace('-', '_')}",)
        return (f"-march={cpu}",) if machine.arch == "x86_64" else (f"-mcpu={cpu}",)
    here = this_platform()
    if compiler.target is None and (machine.arch, machine.system) == (here.arch, here.system):
        return (NATIVE,)
    return ()
