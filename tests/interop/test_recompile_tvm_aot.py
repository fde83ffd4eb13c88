"""Values of TVM's AOT archives are recovered from the C of their functions, or the missing ones are named."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.archive.read.compiled_code import MAX_CODE
from mlfc.archive.read.opening import open_archive
from mlfc.archive.read.scales import recovered_scales
from mlfc.archive.read.source import read_source
from mlfc.archive.write.rebuild import rebuild
from mlfc.errors import ArchiveError
from mlfc.relay.ir import Constant, IRModule
from mlfc.relay.visitor import post_order
from mlfc.support.fixed_point import quantize_multiplier

Arrays = Mapping[str, Any]
RANDOM = np.random.default_rng(11)
TEXT = """def @main(%x: Tensor[(1, 3), float32], %w: Tensor[(4, 3), float32], %b: Tensor[(4), float32], \
%c: Tensor[(1, 4), float32], %d: Tensor[(4), uint8]) {
  %0 = nn.dense(%x, %w, units=4);
  %1 = nn.bias_add(%0, %b);
  %2 = multiply(%1, 0.333333f);
  %3 = reshape(%2, newshape=[1, 4]);
  %4 = subtract(%3, %c);
  %5 = add(%4, %3);
  %6 = cast(%5, dtype="uint8");
  (add(%6, %d), %5)
}
"""
WEIGHTS: dict[str, Any] = {
    "w": RANDOM.standard_normal((4, 3)).astype("f"),
    "b": np.array([np.inf, -1e-42, 3.4e38, -0.0], "f"),
    "c": RANDOM.standard_normal((1, 4)).astype("f"),
    "d": np.array([0, 7, 200, 255], "B"),
}
DENSE = "fused_nn_contrib_dense_pack_add_multiply"
BLOCK = "((float*)fused_constant)[(((ax1_outer_ax0_outer_fused * 6) + (k_outer * 2)) + x_c)]"
ARRAYS = {
    "fused_constant": WEIGHTS["w"].reshape(2, 2, 3).transpose(0, 2, 1),
    "fused_nn_contrib_dense_pack_constant": WEIGHTS["b"],
    "fused_constant_1": WEIGHTS["c"],
    "fused_cast_constant": WEIGHTS["d"],
}
BODIES = {
    DENSE: f"T_multiply[0] = ((compute[0] + (p0[k_outer] * {BLOCK})) + "
    "((float*)fused_nn_contrib_dense_pack_constant)[cse_var_1]) * 3.333333e-01f;",
    "fused_subtract_add": "T_add[ax1] = ((p0[ax1] - ((float*)fused_constant_1)[ax1]) + p0[ax1]);",
    "fused_cast_add": "T_add[ax1] = (((uint8_t)p0[ax1]) + ((uint8_t*)fused_cast_constant)[ax1]);",
}
RESULTS = {DENSE: "T_multiply", "fused_subtract_add": "T_add", "fused_cast_add": "T_add"}
CALLS = [(DENSE, "x_buffer_var", "sid_1"), ("fused_subtract_add", "sid_1", "output1_buffer_var"),
         ("fused_cast_add", "output1_buffer_var", "output0_buffer_var")]  # fmt: skip
TYPES = {"float32": "float", "uint8": "uint8_t"}
START = '#ifdef __cplusplus\nextern "C"\n#endif\nTVM_DLL int32_t tvmgen_net_'
PACKED = "void* args, int32_t* arg_type_ids, int32_t num_args, void* out_ret_value, int32_t* out_ret_tcode"


def elements(array: Any) -> str:
    """Return the elements of an array as TVM prints them."""
    if array.dtype.kind == "f":
        texts = [float(x).hex().replace("inf", "INFINITY") for x in array.ravel()]
    else:
        texts = [f"0x{int(x):02x}" for x in array.ravel()]
    return "\n    " + ", ".join(texts) + "\n"


def unpacked() -> str:
    """Return the C that TVM writes without pools and with the unpacked interface."""
    arrays = "".join(
        f'static const {TYPES[array.dtype.name]} __attribute__((section(".rodata.tvm"), aligned(16))) '
        f"{name}[{array.size}] = {{{elements(array)}}};\n"
        for name, array in ARRAYS.items()
    )
    functions = "".join(
        f"{START}{name}(float* p0, float* {RESULTS[name]}) {{\n  {body}\n  return 0;\n}}\n\n"
        for name, body in BODIES.items()
    )
    calls = "".join(f"  if (tvmgen_net_{name}({x}, {y}) != 0 ) return -1;\n" for name, x, y in CALLS)
    return (
        f"// tvm target: c -keys=cpu\n{arrays}{functions}{START}__tvm_main__(float* x_buffer_var, uint8_t* "
        "output0_buffer_var, float* output1_buffer_var) {\n"
        "  void* sid_1 = TVMBackendAllocWorkspace(1, 0, (uint64_t)16, 0, 8);\n  if (sid_1 == NULL) {\n    return -1;\n"
        f"  }}\n{calls}  if (TVMBackendFreeWorkspace(1, 0, sid_1) != 0) {{\n    return -1;\n  }}\n  return 0;\n}}\n"
    )


def pooled() -> str:
    """Return the C that TVM writes where it plans memory in pools."""
    code = unpacked()
    fields = [f"  {TYPES[a.dtype.name]} {n}_let[{a.size}] __attribute__((packed, aligned(16))); // {a.nbytes} bytes"
              for n, a in ARRAYS.items()]  # fmt: skip
    values = [f"  .{name}_let = {{{elements(array)}  }}," for name, array in ARRAYS.items()]
    struct = "static struct global_const_workspace {\n" + "\n".join(fields) + "\n} global_const_workspace = {\n"
    code = code[: code.index("static const")] + struct + "\n".join(values) + "\n};// of total size\n" + code[
        code.index("#ifdef") :]  # fmt: skip
    for name in ARRAYS:
        code = re.sub(rf"\b{name}\)\[", f"{name}_let)[", code)
    pools = "uint8_t* global_const_workspace_0_var, uint8_t* global_workspace_1_var"
    code = code.replace(") {\n  T_", f", {pools}) {{\n  T_").replace(
        "output1_buffer_var) {", f"output1_buffer_var, {pools}) {{"
    )
    code = re.sub(r"TVMBackendAllocWorkspace\(.*?\);", "(&(global_workspace_1_var[16]));", code)
    code = code.replace(
        "void* sid_1", "void* fused_constant_let = (&(global_const_workspace_0_var[0]));\n  void* sid_1"
    )
    return code.replace(") != 0 ) return", ", global_const_workspace_0_var, global_workspace_1_var) != 0 ) return")


def packed() -> str:
    """Return the C that TVM writes with the packed interface."""
    code = unpacked().replace("p0[", "((float*)p0_1)[")
    for name, result in RESULTS.items():
        body = "".join(
            f"  void* {each} = (((TVMValue*)args)[{at}].v_handle);\n" for at, each in enumerate(("p0", result))
        )
        code = code.replace(f"{name}(float* p0, float* {result}) {{\n", f"{name}({PACKED}) {{\n{body}")
    main = "".join(
        f"  void* {name}_buffer_var = (((DLTensor*){name})[0].data);\n  if (!({name}_strides == NULL)) {{\n  }}\n"
        for name in ("x", "output0", "output1")
    )
    code = re.sub(r"(__tvm_main__)\(.*\) \{\n", lambda match: f"{match[1]}({PACKED}) {{\n{main}", code)
    for name, *names in CALLS:
        lines = "".join(
            f"  (((DLTensor*)stack_array)[{at}].data) = {each};\n    uint64_t v_ = (uint64_t)0;\n"
            f"  (((DLTensor*)stack_array)[{at}].shape) = (&(((int64_t*)stack_shape)[0]));\n"
            f"  (((TVMValue*)stack_value)[{at}].v_handle) = (((DLTensor*)stack_array) + {at});\n"
            for at, each in enumerate(names)
        )
        call = (
            "( (TVMValue*) stack_value , (int*) stack_tcode, 1, &ret_val, &ret_code, NULL) != 0){\n    return -1;\n  }"
        )
        code = code.replace(
            f"  if (tvmgen_net_{name}({', '.join(names)}) != 0 ) return -1;", f"{lines}  if (tvmgen_net_{name}{call}"
        )
    return code


def archive(path: Path, code: str, text: str = TEXT, target: str = "c -keys=cpu ", source: str = "net_lib0.c") -> Path:
    """Write an archive as TVM's of an AOT module."""
    main = {"constants_size_bytes": 0, "device": 1, "inputs": {"x": {"dtype": "float32", "size": 12}}, "outputs": {}}
    memory = {
        "functions": {"main": [{**main, "io_size_bytes": 0, "workspace_size_bytes": 0}], "operator_functions": []}
    }
    record = {"export_datetime": "2026-11-20 11:29:07Z", "external_dependencies": [], "executors": ["aot"]}
    record |= {"memory": memory, "model_name": "net", "style": "full-model", "target": [target]}
    folder = "codegen/host/lib" if source.endswith(".o") else "codegen/host/src"
    files = {
        "metadata.json": json.dumps({"modules": {"net": record}, "version": 7}),
        f"{folder}/{source}": code,
        "src/net.relay": text,
    }
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            tar.addfile(item, io.BytesIO(data.encode()))
    return path


