"""AArch64 machines: their processor features, and the code that runs on the machine that compiles it."""

from __future__ import annotations

import ctypes
import itertools
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.isa import aarch64 as processor
from mlfc.library import host
from mlfc.library.export import processor_flags
from mlfc.library.toolchain import Compiler
from mlfc.support.platforms import parse_platform
from mlfc.target import features
from mlfc.target.features import LEVELS, native_cpu
from mlfc.target.target import llvm_here, parse_target
from mlfc.target.tuning_log import processor_of
from mlfc.tuning import kernels
from tests.conftest import need

_EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"
BYTES, FLOATS = _EXAMPLES / "digits_int8.tflite", _EXAMPLES / "digits.onnx"
LEVEL = [level.name for level in LEVELS.get("aarch64").levels]
GCC = Compiler(("gcc",), "", parse_platform("aarch64-linux-gnu"))
ZIG = Compiler(("python", "-m", "ziglang", "cc"), "clang", GCC.target)
# each system's way to report features, read from variables
FAKES = {
    "linux": (
        "-D__linux__",
        {
            "sys/auxv.h": "#define AT_HWCAP 16\nstatic unsigned long getauxval(unsigned long key) "
            "{ return key == 16 ? told[0] : key == 26 ? told[1] : 0; }\n",
            "sys/prctl.h": "static int prctl(int option, long a, long b, long c, long d) "
            "{ (void)a, (void)b, (void)c, (void)d; return option == 51 ? (int)told[2] : -1; }\n",
        },
    ),
    "darwin": (
        "-D__APPLE__",
        {
            "sys/sysctl.h": "#include <string.h>\nstatic int sysctlbyname(const char *name, void *to, size_t *size, "
            'void *new, size_t length) { int place = !strcmp(name, "hw.optional.arm.FEAT_DotProd") ? 0 : '
            '!strcmp(name, "hw.optional.arm.FEAT_I8MM") ? 1 : 2; (void)new, (void)length; '
            "if (place == 2 || *size != sizeof(int) || told[place] == 2) return -1; "
            "*(int *)to = (int)told[place]; return 0; }\n"
        },
    ),
    "win32": (
        "-D_WIN32",
        {
            "windows.h": "static int IsProcessorFeaturePresent(unsigned number) "
            "{ return number == 43 ? (int)told[0] : number == 66 ? (int)told[1] : 0; }\n"
        },
    ),
}
CALLS = {"linux": ("getauxval", "prctl"), "darwin": ("sysctlbyname",), "win32": ("IsProcessorFeaturePresent",)}
_ARMV8_2 = (1 << 7, 1 << 8, 1 << 12, 1 << 20)
TOLD = {
    "linux": [
        *itertools.product(
            (0, sum(_ARMV8_2), *(sum(_ARMV8_2) - bit for bit in _ARMV8_2), sum(_ARMV8_2) | 1 << 22, 1 << 22),
            (0, 1 << 13, ~(1 << 13) & 0xFFFFFFFF),
            (16, 32, 1 << 17 | 32, 64, 256, -22 & 0xFFFFFFFF),
        )
    ],
    "darwin": [*itertools.product((0, 1, 2), (0, 1, 2), (0,))],
    "win32": [*itertools.product((0, 1), (0, 1), (0,))],
}


