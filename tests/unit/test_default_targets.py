"""Default targets: without a named target, code that runs here is compiled for this processor."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc import codegen
from mlfc.archive.describe.profile import profiled_factory
from mlfc.cli.inspect import inspect
from mlfc.cli.options import BoardOptions, Inputs
from mlfc.cli.report import report
from mlfc.cli.run_model import RunOptions, run_model
from mlfc.cli.verify import verify
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.library import host
from mlfc.library.toolchain import NATIVE, Compiler
from mlfc.options import BuildOptions
from mlfc.support.platforms import parse_platform
from mlfc.target import features
from mlfc.target.features import LEVELS
from mlfc.target.target import EVERY_CPU, parse_target, this_processor
from mlfc.tuning import kernels

_EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"
MODELS = [_EXAMPLES / "digits_int8.tflite", _EXAMPLES / "digits.onnx"]
V3 = {"avx2"}
V4 = {*V3, "avx512f", "avx512bw", "avx512vl", "avx512dq"}
TILES = {*V4, "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"}
X86 = [level.name for level in LEVELS.get("x86_64").levels]
OF_LEVEL = {level.name: level.flags for level in LEVELS.get("x86_64").levels}
GCC = Compiler(("gcc",), "", parse_platform("x86_64-linux-gnu"))


class _BuiltError(Exception):
    """The code that would be compiled, as an exception."""

    def __init__(self, files: Mapping[str, Any], flags: tuple[str, ...], own: Mapping[str, Any]) -> None:
        super().__init__("no compiler is called")
        self.files, self.flags, self.own = files, tuple(flags), own

    @property
    def target(self) -> str:
        """The target named in the code."""
        (text,) = [bytes(data).decode() for name, data in self.files.items() if name.endswith("_lib1.c")]
        return text.partition("target: ")[2].partition(" */")[0]


class _AskedError(Exception):
    """The target that would be compiled for, as an exception."""


def _build(files: Mapping[str, Any], flags: Any, *, own_flags: Mapping[str, Any], **_: Any) -> Path:
    raise _BuiltError(files, flags, own_flags)


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "build_library", _build)
    monkeypatch.setattr(host, "find_compiler", lambda: GCC)
    monkeypatch.delenv("MLFC_CPU", raising=False)


def on_machine(monkeypatch: pytest.MonkeyPatch, arch: str, flags: set[str]) -> None:
    monkeypatch.setattr(platform, "machine", lambda: arch)
    monkeypatch.setattr(features, "processor_abilities", lambda: flags)


def built(model: Path, target: str) -> Factory:
    module, params = mlfc.import_model(model)
    return mlfc.build(module, target, params)


@pytest.mark.parametrize(
    ("arch", "flags", "asked", "target"),
    [
        ("x86_64", TILES, "", "c -mcpu=sapphirerapids"),
        ("x86_64", V4 | {"avx512_vnni"}, "", "c -mcpu=x86-64-v4 -mattr=+avx512vnni"),
        ("x86_64", V4, "", "c -mcpu=x86-64-v3"),  # as in libraries
        ("x86_64", set(), "", "c -mcpu=x86-64"),
        ("x86_64", TILES, "x86-64-v4", "c -mcpu=x86-64-v4"),
        ("x86_64", TILES, "x86-64", "c -mcpu=x86-64"),
        ("aarch64", {"dotprod", "i8mm", "sve256"}, "", EVERY_CPU),  # the best levels for bytes and for floats differ
        ("riscv64", set(), "", EVERY_CPU),
    ],
)
def test_what_runs_here_is_for_this_processor(
    arch: str, flags: set[str], asked: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, arch, flags)
    monkeypatch.setenv("MLFC_CPU", asked)
    assert this_processor() == target


def test_a_level_that_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, "x86_64", V3)
    monkeypatch.setenv("MLFC_CPU", "x86-64-v4")
    with pytest.raises(OptionError, match=r"this processor lacks 'x86-64-v4'\. Set it to one of: x86-64, x86-64-v3"):
        this_processor()


# integer kernels of lower levels have parameters that only higher levels read
@pytest.mark.parametrize(("model", "levels"), [(MODELS[0], X86[2:]), (MODELS[1], X86)], ids=["bytes", "floats"])
def test_it_is_the_code_that_libraries_for_every_processor_have(
    model: Path, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, "x86_64", TILES)
    several = built(model, EVERY_CPU)
    for level in levels:
        monkeypatch.setenv("MLFC_CPU", level)
        one = built(model, this_processor())
        found = []
        for factory in (several, one):
            with pytest.raises(_BuiltError) as caught:
                _ = factory.lib.path
            found.append(caught.value)
        assert found[0].flags == found[1].flags == ((NATIVE,) if level == X86[-1] else OF_LEVEL[level])
        assert set(found[0].files) == set(found[1].files)
        assert _kernels(found[0]) == _kernels(found[1])


def _kernels(code: _BuiltError) -> str:
    """Return the code without comments and workspace offsets; the workspace is planned for all levels together."""
    text = "\n".join(bytes(data).decode() for name, data in sorted(code.files.items()) if name.endswith(".c"))
    return re.sub(r"/\*.*?\*/|workspace(?:_words)?(?:\[| \+ )\d+", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("level", ["", X86[1]])
@pytest.mark.parametrize("profile", [False, True])
def test_run_compiles_for_this_processor(level: str, profile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, "x86_64", TILES)
    monkeypatch.setenv("MLFC_CPU", level)
    with pytest.raises(_BuiltError) as caught:
        run_model(MODELS[1], options=RunOptions(profile=profile), fixed=Inputs())
    assert caught.value.target == f"c -mcpu={level or X86[-1]}"
    assert caught.value.flags[:1] == (OF_LEVEL[level] if level else (NATIVE,))
    assert any("trace" in path for path in caught.value.files) == profile


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (partial(verify, fixed=Inputs(), board=BoardOptions(), settings={}, code={}), "mlfc.verify.compare"),
        (partial(inspect, fixed=Inputs()), "mlfc.compiler"),
        (partial(report, fixed=Inputs(), board=BoardOptions(), profile=True, show_boards=False), "mlfc.compiler"),
    ],
    ids=["verify", "inspect", "report"],
)
def test_commands_about_archives_compile_what_archives_have(
    command: Callable[[Path], None], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, "x86_64", TILES)

    def record(module: Any, params: Any, options: BuildOptions) -> Factory:
        raise _AskedError(options.target)

    monkeypatch.setattr(import_module(place), "build_module", record)
    with pytest.raises(_AskedError, match=r"^c$"):
        command(MODELS[1])


def test_profiles_time_the_level_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, "x86_64", V3)
    with pytest.raises(_BuiltError) as caught:
        profiled_factory(built(MODELS[1], EVERY_CPU))
    assert {path for path in caught.value.files if "_lib1" in path} == {"src/default_lib1.c"}
    on_machine(monkeypatch, "aarch64", {"dotprod", "i8mm", "sve256"})
    with pytest.raises(_BuiltError) as caught:
        profiled_factory(built(MODELS[1], f"{EVERY_CPU} -mtriple=aarch64"))
    assert {path for path in caught.value.files if "_lib1" in path} == {
        "src/default_lib1.c",
        "src/default_lib1_sve256.c",
    }
    assert set(caught.value.own) == set(caught.value.files)


def test_machines_without_levels_build_the_code_for_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = built(MODELS[1], f"{EVERY_CPU} -mtriple=x86_64")
    on_machine(monkeypatch, "riscv64", set())
    with pytest.raises(_BuiltError) as caught:
        _ = factory.lib.path
    assert caught.value.flags == (NATIVE,)
    assert {path for path in caught.value.files if "_lib1" in path} == {"src/default_lib1.c"}


def test_code_of_this_process_is_printed_for_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine(monkeypatch, "x86_64", TILES)
    factory = built(MODELS[1], EVERY_CPU)
    printed: list[str | None] = []
    real = codegen.generate

    def generate(unit: codegen.Unit) -> codegen.GeneratedCode:
        printed.append(unit.only_level)
        return real(unit)

    monkeypatch.setattr(codegen, "generate", generate)
    with pytest.raises(_BuiltError):
        _ = factory.lib.path
    assert printed == [X86[-1]]


@pytest.mark.parametrize(
    ("arch", "flags", "cpu"), [("x86_64", TILES, X86[-1]), ("aarch64", {"dotprod", "i8mm", "sve256"}, "i8mm")]
)
def test_tuning_keeps_the_options_of_a_target(
    arch: str, flags: set[str], cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, arch, flags)
    chosen = kernels.measured_target(parse_target(f"{EVERY_CPU} -winograd=off"))
    module, params = mlfc.import_model(MODELS[0])
    served = kernels.serving(chosen, kernels.tunable_kernels(module, params, chosen))
    assert str(served) == f"c -mcpu={cpu} -winograd=off"
    assert not chosen.features.winograd
    assert not served.features.winograd