def source_of(path: Path, module: str = "net") -> tuple[IRModule, dict[str, Any]]:
    with open_archive(path) as opened:
        return read_source(opened, module)


def floats_of(module: IRModule) -> list[float]:
    nodes = post_order(module.main.body)
    return [node.data.item() for node in nodes if isinstance(node, Constant) and not node.data.shape]


@pytest.mark.parametrize("form", [unpacked, pooled, packed])
def test_constants_of_each_form_of_code_return_to_their_places(form: Callable[[], str], tmp_path: Path) -> None:
    code = form()
    module, weights = source_of(archive(tmp_path / "net.tar", code))
    assert weights.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert (weights[name].dtype, weights[name].tobytes()) == (array.dtype, array.tobytes())
    assert floats_of(module) == [np.float32("0.3333333")]  # which the code multiplies by
    decimal = re.sub(r"-?0x[01]\.\w+p[+-]\d+", lambda match: f"{float.fromhex(match[0]):.8e}f", code)
    assert decimal != code
    _, again = source_of(archive(tmp_path / "net.tar", decimal.replace("0xc8", "200u").replace("0xff", "+255")))
    assert [array.tobytes() for array in again.values()] == [array.tobytes() for array in weights.values()]


W, B = "fused_constant[12]", "fused_nn_contrib_dense_pack_constant[4]"


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (W, "fused_constant[13]", "the array fused_constant of its C has 12 elements; 13 are declared"),
        ("-0x0.0p+0", "", "constant of its C has an element|has 3 elements; 4 are declared"),
        ("INFINITY", "INFINITE", "fused_nn_contrib_dense_pack_constant of its C has an element that is not a"),
        ("0xff", "0x1ff", "fused_cast_constant of its C has an element that uint8_t cannot represent"),
        ("0xff", "0x1" + 30 * "f", "fused_cast_constant of its C has an element that is not a number"),
        (B, "fused_constant[4]", "its C has two arrays of the same name"),
        (B, "fused_other_constant[4]", "is not what the text computes with multiply"),
        ("const float", "const half", "is not what the text computes with"),
        ("_pack_add_multiply", "_pack_add_divide", "multiply_or_divide|is not what the text computes with multiply"),
        ("k_outer * 2", "k_outer * 3", "its C does not prove the layout of the weights of tvmgen_net_fused_nn_contrib"),
        ("k_outer * 2", "k_outer % 2", "its C does not prove the layout of the weights of tvmgen_net_fused_nn_contrib"),
        ("nn_contrib_dense_pack", "nn_dense_pack", "is not what the text computes with multiply"),
        ("3.333333e-01f", "3.333433e-01f", "no value of 0.333333f was found"),
        ("(x_buffer_var, sid_1)", "(sid_1, sid_1)", "main function calls tvmgen_net_fused_nn_contrib_dense_pack_add_m"),
        ("(x_buffer_var, sid_1)", "(x_buffer_var)", "with other arguments than its parameters"),
        ("(x_buffer_var, sid_1)", "(x_buffer_var, x_buffer_var)", "with other arguments than its parameters"),
        ("(output1_buffer_var, output0", "(output1_buffer_var, output1", "does not compute all outputs"),
        ("  if (sid_1 == NULL) {", "  for (;;) {", "its main function has the statement for (;;) {"),
        ("  if (sid_1 == NULL) {", "  memcpy(sid_1, x);", "its main function has the statement memcpy(sid_1, x);"),
        ("__tvm_main__", "__main__", "its C has no main function of TVM's form"),
        ("  return 0;\n}\n\n", "  return 0;\n ", "its C has no end of tvmgen_net_fused_"),
        ("net_fused_cast_add(float", "net_fused_subtract_add(float", "tvmgen_net_fused_subtract_add, or has it"),
    ],
)  # fmt: skip
def test_code_that_does_not_prove_a_value_is_refused(old: str, new: str, cause: str, tmp_path: Path) -> None:
    code = unpacked()
    assert old in code
    path = archive(tmp_path / "net.tar", code.replace(old, new))
    with pytest.raises(ArchiveError) as info:
        source_of(path)
    start = "module 'net' was not compiled by mlfc, and its archive lacks the weights w, b, c, d: "
    assert info.value.cause.startswith(start)
    assert re.search("|".join(map(re.escape, cause.split("|"))), info.value.cause)


