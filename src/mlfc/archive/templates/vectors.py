"""Test vectors as C: inputs of a module and the outputs that its code gave when the archive was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.archive.templates.subject import DemoTensor, Subject
from mlfc.codegen.c_interface import LICENCE
from mlfc.codegen.c_types import HALF_FLOATS, literal
from mlfc.codegen.writer import comment_text

VECTORS = "_vectors.c"
"""How the name of a file with a module's vectors ends."""

_PER_LINE = 16


def vector_files(subject: Subject) -> dict[str, bytes]:
    """Return ``<module>_vectors.h`` and ``.c``; nothing for a module without vectors."""
    if not subject.vectors:
        return {}
    return dict(
        zip(vector_names(subject.name), (_header(subject).encode(), _definitions(subject).encode()), strict=True)
    )


def vector_names(module: str) -> tuple[str, str]:
    """Return the names of the header and of the C file with a module's vectors."""
    return f"{module}_vectors.h", f"{module}{VECTORS}"


def count_macro(subject: Subject) -> str:
    """Return the macro that says how many vectors there are."""
    return f"{subject.name.upper()}_VECTORS"


def _header(subject: Subject) -> str:
    guard = f"{subject.name.upper()}_VECTORS_H_"
    lines = [
        f"/* {LICENCE} */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "#include <stdint.h>",
        "",
        f"#define {count_macro(subject)} {len(subject.vectors)}",
        "",
        f"/* Inputs of module {subject.name}, and the outputs of its code where the archive was made */",
        f"struct {subject.name}_vector {{",
    ]
    for tensor in _tensors(subject):
        lines.append(f"  {tensor.c_type} {tensor.field}[{tensor.c_length}]; /* {comment_text(tensor.name[:200])} */")
    lines += [
        "};",
        "",
        f"extern const struct {subject.name}_vector {subject.name}_vectors[{count_macro(subject)}];",
        "",
        f"#endif /* {guard} */",
        "",
    ]
    return "\n".join(lines)


def _definitions(subject: Subject) -> str:
    lines = [
        f"/* {LICENCE} */",
        f'#include "{vector_names(subject.name)[0]}"',
        "",
        "#include <math.h>",
        "",
        f"const struct {subject.name}_vector {subject.name}_vectors[{count_macro(subject)}] = {{",
    ]
    for vector in subject.vectors:
        lines.append("  {")
        for group, arrays in ((subject.inputs, vector.inputs), (subject.outputs, vector.outputs)):
            for tensor in group:
                lines += [f"    .{tensor.field} = {{", *_rows(arrays[tensor.name], tensor.dtype), "    },"]
        lines.append("  },")
    return "\n".join([*lines, "};", ""])


def _tensors(subject: Subject) -> Sequence[DemoTensor]:
    return (*subject.inputs, *subject.outputs)


def _rows(array: npt.NDArray[Any], dtype: str) -> list[str]:
    texts = _literals(np.ascontiguousarray(array).reshape(-1), dtype) or ["0"]
    return [f"      {', '.join(texts[start : start + _PER_LINE])}," for start in range(0, len(texts), _PER_LINE)]


def _literals(flat: npt.NDArray[Any], dtype: str) -> list[str]:
    if dtype in ("int8", "uint8", "int16", "uint16", "bool"):
        return [str(int(number)) for number in flat.tolist()]
    if dtype in HALF_FLOATS:
        return [str(number) for number in flat.view(np.uint16).tolist()]
    return [literal(number, dtype) for number in flat.tolist()]
