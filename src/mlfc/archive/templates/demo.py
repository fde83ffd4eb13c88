"""The demo: a C program that runs every module of an archive and checks what comes out, with its test vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.archive.templates import render, text_of
from mlfc.archive.templates.subject import TemplateSubject, given_pools
from mlfc.codegen.c_interface import LICENCE
from mlfc.codegen.c_types import HALF_FLOATS, literal
from mlfc.memory.pools import DEFAULT_POOL
from mlfc.support import dtypes

FOLDER = "demo"
VECTORS = "_vectors.c"
"""How the name of a file with a module's test vectors ends."""

_PER_LINE = 16


def demo_files(subjects: Sequence[TemplateSubject]) -> dict[str, bytes]:
    """Return the demo's files by path in the archive."""
    graphs, loads_pools = any(item.is_graph for item in subjects), any(item.loaded for item in subjects)
    program = render(
        "demo.c",
        subjects=subjects,
        functions=[module_function(item, checked=bool(item.vectors)) for item in subjects],
        graphs=graphs,
        loads_pools=loads_pools,
        reads_files=graphs or loads_pools,
    )
    files = {"demo.c": program.encode(), **check_files()}
    for name, needed in (("graph_runner", graphs), ("pool_loader", loads_pools)):
        if needed:
            files.update({f"{name}{suffix}": text_of(f"{name}{suffix}").encode() for suffix in (".c", ".h")})
    for item in subjects:
        files.update(_vector_files(item))
    return {f"{FOLDER}/{name}": data for name, data in files.items()}


def check_files() -> dict[str, bytes]:
    """Return the C that compares tensors, by name; it writes through a function of the program's."""
    names = ("tensor_check.c", "tensor_check.h", "tensor_text.c", "tensor_text.h")
    return {name: text_of(name).encode() for name in names}


def module_function(item: TemplateSubject, *, checked: bool, embedded: bool = False) -> str:
    """Return the C function ``demo_<module>``, which runs a module on its test vectors, or on zeros unless `checked`.

    In an `embedded` program, without files, what it would read from them is in its code.
    """
    given = given_pools(item) if item.is_aot and embedded else ()
    values: dict[str, Any] = {"given": given, "checked": checked, "embedded": embedded, "default_pool": DEFAULT_POOL}
    return render("demo_vm.c" if item.is_vm else "demo_module.c", item=item, **values)


def vector_names(module: str) -> tuple[str, str]:
    """Return the names of the header and of the C file with a module's test vectors."""
    return f"{module}_vectors.h", f"{module}{VECTORS}"


def vector_paths(module: str) -> tuple[str, ...]:
    """Return where the test vectors of a module lie in an archive, if it has any."""
    return tuple(f"{FOLDER}/{name}" for name in vector_names(module))


def _vector_files(item: TemplateSubject) -> dict[str, bytes]:
    """Return inputs of a module and the outputs that its code gave when the archive was made, as C, if it has any."""
    if not item.vectors:
        return {}
    values = {"item": item, "licence": LICENCE, "rows": _rows}
    texts = (render(name, **values) for name in ("vectors.h", "vectors.c"))
    return {name: text.encode() for name, text in zip(vector_names(item.name), texts, strict=True)}


def _rows(array: npt.NDArray[Any], dtype: str) -> list[str]:
    texts = _literals(np.ascontiguousarray(array).reshape(-1), dtype) or ["0"]
    return [", ".join(texts[start : start + _PER_LINE]) for start in range(0, len(texts), _PER_LINE)]


def _literals(flat: npt.NDArray[Any], dtype: str) -> list[str]:
    if dtype in ("int8", "uint8", "int16", "uint16", "bool"):
        return [str(int(number)) for number in flat.tolist()]
    if dtypes.is_narrow(dtype):
        return [str(number) for number in flat.view(np.uint8).tolist()]
    if dtype in HALF_FLOATS:
        return [str(number) for number in flat.view(np.uint16).tolist()]
    return [literal(number, dtype) for number in flat.tolist()]