def test_code_of_other_compilers_and_targets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tar"
    cases: dict[str, dict[str, Any]] = {
        "it has neither a graph with parameters nor C code": {"source": "net_lib0.o"},
        "its C does not prove the layout of the weights of": {"target": "c -keys=arm_cpu,cpu -mcpu=cortex-m7"},
        "its C does not contain the shape of meta[relay.Constant][0]": {
            "text": TEXT.replace("subtract(%3, %c)", "subtract(%3, meta[relay.Constant][0])").replace(
                "%c: Tensor[(1, 4), float32], ", ""
            )
        },
    }
    for cause, changes in cases.items():
        with pytest.raises(ArchiveError) as info:
            source_of(archive(path, unpacked(), **changes))
        assert cause in info.value.cause
    with pytest.raises(ArchiveError, match="its C code has more than 67,108,864 bytes"):
        source_of(archive(path, unpacked() + " " * MAX_CODE))


@pytest.mark.parametrize(
    "code",
    [
        "static const float __attribute__((a)) a[1] = {" * 20_000,
        "TVM_DLL int32_t f(int32_t a) {\n" * 50_000,
        "  .a = {" * 200_000,
        "  float a[1] __attribute__((" + "(" * 1_000_000,
        "static const int32_t __attribute__((a)) a[1] = {" + "9" * 1_000_000 + "};",
        unpacked().replace("return 0;", "* (int64_t)" * 100_000),
        unpacked().replace("3.333333e-01f", "(" * 1_000_000),
        unpacked().replace("  if (sid_1", "if (a(" + ")" * 1_000_000 + "\n  if (sid_1"),
    ],
    ids=range(8),
)
def test_hostile_code_takes_linear_time(code: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="module 'net' was not compiled by mlfc"):
        source_of(archive(tmp_path / "net.tar", code))


