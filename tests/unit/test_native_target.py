"""``c -mcpu=native``: its expansion, and the flags that its libraries are compiled with."""

from __future__ import annotations

import pytest

from mlfc.errors import OptionError
from mlfc.library.export import processor_flags
from mlfc.library.toolchain import Compiler
from mlfc.support.platforms import parse_platform
from mlfc.target import features
from mlfc.target.target import parse_target

V4 = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq"}
TILES = {"avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"}
X86 = parse_platform("x86_64-linux-gnu")


@pytest.mark.parametrize(
    ("flags", "expected", "gcc"),
    [
        (
            V4 | {"avx512_vnni", "avx_vnni"},
            "c -mcpu=x86-64-v4 -mattr=+avx512vnni",
            ("-march=x86-64-v4", "-mavx512vnni"),
        ),
        (
            V4 | {"avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"},
            "c -mcpu=sapphirerapids",
            ("-march=sapphirerapids",),
        ),
        (V4, "c -mcpu=x86-64-v4", ("-march=x86-64-v4",)),
        ({"avx2", "avx_vnni"}, "c -mcpu=x86-64-v3", ("-march=x86-64-v3",)),
    ],
)
def test_native_keeps_the_products_of_bytes(
    flags: set[str], expected: str, gcc: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "processor_abilities", lambda: flags)
    target = parse_target("c -mcpu=native")
    assert str(target) == expected
    assert parse_target(str(target)) == target
    assert processor_flags(Compiler(("gcc",), "", X86), target.library_cpu, ()) == gcc
    zig = Compiler(("python", "-m", "ziglang", "cc"), "clang", X86)
    assert processor_flags(zig, target.library_cpu, ()) == (f"-mcpu={target.library_cpu.replace('-', '_')}",)


@pytest.mark.parametrize(
    "text", ["c -mattr=+avx512vnni", "c -mcpu=x86-64-v3 -mattr=+avx2", "c -mcpu=cortex-m4 -mattr="]
)
def test_other_attributes_of_c_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option -mattr requires an x86-64 processor"):
        parse_target(text)
