"""The C around a module's operators: entry, main function, packed functions, and their table for the C runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.c_host import WIDTH, c_function, prototype, struct_definition
from mlfc.codegen.constants import section_macro
from mlfc.codegen.host.aot import STATE_ARRAY, STATE_FLAG, AotFunctions
from mlfc.codegen.host.packed import ARGUMENT, BOOL_CODE, CHECKS, IMPORTED, LAUNCHES
from mlfc.codegen.templates import LICENCE
from mlfc.codegen.writer import Writer, packed_head
from mlfc.memory.plan import DEFAULT_POOL, STATE_SECTION, pool_array, pool_section
from mlfc.tir.host import Function

INCLUDES = ("#include <tvm/runtime/c_runtime_api.h>", "#include <tvm/runtime/c_backend_api.h>")


def entry_file(functions: AotFunctions) -> str:
    """Return the file with the functions that users call and the static workspace."""
    interface, pools = functions.interface, functions.plan.pools
    writer = Writer()
    writer.lines([f"/* {LICENCE} */", "#include <stddef.h>", f'#include "{interface.header_name}"', ""])
    if functions.shared_workspace and pools:
        writer.lines([f"extern uint8_t {functions.shared_workspace}[];", ""])
    elif not interface.external_workspace:
        for pool in pools:
            writer.lines(pool_definition(f"static uint8_t {pool_array(pool.name)}", pool.nbytes, pool.name))
    if interface.states and not interface.external_workspace:
        macro = section_macro("MLF_STATE", STATE_SECTION)
        writer.lines([*macro, *_aligned_array(f"static uint8_t {STATE_ARRAY}", interface.state_bytes, "MLF_STATE")])
        if interface.has_state_flag:
            writer.line(f"static uint8_t {STATE_FLAG}; /* start-up code makes it 0 */")
        writer.line()
    writer.lines([prototype(functions.main_declaration), ""])
    written = (*functions.mappers(), *functions.states.functions(), functions.entry())
    return writer.text() + "\n".join(map(c_function, written))


def pool_definition(declared: str, size: int, pool: str = DEFAULT_POOL) -> list[str]:
    """Return the lines that define a memory array, such as ``uint8_t pool``, for placement by linker scripts."""
    macro = "MLF_POOL" if pool == DEFAULT_POOL else f"MLF_POOL_{pool.upper()}"
    return [*section_macro(macro, pool_section(pool)), *_aligned_array(declared, size, macro), ""]


def _aligned_array(declared: str, size: int, macro: str) -> list[str]:
    """Return the lines that define an aligned byte array: by attributes, or as an array of 64-bit words."""
    head, name = declared.rsplit("uint8_t ", 1)
    is_static = bool(head)
    words = f"{head}uint64_t {name}{'_words' if is_static else ''}[{-(-size // 8)}];"
    access = [f"#define {name} ((uint8_t *){name}_words)"] if is_static else []
    return ["#if defined(__GNUC__)", f"{declared}[{size}] {macro};", "#else", words, *access, "#endif"]


def checks() -> str:
    """Return the function that checks the arguments of packed functions, with the declarations it needs."""
    return _texts(
        f"""/* bool in newer DLPack: the headers of TVM have no name for it */
enum {{ {BOOL_CODE.text} = {BOOL_CODE.value} }};

/* what an argument must be: kind and bytes of an element, number of elements */
{struct_definition(ARGUMENT)}""",
        CHECKS,
    )


def launches(functions: Sequence[Function] = LAUNCHES) -> str:
    """Return the functions that look up a device's kernels and launch them."""
    return _texts(
        f"""/* where the loader of the library puts its handle; the runtime that a library carries has it, too */
extern TVM_DLL void *__tvm_module_ctx;
#if defined(__GNUC__) && !defined(_WIN32) && !defined(__APPLE__)
__attribute__((weak)) void *__tvm_module_ctx = NULL;
#endif

/* a function of an imported module or of the process, and the context in which it was found */
{struct_definition(IMPORTED)}""",
        functions,
    )


def _texts(first: str, functions: Sequence[Function]) -> str:
    return "\n".join([first, *(c_function(function, WIDTH) for function in functions)]).rstrip("\n")


def registry_file(names: Sequence[str], licence: str) -> str:
    """Return the file that registers packed functions with the C runtime: ``TVMSystemLibEntryPoint``."""
    writer = Writer()
    writer.lines([f"/* {licence} */", "#include <tvm/runtime/crt/module.h>", ""])
    writer.lines([f"{packed_head(name)};" for name in names])
    write_registry(writer, dict(zip(names, names, strict=True)))
    return writer.text()


def write_registry(writer: Writer, functions: Mapping[str, str]) -> None:
    """Write the function table and ``TVMSystemLibEntryPoint``; `functions` maps lookup names to C names."""
    names = list(functions)
    count = ", ".join(f"(char){part}" for part in len(names).to_bytes(2, "little"))
    writer.lines(["", "/* their number in two bytes, the low one first, then their names, each with its zero */"])
    with writer.block("static const struct", "} function_names = {"):
        writer.line("char count[2];")
        writer.lines([f"char name_{index}[{len(name) + 1}];" for index, name in enumerate(names)])
        writer.line("char end[1];")
    with writer.indented():
        writer.line(f"{{{count}}},")
        writer.lines([f'"{name}",' for name in names])
        writer.line('"",')
    writer.lines(["};", ""])
    with writer.block(f"static const TVMBackendPackedCFunc functions[{max(1, len(names))}] =", "};"):
        writer.lines([f"{symbol}," for symbol in functions.values()] or ["NULL,"])
    writer.lines(["", "static const TVMFuncRegistry registry = {(const char *)&function_names, functions};"])
    writer.lines(["static const TVMModule system_library = {&registry};", ""])
    with writer.block("const TVMModule *TVMSystemLibEntryPoint(void)"):
        writer.line("return &system_library;")
