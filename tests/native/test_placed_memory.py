"""Modules with user-defined memory placement compute the same results, and their archives are consistent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.profile import load_profiled
from mlfc.archive.read.c_header import c_interface
from mlfc.archive.read.load import load_factory
from mlfc.archive.read.model import MainMemory, ModuleRecord, TensorRecord
from mlfc.archive.validate.validate import validate
from mlfc.archive.write.budget import check_budget
from mlfc.archive.write.rebuild import recorded_options
from mlfc.errors import ArchiveError, BudgetError, OptionError
from mlfc.factory import Factory, link
from mlfc.library.toolchain import compile_cached
from mlfc.memory import ConstantPool, Pool
from mlfc.relay import ir
from mlfc.runtime import AotModule
from mlfc.runtime.executors.aot_module import loaded_pools
from mlfc.verify.litert import LiteRtReference
from tests.harness import interface, module_of, seeded_inputs
from tests.native.extracted import WARNINGS, extracted, imported, make

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

TWO = [Pool("fast", 3000), Pool("slow")]
HOT = ConstantPool("tcm", 4096)
OUTPUT = "StatefulPartitionedCall:0"  # the output of the smallest model
# combinations of the options
CHOICES: list[dict[str, Any]] = [
    {"workspace_io": True},
    {"workspace_io": True, "external_workspace": True},
    {"pools": TWO, "external_workspace": True},
    {"pools": TWO, "workspace_io": True},
    {"constants": [HOT, ConstantPool("flash")]},
    {"constants": [HOT, ConstantPool("xip", external=True)]},
    {
        "pools": TWO,
        "workspace_io": True,
        "external_workspace": True,
        "constants": [HOT, ConstantPool("xip", 40_000, external=True), ConstantPool("sd", external=True)],
    },
]
NAMES = [
    "-".join(f"{key}{len(value) if isinstance(value, list) else ''}" for key, value in item.items()) for item in CHOICES
]


@pytest.mark.parametrize("choice", CHOICES, ids=NAMES)
def test_archives_of_placed_memory_compute_what_litert_does(
    models: Path, tmp_path: Path, choice: dict[str, Any]
) -> None:
    model = models / "kws_ref_model.tflite"
    path = mlfc.export_model_library_format(imported(model, "kws", **choice), tmp_path / "kws.tar")
    assert [str(fault) for fault in validate(path)] == []
    loaded, reference = mlfc.load(path), LiteRtReference(model)
    for seed in range(3):  # the second run sees the memory that the first one wrote
        inputs = seeded_inputs(loaded.inputs, seed)
        expected = reference.run(inputs)
        for name, output in loaded.run(inputs).items():
            np.testing.assert_array_equal(output, expected[name])
    again = mlfc.export_model_library_format(mlfc.rebuild(path), tmp_path / "again.tar", options=recorded_options(path))
    assert again.read_bytes() == path.read_bytes()


def large_tensors() -> ir.IRModule:
    """Return a model of few operators whose tensors and constants fill every memory of the choices."""
    rng = np.random.default_rng(0)
    offsets = [ir.const(rng.standard_normal((1, 600)).astype(np.float32)) for _ in range(2)]
    weights = ir.const(rng.standard_normal((17, 600)).astype(np.float32))

    def body(v: Any) -> Any:
        first = ir.call("nn.softmax", [ir.call("add", [v["x"], offsets[0]])])
        second = ir.call("nn.softmax", [ir.call("add", [first, offsets[1]])])
        return ir.call("nn.dense", [ir.call("add", [first, second]), weights], units=17)

    return module_of({"x": np.zeros((1, 600), np.float32)}, {"y": body})


@pytest.mark.parametrize(
    ("choice", "compiler"),
    [(CHOICES[0], "gcc"), (CHOICES[2], "clang"), (CHOICES[-1], "gcc"), (CHOICES[-1], "clang")],
    ids=[f"{NAMES[0]}-gcc", f"{NAMES[2]}-clang", f"{NAMES[-1]}-gcc", f"{NAMES[-1]}-clang"],
)
def test_demos_build_without_warnings_and_run_clean(tmp_path: Path, choice: dict[str, Any], compiler: str) -> None:
    factory = mlfc.build(large_tensors(), module_name="large", **choice)
    assert all(pool.nbytes for pool in (*factory.plan.spans, *factory.interface().constant_pools))
    assert len(factory.plan.spans) == len(choice.get("pools", ""))
    assert len(factory.interface().constant_pools) == len(choice.get("constants", ""))
    folder = extracted(factory, tmp_path, test_vectors=2)
    flags = f"-std=c99 {WARNINGS} -fsanitize=address,undefined"
    assert "PASS 2 of 2" in make(
        folder, "test", f"CC={compiler}", f"CFLAGS={flags}", "LDFLAGS=-fsanitize=address,undefined"
    )


def odd_module() -> tuple[ir.IRModule, dict[str, np.ndarray[Any, Any]]]:
    """Return a module with an input that is an output, an unused one, a view of one, and equal outputs."""
    arrays = {
        name: np.linspace(at, at + 1, 12, dtype=np.float32).reshape(3, 4)
        for at, name in enumerate(("a", "b", "unused"))
    }

    def doubled(v: Any) -> Any:
        return ir.call("add", [v["a"], v["b"]])

    outputs = {
        "same": lambda v: v["a"],
        "view": lambda v: ir.call("reshape", [v["b"]], newshape=(12,)),
        "sum": doubled,
        "sum view": lambda v: ir.call("reshape", [doubled(v)], newshape=(4, 3)),
        "later": lambda v: ir.call("exp", [ir.call("multiply", [v["a"], v["a"]])]),
    }
    return module_of(arrays, outputs), arrays


@pytest.mark.parametrize("pools", [[], [Pool("one", 96), Pool("two", 112), Pool("rest")]])
@pytest.mark.parametrize("external", [False, True])
def test_odd_interfaces_in_the_workspace(tmp_path: Path, pools: list[Pool], external: bool) -> None:
    module, arrays = odd_module()
    factory = mlfc.build(module, module_name="odd", workspace_io=True, pools=pools, external_workspace=external)
    model = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / "odd.tar"))
    found = model.run(arrays)
    a, b = arrays["a"], arrays["b"]
    expected = {
        "same": a,
        "view": b.reshape(12),
        "sum": a + b,
        "sum view": (a + b).reshape(4, 3),
        "later": np.exp(a * a),
    }
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_a_module_without_inputs_maps_none(tmp_path: Path) -> None:
    weight = ir.Constant(np.arange(4, dtype=np.float32), "w")
    factory = mlfc.build(module_of({}, {"y": lambda _: weight}), module_name="none", workspace_io=True)
    found = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / "none.tar")).run()
    np.testing.assert_array_equal(found["y"], weight.data)


def test_inputs_are_mapped_where_the_header_says(models: Path, tmp_path: Path) -> None:
    folder = extracted(imported(models / "kws_ref_model.tflite", "kws", workspace_io=True), tmp_path)
    header = (folder / "codegen/host/include/tvmgen_kws.h").read_text()
    assert "int32_t tvmgen_kws_run(void);" in header
    assert "struct tvmgen_kws_inputs tvmgen_kws_map_inputs(void);" in header
    assert "struct tvmgen_kws_outputs tvmgen_kws_map_outputs(void);" in header
    assert "a run destroys the inputs" in header
    sources = (folder / "codegen/host/src/kws_lib0.c").read_text()
    assert "static uint8_t global_workspace[" in sources


def test_ram_with_inputs_in_the_workspace_is_the_workspace_alone(models: Path) -> None:
    plain = imported(models / "kws_ref_model.tflite", "kws", target="c -mcpu=cortex-m3")
    placed = imported(models / "kws_ref_model.tflite", "kws", target="c -mcpu=cortex-m3", workspace_io=True)
    assert placed.plan.size < plain.plan.size + plain.code.sizes.io
    check_budget([placed], ram=placed.plan.size)
    with pytest.raises(BudgetError, match=r"exceed the budget of .* by 1 bytes"):
        check_budget([placed], ram=placed.plan.size - 1)
    with pytest.raises(BudgetError):
        check_budget([plain], ram=placed.plan.size)


def test_modules_together_are_held_against_a_memory(models: Path) -> None:
    pools, constants = [Pool("dtcm", 300), Pool("sram")], [ConstantPool("itcm", 4096), ConstantPool("flash")]
    model = models / "ad01_int8.tflite"
    one, two = (imported(model, name, pools=pools, constants=constants) for name in ("one", "two"))
    check_budget([one])
    with pytest.raises(BudgetError, match=r"workspace of all modules take \d+ bytes of 'dtcm'.*one \d+, two \d+"):
        check_budget([one, two])
    free = [imported(model, name, constants=constants) for name in ("one", "two")]
    with pytest.raises(BudgetError, match=r"constants of all modules take [\d,]+ bytes of 'itcm'"):
        check_budget(free)


@pytest.mark.parametrize("options", [{"format_version": 5}, {"format_version": 6}, {"rfc": True}])
def test_older_forms_carry_what_the_caller_loads(models: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    factory = imported(models / "ad01_int8.tflite", "ad", constants=[HOT, ConstantPool("xip", external=True)])
    path = mlfc.export_model_library_format(factory, tmp_path / "ad.tar", **options)
    assert [str(fault) for fault in validate(path)] == []
    model, plain = mlfc.load(path), load_factory(imported(models / "ad01_int8.tflite", "plain"))
    inputs = seeded_inputs(model.inputs, 0)
    np.testing.assert_array_equal(model.run(inputs)["Identity"], plain.run(inputs)["Identity"])


def sections(library: Path) -> dict[str, str]:
    """Return the hexadecimal sizes of the object's sections by name, from binutils."""
    text = subprocess.run(["objdump", "-h", library], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) > 2 and row[0].isdecimal()}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_blocks_and_constants_lie_in_sections_of_their_memories(models: Path, tmp_path: Path, compiler: str) -> None:
    choice = {"pools": TWO, "constants": [HOT, ConstantPool("flash")]}
    factory = imported(models / "kws_ref_model.tflite", "kws", **choice)
    sizes = {}
    for name in ("kws_lib0", "kws_lib1"):
        for path, data in factory.code.files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(bytes(data))
        source = tmp_path / f"src/{name}.c"
        command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", tmp_path / "include", "-c"]
        subprocess.run([*command, source, "-o", tmp_path / f"{name}.o"], check=True)
        sizes.update(sections(tmp_path / f"{name}.o"))
    for pool in factory.plan.spans:
        assert int(sizes[f".bss.noinit.tvm.{pool.name}"], 16) == pool.nbytes
    known = {pool.name: pool.nbytes for pool in factory.interface().constant_pools}
    assert set(known) == {"tcm", "flash"}
    for name, nbytes in known.items():
        # constants are aligned to 64 bytes
        assert nbytes <= int(sizes[f".rodata.tvm.{name}"], 16) < nbytes + 64 * len(factory.program.constants)
    assert sum(known.values()) == factory.code.sizes.constants


