"""The demo: a C program that runs every module of an archive and checks what comes out."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.archive.templates import filled, text_of
from mlfc.archive.templates.given_pools import given_pools
from mlfc.archive.templates.subject import DemoTensor, Subject
from mlfc.archive.templates.vectors import count_macro, vector_files
from mlfc.codegen.writer import Writer, c_string, comment_text
from mlfc.memory.pools import DEFAULT_POOL

FOLDER = "demo"
_WITH_VECTORS = "It knows outputs of this very code for some inputs, and fails where they differ."
_WITHOUT = "It runs on zeros: compile with --test-vectors N to have inputs and expected outputs in it."


def demo_files(subjects: Sequence[Subject]) -> dict[str, bytes]:
    """Return the demo's files by path in the archive."""
    graphs = any(not item.is_aot for item in subjects)
    files = {"demo.c": _program(subjects, graphs=graphs).encode()}
    files.update(check_files())
    wanted = {"graph_runner": graphs, "pool_loader": any(item.loaded for item in subjects)}
    for name in (name for name, needed in wanted.items() if needed):
        files.update({f"{name}{suffix}": text_of(f"{name}{suffix}").encode() for suffix in (".c", ".h")})
    for item in subjects:
        files.update(vector_files(item))
    return {f"{FOLDER}/{name}": data for name, data in files.items()}


def check_files() -> dict[str, bytes]:
    """Return the C that compares tensors, by name; it writes through a function of the program's."""
    names = ("tensor_check.c", "tensor_check.h", "tensor_text.c", "tensor_text.h")
    return {name: text_of(name).encode() for name in names}


def _program(subjects: Sequence[Subject], *, graphs: bool) -> str:
    checked = any(item.vectors for item in subjects)
    includes = ['#include "tensor_check.h"']
    if graphs:
        includes.append('#include "graph_runner.h"')
    if any(item.loaded for item in subjects):
        includes.append('#include "pool_loader.h"')
    for item in subjects:
        if item.is_aot:
            includes.append(f'#include "{item.prefix}.h"')
        if item.vectors:
            includes.append(f'#include "{item.name}_vectors.h"')
    about = [_WITH_VECTORS if checked else _WITHOUT]
    if any(map(_reads, subjects)):
        what = "Graphs and parameters" if graphs else "Constants"
        about.append(f"{what} are read from the extracted archive: the folder is the first argument,")
        about.append("else the one that it is started in.")
    values = {
        "about": "\n".join(f" * {line}" for line in about),
        "includes": "\n".join(includes),
        "functions": "\n".join(module_function(item, checked=bool(item.vectors)) for item in subjects).rstrip("\n"),
        "arguments": '  const char *folder = argc > 1 ? argv[1] : ".";'
        if any(map(_reads, subjects))
        else "  (void)argc;\n  (void)argv;",
        "calls": "\n".join(_calls(subjects, graphs=graphs)),
    }
    return filled("demo.c.in", values)


def _reads(item: Subject) -> bool:
    """Tell whether the module needs files of the archive when it runs."""
    return not item.is_aot or bool(item.loaded)


def _calls(subjects: Sequence[Subject], *, graphs: bool) -> list[str]:
    lines = ["  if (graph_start() != 0) {", "    return 1;", "  }"] if graphs else []
    return lines + [f"  demo_{item.name}({'&checks, folder' if _reads(item) else '&checks'});" for item in subjects]


def module_function(item: Subject, *, checked: bool, embedded: bool = False) -> str:
    """Return the C function ``demo_<module>``, which runs a module.

    Parameters
    ----------
    checked : bool
        On the vectors of its file, and compares what comes out; else on zeros, and prints it.
    embedded : bool
        For a program without files: what it would read from them is in its code.
    """
    writer = Writer()
    if item.is_aot and embedded:
        for pool in given_pools(item):
            writer.lines([*pool.definition, ""])
    writer.line(f"/* Runs module {item.name} */")
    folder = ", const char *folder" if _reads(item) and not embedded else ""
    with writer.block(f"static void demo_{item.name}(struct tensor_checks *checks{folder})"):
        if item.maps_tensors:
            _aot_setup(writer, item, embedded=embedded)
            _found(writer, item)
        else:
            for tensor in item.inputs:
                writer.line(f"static {tensor.c_type} {_input(tensor)}[{tensor.c_length}];{_comment(tensor)}")
            for tensor in item.outputs:
                writer.line(f"static {tensor.c_type} {_output(tensor)}[{tensor.c_length}];{_comment(tensor)}")
            _found(writer, item)
            if item.is_aot:
                _aot_setup(writer, item, embedded=embedded)
            else:
                _graph_setup(writer, item)
        if not embedded:
            _loads(writer, item)
        _assignments(writer, item)
        if checked:
            with writer.block(f"for (size_t vector = 0; vector < {count_macro(item)}; ++vector)"):
                for tensor in item.inputs:
                    source = f"{item.name}_vectors[vector].{tensor.field}"
                    writer.line(f"memcpy({_input(tensor, item)}, {source}, {_whole(item, tensor)});")
                _run(writer, item, checked=True)
        else:
            for tensor in item.inputs if item.maps_tensors else ():
                writer.line(f"memset({_input(tensor, item)}, 0, {_whole(item, tensor)});")
            _run(writer, item, checked=False)
        if not item.is_aot:
            writer.line("TVMGraphExecutor_Release(&executor);")
    return writer.text()


