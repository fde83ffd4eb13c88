"""LLVM libraries with kernels for several processor levels; `test_levels` tests how a level is chosen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
from mlfc import codegen, ops  # noqa: F401  (registers the operators)
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.archive.describe.profile import profiled_factory
from mlfc.archive.read.load import load_factory
from mlfc.codegen import c_parallel
from mlfc.codegen.llvm.objects import CompiledObject
from mlfc.errors import OptionError
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.relay import ir
from mlfc.runtime.threads import count_launches
from mlfc.support.content import Data, to_bytes
from mlfc.support.dims import Symbol
from mlfc.target import features
from mlfc.target.features import LEVELS, TEMPLATES, level_here
from mlfc.target.target import parse_target
from mlfc.target.tuning_log import LogEntry, TuningLog
from mlfc.tir import parallel
from mlfc.tuning.kernels import measured_target
from tests.conftest import need
from tests.harness import seeded_inputs
from tests.native.test_levels import FLOATS, MODEL, X86, build

Array = npt.NDArray[Any]
AUTO = "llvm -mcpu=auto"
LINUX = f"{AUTO} -mtriple=x86_64-unknown-linux-gnu"
OURS = X86[:3]
"""The levels for which LLVM generates code."""
ARM_PRODUCTS = "+v8.2a,+dotprod"
RUNTIME = ("-O0",)  # flags for the C code, which is only the level selection and the runtime
X, W = (np.random.default_rng(3).normal(size=(rows, 8)).astype(np.float32) for rows in (5, 16))


def reached() -> list[str]:
    """Return the levels that this processor runs; skip the test on other systems than x86-64 Linux."""
    if str(parse_target(AUTO)) != LINUX:
        pytest.skip("this machine is no x86-64 with Linux")
    return X86[: X86.index(level_here(LEVELS.get("x86_64"))[0].name) + 1]


def layer(executor: str = "aot", target: str = AUTO, **options: Any) -> Factory:
    """Return a dense layer and a softmax; for the virtual machine, a row maximum with a dynamic number of rows."""
    x, w = ir.Var("x", ir.TensorType((len(X), 8), "float32")), ir.Var("w", ir.TensorType(W.shape, "float32"))
    body = ir.call("nn.softmax", [ir.call("nn.dense", [x, w], units=len(W))], axis=-1)
    inputs, params = (x, w), {"w": W}
    if executor == "vm":
        x = ir.Var("x", ir.TensorType((Symbol("rows").dim, 8), "float32"))
        inputs, params, body = (x,), {}, ir.call("max", [x], axis=(1,))
    module = ir.IRModule({"main": ir.Function(inputs, body)}, output_names=("y",))
    return mlfc.build(module, target, params, executor=executor, module_name="layer", **options)


def computed(executor: str = "aot") -> Array:
    """Return the results of `layer` for `X`, computed in float64."""
    wide = X.astype(np.float64)
    powers = np.exp(wide @ W.T.astype(np.float64))
    found: Array = wide.max(axis=-1) if executor == "vm" else powers / powers.sum(axis=-1, keepdims=True)
    return found


def contents(files: dict[str, Data]) -> dict[str, bytes]:
    """Return the contents of files."""
    return {path: to_bytes(data) for path, data in files.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library of two models, one with bytes and one with floats."""
    reached()
    root = library_root([build(AUTO), layer()], share_workspace=True)
    return export_library(root, tmp_path_factory.mktemp("llvm") / "both.so", options=RUNTIME)


def test_every_level_computes_what_others_do(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(MODEL))
    interpreter.allocate_tensors()
    found = []
    for level in reached():
        # a loaded library chooses its level once
        path = shutil.copyfile(both, tmp_path / f"{level}.so")
        monkeypatch.setenv("MLFC_CPU", level)
        exact, near = mlfc.load(path, "digits"), mlfc.load(path, "layer")
        for seed in range(3):
            inputs = seeded_inputs(exact.inputs, seed)
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], inputs["image"])
            interpreter.invoke()
            expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
            np.testing.assert_array_equal(exact.run(inputs)["probabilities"], expected)
        found.append(near.run({"x": X})["y"])
        np.testing.assert_allclose(found[-1], computed(), rtol=1e-5)
        alone = mlfc.build(layer().module, f"llvm -mcpu={level}", {"w": W}, module_name="layer")
        np.testing.assert_array_equal(found[-1], load_factory(alone).run({"x": X})["y"])
    assert found[0].tobytes() != found[1].tobytes()  # without fused multiply-adds


def test_no_instruction_is_above_the_level_of_its_section(both: Path) -> None:
    command = [need("objdump", "binutils"), "-d", both]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used: dict[str, set[str]] = {}
    for section in text.split("Disassembly of section ")[1:]:
        level = section.partition(":")[0].removeprefix("mlfc.")
        names = re.findall(r"%([txyz]mm)[0-9]|%(k)[0-7]|\b(vf)n?m(?:add|sub)|(vpdpbusd)", section)
        used[level if level in X86 else ""] = {name for found in names for name in found if name} | used.get("", set())
    assert used == {
        "": {"xmm"},
        X86[0]: {"xmm"},
        X86[1]: {"xmm", "ymm", "vf"},
        X86[2]: {"xmm", "ymm", "zmm", "k", "vf", "vpdpbusd"},
    }
    sizes = inspect_library(both)["library"]["levels"]
    assert list(sizes) == OURS
    assert sizes[X86[0]] < 2 * sizes[X86[2]]  # long bodies stay in loops that LLVM would otherwise unroll