def test_large_constants_keep_their_memories(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = ir.Constant(rng.standard_normal((640, 640)).astype(np.float32), "large")
    x = rng.standard_normal((1, 640)).astype(np.float32)
    module = module_of({"x": x}, {"y": lambda v: ir.call("nn.dense", [v["x"], large], units=640)})
    for external in (False, True):
        choice = [ConstantPool("tcm", 4096), ConstantPool("xip", external=external)]
        factory = mlfc.build(module, module_name="large", constants=choice)
        assert ("src/large_lib2.S" in factory.code.files) is not external
        path = mlfc.export_model_library_format(factory, tmp_path / f"large{external}.tar")
        found = mlfc.load(path).run(x)["y"]
        np.testing.assert_allclose(found, x @ large.data.T, rtol=1e-4, atol=1e-4)
        assert [str(fault) for fault in validate(path)] == []
    text = bytes(mlfc.build(module, constants=[ConstantPool("xip")]).code.files["src/default_lib2.S"]).decode()
    assert '.section .rodata.tvm.xip,"a",%progbits' in text


def test_what_the_caller_loads_is_spelled_out_and_in_a_file(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "ad01_int8.tflite", "ad", constants=[ConstantPool("xip", external=True)])
    folder = extracted(factory, tmp_path)
    data = (folder / "codegen/host/src/ad_lib3.xip.bin").read_bytes()
    header = (folder / "codegen/host/include/tvmgen_ad.h").read_text()
    assert f"#define TVMGEN_AD_XIP_CONSTANT_POOL_SIZE {len(data)}\n" in header
    numbers = header.partition("_CONSTANT_POOL_DATA \\\n")[2].partition("\n\n")[0].replace("\\\n", "")
    assert bytes(map(int, numbers.split(","))) == data


def test_files_of_constants_that_do_not_fit_are_refused(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "ad01_int8.tflite", "ad", constants=[ConstantPool("xip", external=True)])
    details = factory.interface()
    files = dict(factory.code.files)
    path = details.constant_pools[0].file
    for change, said in (({path: b"short"}, "is 5 bytes long"), ({}, "is missing")):
        given = {**{key: data for key, data in files.items() if key != path}, **change}
        with pytest.raises(ArchiveError, match=said):
            loaded_pools(details, given)
    with pytest.raises(OptionError, match="no argument for constants that the caller loads"):
        factory.export_library(tmp_path / "ad.so")


def test_profiles_and_bound_calls_of_mapped_modules(models: Path, tmp_path: Path) -> None:
    factory = imported(models / "hello_world_int8.tflite", "sine", workspace_io=True)
    path = mlfc.export_model_library_format(factory, tmp_path / "sine.tar")
    plain = load_factory(imported(models / "hello_world_int8.tflite", "plain"))
    inputs = seeded_inputs(plain.inputs, 0)
    expected = plain.run(inputs)[OUTPUT]
    model = mlfc.load(path)
    call = model.bind(inputs)
    for _ in range(2):
        assert call() == 0
        np.testing.assert_array_equal(call.outputs[OUTPUT], expected)
    profile = load_profiled(path).profile(inputs, repeat=2)
    assert len(profile.operators) == 3
    np.testing.assert_array_equal(profile.outputs[OUTPUT], expected)


def test_modules_with_memories_of_their_own_share_nothing_of_them(models: Path) -> None:
    def made(name: str, **choice: Any) -> Factory:
        return imported(models / "ad01_int8.tflite", name, **choice)

    factories = [
        made("one", constants=[ConstantPool("flash")]),
        made("two"),
        made("three"),
        made("four", pools=[Pool("p")]),
    ]
    linked = link(factories, share_weights=True, share_workspace=True)
    assert set(linked.workspace_modules) == {"one", "two", "three"}
    one, two = (code.sizes for code in linked.modules[:2])
    assert one.shared_constants == 0
    assert two.shared_constants == two.constants


def test_modules_that_share_a_workspace_may_map_their_tensors(models: Path, tmp_path: Path) -> None:
    factories = [imported(models / "hello_world_int8.tflite", name, workspace_io=True) for name in ("one", "two")]
    path = mlfc.export_model_library_format(factories, tmp_path / "both.tar", share_workspace=True)
    plain = load_factory(imported(models / "hello_world_int8.tflite", "plain"))
    inputs = seeded_inputs(plain.inputs, 0)
    for name in ("one", "two"):
        found = mlfc.load(path, name).run(inputs)
        np.testing.assert_array_equal(found[OUTPUT], plain.run(inputs)[OUTPUT])


def test_the_graph_executor_places_nothing(models: Path) -> None:
    for choice in ({"workspace_io": True}, {"pools": TWO}, {"constants": [HOT, ConstantPool("flash")]}):
        with pytest.raises(OptionError, match="--executor aot"):
            imported(models / "ad01_int8.tflite", "ad", executor="graph", **choice)


def test_a_pool_whose_macro_would_be_a_tensors_is_refused() -> None:
    def made(**choice: Any) -> Factory:
        names = ("fast_workspace_pool", "sd_constant_pool")
        arrays = {name: np.zeros((1, 40), np.float32) for name in names}
        weight = ir.Constant(np.ones((40, 40), np.float32), "w")

        def body(v: Any) -> Any:
            hidden = ir.call("nn.dense", [ir.call("add", [v[name] for name in names]), weight], units=40)
            return ir.call("nn.softmax", [hidden])

        return mlfc.build(module_of(arrays, {"y": body}), **choice)

    made(pools=[Pool("other")])
    with pytest.raises(OptionError, match="of 'fast' and of the tensor 'fast_workspace_pool'"):
        made(pools=[Pool("fast")])
    with pytest.raises(OptionError, match="of 'sd' and of the tensor 'sd_constant_pool'"):
        made(constants=[ConstantPool("sd", external=True)])


TVM_HEADER = """
#define TVMGEN_M_A_SIZE 4
#define TVMGEN_M_ONE_WORKSPACE_POOL_SIZE 8
#define TVMGEN_M_TWO_WORKSPACE_POOL_SIZE 4
struct tvmgen_m_inputs { void* a; };
struct tvmgen_m_outputs { void* y; void* z; };
struct tvmgen_m_workspace_pools { void* one; void* two; };
struct tvmgen_m_inputs tvmgen_m_map_inputs(struct tvmgen_m_workspace_pools* workspace_pools);
struct tvmgen_m_outputs tvmgen_m_map_outputs(struct tvmgen_m_workspace_pools* workspace_pools);
int32_t tvmgen_m_run(struct tvmgen_m_workspace_pools* workspace_pools);
"""


def test_headers_of_tvm_with_mapped_tensors_are_understood() -> None:
    tensors = {
        "a": TensorRecord("a", "uint8", 4),
        "y": TensorRecord("y", "uint8", 4),
        "z": TensorRecord("z", "uint8", 4),
    }
    memory = MainMemory(1, 12, 0, 12, (tensors["a"],), (tensors["y"], tensors["z"]))
    record = ModuleRecord("m", ("aot",), ("c",), "", main=(memory,))
    description = c_interface(record, TVM_HEADER, None, "a.tar")
    module = AotModule(compile_cached({"src/m.c": MAPPED.replace(b" m_", b" tvmgen_m_")}), description)
    x = np.array([1, 2, 3, 250], np.uint8)
    found = module.run(x)
    np.testing.assert_array_equal(found["y"], x + 1)
    np.testing.assert_array_equal(found["z"], x)


MAPPED = b"""
#include <stdint.h>
struct inputs { void *a; };
struct outputs { void *y; void *z; };
struct pools { uint8_t *one; uint8_t *two; };
struct inputs m_map_inputs(struct pools *pools) { struct inputs found = { pools->one + 4 }; return found; }
struct outputs m_map_outputs(struct pools *pools) {
  struct outputs found = { pools->one + 4, pools->two };
  return found;
}
int32_t m_run(struct pools *pools) {
  for (int i = 0; i < 4; ++i) { pools->two[i] = pools->one[4 + i]; pools->one[4 + i] += 1; }
  return 0;
}
"""


def test_the_runtime_copies_into_what_is_mapped() -> None:
    tensor = {"shape": [4], "dtype": "uint8"}
    sizes = {"base": 0, "lower_bound_bytes": 0}
    description = interface(
        entry="m_run",
        memory={"workspace_bytes": 12},
        external_workspace=True,
        workspace_io=True,
        pools=[{"name": "one", "bytes": 8, **sizes}, {"name": "two", "bytes": 4, **sizes}],
        inputs=[{"name": "a", **tensor}],
        outputs=[{"name": "y", **tensor}, {"name": "z", **tensor}],
    )
    module = AotModule(compile_cached({"src/m.c": MAPPED}), description)
    x = np.array([1, 2, 3, 250], np.uint8)
    for _ in range(2):
        found = module.run(x)
        np.testing.assert_array_equal(found["y"], x + 1)
        np.testing.assert_array_equal(found["z"], x)
