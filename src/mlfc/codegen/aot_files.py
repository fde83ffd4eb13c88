"""The C around a module's operators, where it is compiled ahead of time."""

from __future__ import annotations

from mlfc.codegen.c_host import c_function, prototype
from mlfc.codegen.c_interface import LICENCE
from mlfc.codegen.host.aot import AotFunctions
from mlfc.codegen.writer import Writer
from mlfc.memory.pools import DEFAULT_POOL, pool_array, pool_section

# the header, not the code, says what tracing means, so that one hook serves profilers on the host and on boards
_TRACE_HOOK = """\
/* with MLFC_TRACE defined, a header sees each operator begin, and end with its output; index is its place */
#ifdef MLFC_TRACE
#include "mlfc_trace.h"
#else
#define MLFC_TRACE_BEGIN(index) ((void)0)
#define MLFC_TRACE_END(index, data, nbytes) ((void)0)
#endif

"""


def entry_file(functions: AotFunctions) -> str:
    """Return the file with the functions that users call, and with the static workspace."""
    interface, pools = functions.interface, functions.plan.pools
    writer = Writer()
    writer.lines([f"/* {LICENCE} */", "#include <stddef.h>", f'#include "{interface.header_name}"', ""])
    if functions.shared_workspace and pools:
        writer.lines([f"extern uint8_t {functions.shared_workspace}[];", ""])
    elif not interface.external_workspace:
        for pool in pools:
            writer.lines(pool_definition(f"static uint8_t {pool_array(pool.name)}", pool.nbytes, pool.name))
    writer.lines([prototype(functions.main_declaration), ""])
    return writer.text() + "\n".join(map(c_function, (*functions.mappers(), functions.entry())))


def main_function(functions: AotFunctions) -> str:
    """Return the function that calls every operator, and the hook around them."""
    hook = _TRACE_HOOK if functions.program.calls else ""
    return hook + c_function(functions.main())


def pool_definition(declared: str, size: int, pool: str = DEFAULT_POOL) -> list[str]:
    """Return the lines that define an array to work in, such as ``uint8_t pool``, for linker scripts to place."""
    macro = "MLF_POOL" if pool == DEFAULT_POOL else f"MLF_POOL_{pool.upper()}"
    return [
        "#if defined(__ELF__)",
        f'#define {macro} __attribute__((section("{pool_section(pool)}"), aligned(64)))',
        "#else",
        f"#define {macro} __attribute__((aligned(64)))",
        "#endif",
        f"{declared}[{size}] {macro};",
        "",
    ]