def _aot_setup(writer: Writer, item: Subject, *, embedded: bool) -> None:
    pools = [*item.passed_pools, *item.loaded]
    if pools and embedded:
        places = ", ".join(pool.array for pool in given_pools(item))
        writer.line(f"struct {item.prefix}_workspace_pools pools = {{{places}}};")
    elif pools:
        writer.line("/* what is handed over starts at a multiple of 64 */")
        for pool in pools:
            writer.line(f"static uint8_t {_pool(item, pool)}[{item.pool_size(pool)} + 63];")
        places = ", ".join(_aligned(_pool(item, pool)) for pool in pools)
        writer.line(f"struct {item.prefix}_workspace_pools pools = {{{places}}};")
    if item.maps_tensors:
        given = "&pools" if pools else ""
        writer.line(f"struct {item.prefix}_inputs inputs = {item.prefix}_map_inputs({given});")
        writer.line(f"struct {item.prefix}_outputs outputs = {item.prefix}_map_outputs({given});")
        return
    writer.line(f"struct {item.prefix}_inputs inputs = {{0}};")
    writer.line(f"struct {item.prefix}_outputs outputs = {{0}};")


def _graph_setup(writer: Writer, item: Subject) -> None:
    writer.line(f'TVMGraphExecutor *executor = graph_open(folder, "{item.graph_path}", "{item.params_path}");')


def _loads(writer: Writer, item: Subject) -> None:
    for pool, path in item.loaded.items():
        call = f'pool_load(folder, "{path}", {_aligned(_pool(item, pool))}, {item.pool_size(pool)})'
        with writer.block(f"if ({call} != 0)"):
            writer.lines([f'tensor_failed(checks, "{item.name}");', "return;"])


def _assignments(writer: Writer, item: Subject) -> None:
    if not item.is_aot:
        with writer.block("if (executor == NULL)"):
            writer.lines([f'tensor_failed(checks, "{item.name}");', "return;"])
        return
    if item.maps_tensors:
        unread = [name for name, group in (("inputs", item.inputs), ("outputs", item.outputs)) if not group]
        writer.lines([f"(void){name};" for name in unread])
        return
    for tensor in item.inputs:
        writer.line(f"inputs.{tensor.field} = {_input(tensor)};")
    for tensor in item.outputs:
        writer.line(f"outputs.{tensor.field} = {_output(tensor)};")


def _run(writer: Writer, item: Subject, *, checked: bool) -> None:
    """Write one inference, and the check or the print of each output."""
    if item.is_aot:
        arguments = [] if item.maps_tensors else ["&inputs", "&outputs"]
        arguments += ["&pools"] if item.passed_pools or item.loaded else []
        calls = [f"{item.prefix}_run({', '.join(arguments)})"]
    else:
        calls = [
            f"graph_set_input(executor, {index}, {_input(tensor)}, {_bytes(_input(tensor), tensor)})"
            for index, tensor in enumerate(item.inputs)
        ]
        calls.append("TVMGraphExecutor_Run(executor)")
        calls += [
            f"graph_get_output(executor, {index}, {_output(tensor)}, {_bytes(_output(tensor), tensor)})"
            for index, tensor in enumerate(item.outputs)
        ]
    for call in calls:
        with writer.block(f"if ({call} != 0)"):
            writer.lines([f'tensor_failed(checks, "{item.name}");', "return;"])
    if not checked:
        writer.lines([f'tensor_print("{item.name}", &found[{index}]);' for index in range(len(item.outputs))])
        return
    with writer.block("const void *const expected[] =", "};"):
        writer.lines([f"{item.name}_vectors[vector].{tensor.field}," for tensor in item.outputs])
    writer.line(f'tensor_check(checks, "{item.name}", vector, found, expected, {len(item.outputs)});')


def _found(writer: Writer, item: Subject) -> None:
    with writer.block("const struct tensor found[] =", "};"):
        for tensor in item.outputs:
            kind = f"TENSOR_{tensor.dtype.upper()}"
            writer.line(f"{{{c_string(tensor.name)}, {kind}, {tensor.count}, {_output(tensor, item)}}},")


def _input(tensor: DemoTensor, item: Subject | None = None) -> str:
    return f"inputs.{tensor.field}" if item and item.maps_tensors else f"in_{tensor.field}"


def _output(tensor: DemoTensor, item: Subject | None = None) -> str:
    return f"outputs.{tensor.field}" if item and item.maps_tensors else f"out_{tensor.field}"


def _whole(item: Subject, tensor: DemoTensor) -> str:
    """Return the size of an input's bytes; of what is mapped only a pointer is known."""
    if item.maps_tensors:
        return f"{item.prefix.upper()}_{tensor.field.upper()}_SIZE"
    return f"sizeof {_input(tensor)}"


def _pool(item: Subject, pool: str) -> str:
    alone = pool == DEFAULT_POOL and not item.loaded
    return "pool" if alone else f"pool_{pool}"


def _aligned(array: str) -> str:
    return f"{array} + (64 - (uintptr_t){array} % 64) % 64"


def _bytes(array: str, tensor: DemoTensor) -> str:
    return f"sizeof {array}" if tensor.count else "0"


def _comment(tensor: DemoTensor) -> str:
    return f" /* {comment_text(tensor.name[:200])} */" if tensor.name != tensor.field else ""