@pytest.mark.parametrize(("executor", "suffix"), [("aot", ".a"), ("graph", ".tar"), ("vm", ".so")])
def test_every_executor_and_form_has_the_levels(
    executor: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parallel, c_parallel):
        monkeypatch.setattr(module, "GRAIN", 1.0)  # any work is split among threads
    lowest = reached()[0]
    factory, expected = layer(executor, parallel=True), computed(executor)
    mlfc.set_num_threads(2)
    try:
        before = count_launches()
        profile = profiled_factory(factory).profile({"x": X}, repeat=1)  # in this process, at its own level
        np.testing.assert_allclose(profile.outputs["y"], expected, rtol=1e-5)
        assert len(profile.operators) == len(factory.program.calls)
        assert before < count_launches()
        monkeypatch.setenv("MLFC_CPU", lowest)
        path = factory.export_library(tmp_path / f"layer{suffix}", options=RUNTIME)
        assert list(inspect_library(path)["library"]["levels"]) == OURS
        if suffix != ".a":
            before = count_launches()
            np.testing.assert_allclose(mlfc.load(path).run({"x": X})["y"], expected, rtol=1e-5)
            assert before < count_launches()
    finally:
        mlfc.set_num_threads(0)


def test_the_same_model_gives_the_same_bytes_without_c_but_the_choice() -> None:
    first, second = (contents(layer(target=LINUX).code.files) for _ in range(2))
    assert first == second
    assert [path for path in first if path.endswith(".c")] == ["src/layer_levels.c"]
    assert b"getenv" in first["src/layer_levels.c"]
    assert {path for path in first if "_lib1_" in path} == {
        f"lib/layer_lib1_{level.replace('-', '_')}.o" for level in OURS
    }


@pytest.mark.parametrize(
    ("arch", "machines"),
    [
        ("x86_64", [("x86-64", ""), ("x86-64-v3", ""), *[("x86-64-v4", "+avx512vnni,-prefer-256-bit")] * 2]),
        ("aarch64", [("generic", ""), ("generic", ARM_PRODUCTS), *[("generic", f"{ARM_PRODUCTS},+i8mm")] * 2]),
    ],
)
def test_code_in_a_process_is_for_its_level_alone(arch: str, machines: list[tuple[str, str]]) -> None:
    """Generate code for one level, without a choice and without C; a level without LLVM code uses the one below."""
    unit, found = layer(target=f"{AUTO} -mtriple={arch}-unknown-linux-gnu").unit, []
    for level in LEVELS.get(arch).levels:
        files = codegen.generate(unit.at_level(level.name)).files
        assert not any(path.endswith(".c") or "_lib1_" in path for path in files)
        code = files["lib/layer_lib1.o"]
        assert isinstance(code, CompiledObject)
        found.append((code.machine.cpu, code.machine.features))
    assert found == machines


def test_a_log_of_tuning_is_for_the_processor_of_a_level() -> None:
    asked = parse_target(LINUX)
    wide = f"llvm -mattr=+avx512vnni -mcpu=x86-64-v4 {LINUX.rsplit(maxsplit=1)[-1]}"
    assert asked.at_level(X86[3]) == asked.at_level(X86[2]) == parse_target(wide)
    assert str(asked.at_level(None)) == f"llvm {LINUX.rsplit(maxsplit=1)[-1]}"
    if X86[2] in reached():
        assert measured_target(asked) == parse_target(wide)
    line = {
        "form": 1, "templates": TEMPLATES, "kind": "choice", "optimize": "speed", "measured": "time", "ratio": 0.5,
        "target": str(asked.at_level(X86[2])), "outcome": "right", "values": {"tile": "4x2x1"},
        "kernel": {"operator": "nn.dense", "inputs": [], "attributes": {}},
    }  # fmt: skip
    applied = dict(TuningLog((LogEntry.from_json(line),)).applied(asked).features.levels)
    found = {level: bool(each.tuned and each.tuned.kernels) for level, each in applied.items()}
    assert found == {X86[1]: False, X86[2]: True, X86[3]: True}


def test_another_linker_gets_what_all_processors_run(tmp_path: Path) -> None:
    """Pass only code that all processors run, because the linker cannot get flags for single files."""
    given: list[str] = []

    def linker(path: str, files: list[str], options: list[str]) -> None:
        given.extend(files)
        Path(path).write_bytes(b"library")

    factory = layer(target=LINUX)
    assert not any("levels" in path for path in factory.lib.files_at(None))
    factory.export_library(tmp_path / "layer.so", fcompile=linker)
    assert len([path for path in given if path.endswith(".o")]) == 2  # entry and operators


def test_processors_without_dot_products_are_a_level_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the same level as libraries do for AVX-512 processors of 2017 to 2019."""
    wide = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq"}
    monkeypatch.setattr(features, "host_arch", lambda: "x86_64")
    for flags, level in ((wide, X86[1]), (wide | {"avx512_vnni"}, X86[2])):
        monkeypatch.setattr(features, "processor_abilities", lambda flags=flags: flags)
        assert level_here(LEVELS.get("x86_64"))[0].name == level


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (f"{AUTO} -mattr=+avx2", r"-mcpu=auto is for several processors, and -mattr for one"),
        (f"{AUTO} -mtriple=thumbv7em-none-eabi", r"'thumbv7em-none-eabi'.*Name the core"),
    ],
)
def test_what_several_processors_have_not(target: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(target)


def test_archives_have_what_all_processors_run(tmp_path: Path) -> None:
    compiled = mlfc.compile(FLOATS, LINUX, module_name="digits")
    with pytest.raises(OptionError, match=r"exported sources require a target with one processor.*Compile for 'llvm'"):
        mlfc.export_model_library_format(compiled.factory, tmp_path / "digits.tar")
    archive = compiled.export(tmp_path / "digits.tar")
    assert mlfc.inspect(archive)["modules"]["digits"]["target"] == ["llvm -mtriple=x86_64-unknown-linux-gnu"]
