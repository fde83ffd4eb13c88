"""README.md of an archive: what it is, what it needs, how it is built and called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlfc.archive.read.layout import CODE, HEADERS, METADATA, OBJECTS, SOURCES, VERSION
from mlfc.archive.templates import filled
from mlfc.archive.templates.demo import FOLDER
from mlfc.archive.templates.subject import DemoTensor, Subject
from mlfc.byoc.generator import supply_of
from mlfc.codegen.constants import section
from mlfc.support.module_info import ConstantPoolInfo
from mlfc.support.text import shortened
from mlfc.support.version import __version__

_FILES = (
    (SOURCES, "generated C: entry and workspace in `lib0`, operators and constants behind it"),
    (OBJECTS, "objects: entry and workspace in `lib0`, operators and constants behind it"),
    (HEADERS, "its headers: what your program includes"),
    ("codegen", "what devices and external code generators have, a folder each"),
    ("parameters", "weights that an executor loads; empty for modules compiled ahead of time"),
    ("executor-config", "the graph executor's graphs"),
    ("runtime", "the C runtime: headers and sources that microTVM's firmware knows, and its graph executor"),
    ("templates", "a configuration and a platform of the runtime, to be filled in for a board"),
    (FOLDER, "the demo, with its test vectors"),
    ("src", "the model as Relay text and its weights: what compiling for another target takes"),
)


def readme(subjects: Sequence[Subject], paths: Iterable[str], library: str | None, date: str) -> str:
    """Return the text.

    Parameters
    ----------
    paths : iterable of str
        The archive's other members.
    library : str
        File name of the static library that the Makefile makes; None without a Makefile.
    """
    known = list(paths)
    carried = any(path.startswith("runtime/") for path in known)
    values = {
        "what": "A compiled model" if len(subjects) == 1 else f"{len(subjects)} compiled models",
        "title": ", ".join(item.name for item in subjects[:8]) + (", ..." if len(subjects) > 8 else ""),
        "version": str(VERSION),
        "writer": __version__,
        "date": date,
        "modules": "\n".join(_module(item) for item in subjects),
        "build": "\n".join(_build(subjects, library, carried)),
        "files": "\n".join(_file_rows(known)),
        "runtime": " and the runtime" if carried else "",
    }
    return filled("README.md.in", values)


def _build(subjects: Sequence[Subject], library: str | None, carried: bool) -> Iterable[str]:
    graphs = any(not item.is_aot for item in subjects)
    if library is not None:
        checked = any(item.vectors for item in subjects)
        test = "it checks the test vectors" if checked else "it prints outputs for zeros as inputs"
        yield f"    make                # {library} and a demo of it, for this machine"
        yield f"    make {'selftest' if checked else 'test    '}       # runs the demo: {test}"
        yield "    cmake -B build-cmake && cmake --build build-cmake    # the same with CMake"
        config = " CRT_CONFIG=board" if carried and graphs else ""
        yield f'    make library CC="arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb" AR=arm-none-eabi-ar{config}'
        yield ""
        for target in dict.fromkeys(item.target for item in subjects if item.target.startswith("llvm")):
            yield f"There are objects for `{target}`: `CC` must be a compiler for that machine."
            yield ""
        if config:
            yield "`board` is a folder of yours with `crt_config.h`, a copy of `templates/crt_config.h.template`:"
            yield "without it the runtime has the tables of a computer, 66 KiB of RAM."
            yield ""
    if any(item.device for item in subjects):
        yield "The C launches kernels through the runtime of the process that loads it: it is no program by itself."
        return
    if not all(item.is_program for item in subjects):
        yield "The C runs beside the modules of other kinds in the process that loads it: it is no program by itself."
        return
    more = ", and link `common`, `memory` and `graph_executor` of the C runtime" if graphs else ""
    if all(item.target.startswith("llvm") for item in subjects):
        yield f"By hand: link every object of `codegen/host/lib`{more}; its header is in `codegen/host/include`. The"
        yield "code needs no other library than C's own with its mathematics (`-lm`)."
    else:
        yield "By hand: compile every `.c` and `.S` file of `codegen/host/src` with `codegen/host/include` on the"
        yield f"include path{more}. The code is C99 and needs no other library than C's own with its"
        yield "mathematics (`-lm`)."
    for name in dict.fromkeys(name for item in subjects for name in item.generators):
        supply = supply_of(name)
        yield f"What `codegen/{name}` has is compiled and linked with it{f', and needs {supply}' if supply else ''}."


def _file_rows(paths: Sequence[str]) -> Iterable[str]:
    yield f"| `{METADATA}` | all facts about the modules, for programs |"
    taken: set[str] = set()
    for folder, what in _FILES:
        found = [path for path in paths if path not in taken and path.startswith(f"{folder}/")]
        taken.update(found)
        if found:
            yield f"| `{folder}/` | {what} |"


def _module(item: Subject) -> str:
    source, sizes = item.info.source if item.info else {}, item.details.memory
    executor = "compiled ahead of time" if item.is_aot else "for the graph executor"
    lines = [f"## Module `{item.name}`", "", f"Target `{item.target}`, {executor}.{_origin(source)}", ""]
    lines += ["| | name | in C | shape | dtype | real value |", "|---|---|---|---|---|---|"]
    for kind, tensors in (("input", item.inputs), ("output", item.outputs)):
        for index, tensor in enumerate(tensors):
            lines.append(_tensor_row(kind, tensor, tensor.field if item.is_aot else str(index)))
    lines += ["", "| memory | bytes | |", "|---|---:|---|"]
    where = "in the library" if item.is_aot else f"in `{item.params_path}`, and RAM where the executor copies them"
    lines += [
        f"| workspace | {sizes.workspace_bytes:,} | RAM, {_workspace_place(item)} |",
        *(f"| of it {pool.name} | {pool.nbytes:,} | |" for pool in item.details.pools),
        f"| inputs and outputs | {sizes.io_bytes:,} | {_tensor_place(item)} |",
        f"| constants | {sizes.constants_bytes:,} | flash, {where}; machine code comes on top |",
        *(_constant_row(pool) for pool in item.details.constant_pools),
        "",
        *_peak(item),
        *(_call(item) if item.is_aot else _graph_call(item) if item.is_program else _hosted_call(item)),
    ]
    return "\n".join(lines)


def _workspace_place(item: Subject) -> str:
    if not item.is_aot:
        return "allocated by the executor"
    if item.details.external_workspace:
        return "passed in by the caller"
    if item.workspace_peers:
        peers = ", ".join(f"`{name}`" for name in item.workspace_peers[:8]) + (
            ", ..." if item.workspace_peers[8:] else ""
        )
        return f"in the library, the same as that of {peers}: never run two of them at once"
    return "in the library: one run at a time"


def _tensor_place(item: Subject) -> str:
    return "in the workspace" if item.maps_tensors else "RAM, yours"


def _constant_row(pool: ConstantPoolInfo) -> str:
    file = pool.file
    place = f"you load `{CODE}/{file}`" if file else f"section `{section(pool.name)}`"
    return f"| of them {pool.name} | {pool.nbytes:,} | {place} |"


def _origin(source: Mapping[str, str]) -> str:
    name, digest = source.get("name"), source.get("sha256")
    text = f" The model: {_plain(name)}" if name else ""
    return f"{text}, SHA-256 `{digest}`." if text and digest else f"{text}." if text else ""


def _tensor_row(kind: str, tensor: DemoTensor, place: str) -> str:
    real = ""
    if tensor.scale is not None:
        shift = tensor.zero_point or 0
        real = f"{tensor.scale!r} * (value {'-' if shift >= 0 else '+'} {abs(shift)})"
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    return f"| {kind} | {_plain(tensor.name)} | `{place}` | {shape} | {tensor.dtype} | {real} |"


def _peak(item: Subject) -> list[str]:
    peak = item.info.peak if item.info else None
    if peak is None:
        return []
    nodes = _plain(shortened(", ".join(peak.nodes) or peak.function, 120))
    return [f"Most workspace is live during {nodes}: {peak.live_bytes:,} bytes.", ""]


def _call(item: Subject) -> list[str]:
    macro = item.prefix.upper()
    lines = [f'    #include "{item.prefix}.h"', ""]
    pools = [*item.passed_pools, *item.loaded]
    fields = []
    for group, tensors in () if item.maps_tensors else (("inputs", item.inputs), ("outputs", item.outputs)):
        for tensor in tensors:
            size = f"{macro}_{tensor.field.upper()}_SIZE / sizeof({tensor.c_type})"
            lines.append(f"    static {tensor.c_type} {group}_{tensor.field}[{size}];")
        fields.append((group, ", ".join(f"{group}_{tensor.field}" for tensor in tensors) or "0"))
    arrays = ["memory"] if len(pools) == 1 else [f"memory_{pool}" for pool in pools]
    for pool, array in zip(pools, arrays, strict=True):
        holds = f", holds {item.loaded[pool]}" if pool in item.loaded else ""
        lines.append(
            f"    static uint8_t {array}[{item.pool_size(pool)}];    /* to start at a multiple of 64{holds} */"
        )
    if pools:
        fields.append(("workspace_pools", ", ".join(arrays)))
    lines.append("")
    for group, values in fields:
        lines.append(f"    struct {item.prefix}_{group} {group} = {{{values}}};")
    arguments = ", ".join(f"&{group}" for group, _ in fields)
    if item.maps_tensors:
        for group in ("inputs", "outputs"):
            lines.append(f"    struct {item.prefix}_{group} {group} = {item.prefix}_map_{group}({arguments});")
        lines.append("    /* write what inputs points to before every run; outputs points to the results */")
    return [*lines, f"    int32_t status = {item.prefix}_run({arguments});    /* 0 on success */", ""]


def _hosted_call(item: Subject) -> list[str]:
    parts = [f"Its kernels, in `codegen/{item.device}/`, run on a device."] if item.device else []
    parts += [f"Parts of it, in `codegen/{kind}/`, are run by modules of the kind `{kind}`." for kind in item.modules]
    return [
        f"{' '.join(parts)} Run the archive, or make one library of all:",
        "",
        f"    mlfc run ARCHIVE{f' --device {item.device}' if item.device else ''}",
        "    mlfc compile ARCHIVE --emit so    # mlfc.load_module gives it back",
        "",
    ]


def _graph_call(item: Subject) -> list[str]:
    # all that comes before the first array but the names is a multiple of eight bytes, as is what is between arrays
    behind = -sum(map(len, item.params)) % 8
    return [
        f"Create it with `TVMGraphExecutor_Create` from the text of `{item.graph_path}` and load `{item.params_path}`:",
        "`demo/graph_runner.c` shows how. `TVMGraphExecutor_LinkParams` reads parameters where they stand, in flash",
        f"for example; most are aligned where the file starts {behind} bytes behind a multiple of 8.",
        "",
        "On top of the memory above the executor keeps about 120 bytes (on 32 bits) for each node of the graph, inputs",
        "and constants included, and takes as much again while it is created.",
        "",
    ]


def _plain(name: str) -> str:
    """Return a name of any characters as text that Markdown gives no meaning to."""
    shown = "".join(char if char.isprintable() else "?" for char in name[:200])
    return "".join(f"\\{char}" if char in "\\`*_{}[]<>()#+-!|~&" else char for char in shown)