def on_aarch64(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Pretend that this is an AArch64 machine with a processor of this level."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(features, "processor_abilities", lambda: set(LEVEL[1 : LEVEL.index(level) + 1]))


@pytest.mark.parametrize("system", FAKES)
def test_python_and_libraries_find_the_same_level(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define, headers = FAKES[system]
    for name, text in headers.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    pointers = "".join(f"void *const at_{name} = (void *)&{name};\n" for name in CALLS[system])
    (choice,) = LEVELS.get("aarch64").choice
    (tmp_path / "level.c").write_text(
        f"#include <stddef.h>\nunsigned long told[3];\n{choice.read_text()}\n{pointers}"
        "int level(unsigned long a, unsigned long b, unsigned long c) "
        "{ told[0] = a; told[1] = b; told[2] = c; return mlf_level_here(); }\n"
    )
    command = [need("gcc", "gcc"), "-U__linux__", define, "-I.", "-O0", "-shared", "-fPIC", "level.c", "-o", "level.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "level.so"))
    library.level.argtypes = [ctypes.c_ulong] * 3
    made = ctypes.CFUNCTYPE(ctypes.c_int)
    calls: dict[str, Any] = {}
    for name in CALLS[system]:
        place = ctypes.c_void_p.in_dll(library, f"at_{name}").value
        assert place is not None
        calls[name] = made(place)
        calls[name].argtypes = None
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(
        processor.ctypes, "WinDLL" if system == "win32" else "CDLL", lambda _: SimpleNamespace(**calls), raising=False
    )
    found = {}
    for told in TOLD[system]:
        expected = LEVEL[library.level(*told)]
        assert native_cpu() == expected, told
        found[expected] = told
    assert set(found) == set(LEVEL if system == "linux" else LEVEL[:3])


def test_systems_that_tell_nothing_have_the_first_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert native_cpu() == LEVEL[0]
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(processor.ctypes, "CDLL", lambda _: SimpleNamespace())  # a C library without getauxval
    assert native_cpu() == LEVEL[0]


@pytest.mark.parametrize("level", LEVEL)
def test_levels_are_processors_of_target_strings(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_aarch64(monkeypatch, level)
    target = parse_target("c -mcpu=native")
    assert str(target) == f"c -mcpu={level}"
    assert parse_target(str(target)) == target
    known = LEVELS.get("aarch64").levels[LEVEL.index(level)]
    assert target.features == known.features
    assert processor_flags(GCC, target.library_cpu, ()) == (*known.flags, *known.both)
    assert processor_flags(ZIG, target.library_cpu, ()) == (f"-mcpu={known.zig}", *known.both)
    assert llvm_here(parse_target("c -mcpu=auto")) == f"llvm -mcpu={level}"


def test_llvm_knows_the_levels_by_their_features() -> None:
    triple = "-mtriple=aarch64-unknown-linux-gnu"
    found = {level: str(parse_target(f"llvm -mcpu={level} {triple}")) for level in LEVEL}
    assert found == {
        "aarch64": f"llvm {triple}",
        "dotprod": f"llvm -mattr=+v8.2a,+dotprod {triple}",
        "i8mm": f"llvm -mattr=+v8.2a,+dotprod,+i8mm {triple}",
        "sve256": f"llvm -mattr=+v8.2a,+dotprod,+i8mm {triple}",  # LLVM's code uses NEON vectors
    }
    sets = {level: parse_target(text).features.instruction_sets for level, text in found.items()}
    assert sets["i8mm"] == sets["sve256"] == ("i8mm",)
    assert "i8mm" not in sets["dotprod"]  # without the i8mm instructions its tile is slow
    assert str(parse_target(f"llvm -mcpu=dotprod -mattr=+fullfp16 {triple}")).split()[1] == (
        "-mattr=+v8.2a,+dotprod,+fullfp16"
    )
    with pytest.raises(OptionError, match="unknown LLVM processor 'dotprod' for x86_64"):
        parse_target("llvm -mcpu=dotprod -mtriple=x86_64-linux-gnu")


def test_a_level_can_be_forced_and_is_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    on_aarch64(monkeypatch, "i8mm")
    levels = LEVELS.get("aarch64")
    assert features.level_here(levels) == (levels.levels[2], False)  # -mcpu=native of compilers may select less
    monkeypatch.setenv("MLFC_CPU", "dotprod")
    assert features.level_here(levels) == (levels.levels[1], False)
    monkeypatch.setenv("MLFC_CPU", "sve256")
    with pytest.raises(OptionError, match=r"lacks 'sve256'\. Set it to one of: aarch64, dotprod, i8mm\. Or"):
        features.level_here(levels)
    monkeypatch.setenv("MLFC_CPU", "x86-64-v3")
    with pytest.raises(OptionError, match="unknown level of processors 'x86-64-v3'; known: 'aarch64', 'dotprod'"):
        features.level_here(levels)


def _built(model: Path, target: str) -> Factory:
    module, params = mlfc.import_model(model)
    return mlfc.build(module, target, params, module_name="digits")


def _flags(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the flags with which this process compiles each C file that contains kernels."""
    found: dict[str, str] = {}

    def record(files: dict[str, Any], flags: Any, *, own_flags: dict[str, Any], **_: Any) -> Path:
        for path in files:
            if "_lib1" in path:
                found[path.removeprefix("src/digits_lib1")] = " ".join((*flags, *own_flags.get(path, ())))
        return Path("none")

    monkeypatch.setattr(host, "build_library", record)
    monkeypatch.setattr(host, "find_compiler", lambda: GCC)
    _ = factory.lib.path
    return found


@pytest.mark.parametrize(
    ("level", "model", "own"),
    [
        ("aarch64", BYTES, ""),
        ("dotprod", BYTES, "dotprod"),
        ("sve256", BYTES, "i8mm"),  # for bytes, NEON is as fast
        ("i8mm", FLOATS, ""),
        ("sve256", FLOATS, "sve256"),
    ],
)
def test_kernels_are_compiled_for_the_level_that_serves_them(
    level: str, model: Path, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = _built(model, "c -mcpu=auto -mtriple=aarch64")
    on_aarch64(monkeypatch, level)
    levels = {each.name: " ".join((*each.flags, *each.both)) for each in LEVELS.get("aarch64").levels}
    expected = {".c": levels["aarch64"]} | ({f"_{own}.c": levels[own]} if own else {})
    assert _flags(factory, monkeypatch) == expected
    files = {path: bytes(data).decode() for path, data in factory.lib.files_at(level).items() if path.endswith(".c")}
    text = files["src/digits_lib1.c"]
    assert "getenv" not in text  # the level is fixed
    assert "mlf_level" not in text
    called = set(re.findall(r"return (\w+_(?:dotprod|i8mm|sve256))\(", text))
    assert called == (set(re.findall(rf"\b(\w+_{own})\(", files[f"src/digits_lib1_{own}.c"])) if own else set())
    assert bool(called) == bool(own)


def test_named_levels_are_compiled_to_their_flags_where_the_processor_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory = _built(FLOATS, "c -mcpu=i8mm")
    on_aarch64(monkeypatch, "sve256")
    assert _flags(factory, monkeypatch) == {".c": "-march=armv8.2-a+dotprod+i8mm"}
    on_aarch64(monkeypatch, "dotprod")
    assert _flags(factory, monkeypatch) == {".c": host.NATIVE}  # its kernels contain C for every processor


def test_tuning_names_the_level_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    on_aarch64(monkeypatch, "sve256")
    asked = parse_target("c -mcpu=auto")
    chosen = kernels.measured_target(asked)
    assert str(chosen) == processor_of(chosen) == "c -mcpu=sve256"
    assert kernels.level_to_build(chosen) == "sve256"  # the level's flags, which differ from native
    found = {}
    for model in (BYTES, FLOATS):
        module, params = mlfc.import_model(model)
        found[model] = kernels.serving(chosen, kernels.tunable_kernels(module, params, chosen))
    assert {model.suffix: str(target) for model, target in found.items()} == {
        ".tflite": "c -mcpu=i8mm",
        ".onnx": "c -mcpu=sve256",
    }
    on_aarch64(monkeypatch, "dotprod")
    with pytest.raises(OptionError, match=r"this processor lacks 'i8mm'\. Tune for dotprod"):
        kernels.level_to_build(found[BYTES])
    with pytest.raises(OptionError, match=r"expected a target of this machine \(aarch64\), got 'c -mcpu=auto"):
        kernels.measured_target(parse_target("c -mcpu=auto -mtriple=x86_64"))
