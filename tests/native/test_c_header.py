"""The parser of headers agrees with a C compiler, and reported breaking changes do break compiled callers."""

from __future__ import annotations

import lzma
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

import mlfc
from mlfc.archive.read.c_header import Header, StructField, parse_header
from tests.conftest import need
from tests.show_archive import HEADER, HEADER_PATH, write_archive

FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c", "-")


def accepted(header: str, program: str) -> bool:
    done = subprocess.run(
        [need("gcc", "gcc"), *FLAGS], input=f"{header}\n{program}\n", text=True, capture_output=True, check=False
    )
    return done.returncode == 0


def assertions(header: Header) -> Iterator[str]:
    """Yield C that only compiles if a header has these declarations."""
    yield "#include <stddef.h>"
    for name, fields in header.structs.items():
        for index, field in enumerate(fields):
            yield f'_Static_assert(offsetof(struct {name}, {field.name}) == {index} * sizeof(void *), "order");'
        yield f'_Static_assert(sizeof(struct {name}) == {len(fields)} * sizeof(void *), "size");'
    for name, prototype in header.functions.items():
        yield f"{prototype.result} (*const {name}_pointer)({', '.join(prototype.parameters) or 'void'}) = {name};"
    for name, value in header.macros.items():
        yield f'_Static_assert({name} == {value}, "value");'


def headers_of_tvm(folder: Path) -> Iterator[str]:
    for name in ("kws_aot_c", "multi"):
        data = lzma.decompress((folder / f"{name}.tar.xz").read_bytes())
        with tarfile.open(fileobj=BytesIO(data)) as tar:
            for info in tar:
                if info.name.endswith(".h"):
                    yield tar.extractfile(info).read().decode()  # type: ignore[union-attr]


def test_a_compiler_agrees_with_what_is_read(shared: Path) -> None:
    texts = [HEADER, *headers_of_tvm(shared / "fixtures/tvm-0.14")]
    assert len(texts) == 4
    for text in texts:
        header = parse_header(text)
        assert len(header.structs) >= 2
        assert len(header.functions) == 1
        assert len(header.macros) >= 3
        assert accepted(text, "\n".join(assertions(header)))


CHANGES: dict[str, Callable[[str], str]] = {
    "field_renamed": lambda text: text.replace("*mask;", "*where;"),
    "field_gone": lambda text: text.replace("  void *mask;\n", ""),
    "field_added": lambda text: text.replace("  void *mask;\n", "  void *mask;\n  void *more;\n"),
    "fields_swapped": lambda text: text.replace("*mask", "*x").replace("*image", "*mask").replace("*x", "*image"),
    "field_of_another_type": lambda text: text.replace("void *mask;", "int mask[4];"),
    "struct_renamed": lambda text: text.replace("tvmgen_net_outputs", "tvmgen_net_results"),
    "function_renamed": lambda text: text.replace("tvmgen_net_run", "tvmgen_net_start"),
    "parameter_gone": lambda text: text.replace(
        ",\n                       struct tvmgen_net_workspace_pools *workspace_pools", ""
    ),
    "result_of_another_type": lambda text: text.replace("int32_t tvmgen", "void tvmgen"),
    "macro_gone": lambda text: text.replace("#define TVMGEN_NET_MASK_SIZE 16\n", ""),
    "tensor_larger": lambda text: text.replace("SCORES_SIZE 16", "SCORES_SIZE 20"),
    "comments_and_spaces": lambda text: text.replace("void *mask;", "void  /* where; { */ *\n mask ; // }"),
    "function_added": lambda text: text.replace("/* sizes { in bytes; } */", "int more(void);"),
    "macro_added": lambda text: text.replace("#include", "#define TVMGEN_NET_MORE 1\n#include"),
    "for_cplusplus_only": lambda text: text.replace('extern "C" {', 'extern "C" {\nstruct hidden { int x; };'),
}  # fmt: skip
HARMLESS = {"comments_and_spaces", "function_added", "macro_added", "for_cplusplus_only"}


@pytest.mark.parametrize("name", CHANGES)
def test_what_breaks_is_what_a_compiled_caller_does_not_survive(tmp_path: Path, name: str) -> None:
    changed = CHANGES[name](HEADER)
    assert changed != HEADER
    survives = accepted(changed, "\n".join(assertions(parse_header(HEADER))))
    assert survives == (name in HARMLESS)
    found = mlfc.diff(
        write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", files={HEADER_PATH: changed})
    )
    assert found["breaks"] == (not survives)


def test_text_that_is_no_header_is_read_without_end_or_error() -> None:
    pieces = [
        "/*" * 200_000,
        "{" * 200_000,
        "//\n/*" * 100_000,
        "struct a {" * 50_000,
        "#define\n" * 100_000,
        "(" * 200_000,
    ]
    for text in pieces:
        assert parse_header(text) == Header()
    assert parse_header("}struct a{int*b;};").structs == {"a": (StructField("int *", "b"),)}