def changed(path: Path, source: Path, changes: Callable[[str], str]) -> Path:
    """Write a copy of an archive whose C is changed."""
    with tarfile.open(source) as old, tarfile.open(path, "w") as new:
        for item in old:
            file = old.extractfile(item)
            data = file.read() if file else b""
            if item.name.endswith("_lib1.c"):
                data = changes(data.decode()).encode()
            item.size = len(data)
            new.addfile(item, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["kws_graph_c", "multi"])
def test_quantized_archives_of_tvm_compute_the_same_again(name: str, shared: Path) -> None:
    folder = shared / "fixtures/tvm-0.14"
    for factory in rebuild(folder / f"{name}.tar.xz"):
        recorded = np.load(folder / f"{factory.module_name}_io.npz")
        for x, expected in zip(recorded["inputs"], recorded["outputs"], strict=True):
            (result,) = factory.runtime.run({str(recorded["input_name"]): x}).values()
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("name", "old", "new", "cause"),
    [
        (
            "kws_aot_c",
            "1278221461",
            "1278221460",
            "no values of the scales 0.000672841f and 0.144693f have the compiled multiplier",
        ),
        (
            "kws_graph_c",
            "(7 + 31)",
            "(6 + 31)",
            "no values of the scales 0.000672841f and 0.144693f have the compiled multiplier",
        ),
        (
            "kws_graph_c",
            "(int64_t)1278221461",
            "scale",
            "0.000672841f and 0.144693f were found, as the code has no multiplier of them",
        ),
        ("kws_aot_c", "1.446925e-01f", "1.456925e-01f", "no value of 0.144693f was found"),
        ("kws_graph_c", "2.560000e+02f", "2.550000e+02f", "no value of 0.00390625f was found"),
        ("kws_aot_c", "(sid_2, sid_1)", "(sid_3, sid_1)", "is not what the text computes with"),
        (
            "kws_aot_c",
            "fused_nn_conv2d_add_constant_24)",
            "fused_nn_conv2d_add_constant_25)",
            "no values of the scales meta[relay.Constant][17] and",
        ),
        ("kws_aot_c", "-0x0050, +0x000c", "-0x0050, +0x0fff", "is not what the text computes with"),
        ("kws_aot_c", "_cast_mult_1c9b307ace4645e7_", "_cast_divi_1c9b307ace4645e7_", "is not what the text computes"),
    ],
)
def test_changed_archives_of_tvm_are_refused(
    name: str, old: str, new: str, cause: str, shared: Path, tmp_path: Path
) -> None:
    def replaced(code: str) -> str:
        assert old in code
        return code.replace(old, new)

    path = changed(tmp_path / "kws.tar", shared / f"fixtures/tvm-0.14/{name}.tar.xz", replaced)
    with pytest.raises(ArchiveError) as info:
        source_of(path, "kws")
    assert "and 18 constants meta[relay.Constant]: " in info.value.cause
    assert cause in info.value.cause


def test_the_scales_of_several_channels_are_those_of_the_model() -> None:
    target, source = np.float32(0.0787254), (RANDOM.random(16) * 1e-3).astype("f")
    pairs = [quantize_multiplier(float(scale) / float(target)) for scale in source]
    multipliers, shifts = (np.array(numbers, np.int32) for numbers in zip(*pairs, strict=True))
    factors = [multipliers, np.maximum(shifts, 0), np.maximum(-shifts, 0)]
    printed = np.asarray(np.float32(format(np.nextafter(target, np.float32(1)), ".6g")))
    found = recovered_scales(factors, None, printed)
    assert found is not None
    np.testing.assert_array_equal(found[0], source)
    assert found[1] == target
    for wrong in ([-multipliers, *factors[1:]], [multipliers, factors[1], factors[2] + 40], [*factors[:2], shifts[:3]]):
        assert recovered_scales(wrong, None, printed) is None
