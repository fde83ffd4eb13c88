"""OpenCL on any available device: TVM's own kernels and stored modules, launches, memory, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.errors import ArchiveError, DeviceError, InputError
from mlfc.runtime import FunctionInfo, OpenClModule, load_from_bytes
from mlfc.runtime.devices.device import DeviceApi, set_device
from mlfc.runtime.modules.module import extent_of
from mlfc.runtime.tensor.ndarray import array
from tests.conftest import need_opencl

pytestmark = pytest.mark.usefixtures("quick_builds")

TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
CL_KEY = b"\x06\0\0\0\0\0\0\0opencl"
TREE_KEY = b"\x0c\0\0\0\0\0\0\0_import_tree"

SIZES = """// Function: sizes
__kernel void sizes(__global int* out) {
  if (get_global_id(0) + get_global_id(1) + get_global_id(2) == 0) {
    out[0] = get_work_dim();
    for (int axis = 0; axis < 3; ++axis) {
      out[1 + axis] = get_num_groups(axis);
      out[4 + axis] = get_local_size(axis);
    }
  }
}
"""


@pytest.fixture(scope="module")
def api() -> DeviceApi:
    device = need_opencl()
    return device.api


def stored_by_tvm(shared: Path, name: str) -> bytes:
    """Return the body of the only OpenCL module in a blob written by TVM."""
    blob = (shared / "fixtures/tvm-0.14" / f"{name}.mblob.bin").read_bytes()
    return blob[blob.index(CL_KEY) + len(CL_KEY) : blob.index(TREE_KEY)]


def module_of(source: str, name: str, types: tuple[str, ...], tags: tuple[str, ...] = ("blockIdx.x",)) -> OpenClModule:
    return OpenClModule("cl", {name: FunctionInfo(name, types, tags)}, source)


def to_device(api: DeviceApi, array: np.ndarray) -> int:
    handle = api.allocate(array.nbytes)
    api.copy_in(handle, 0, array)
    return handle


def from_device(api: DeviceApi, handle: int, like: np.ndarray) -> np.ndarray:
    out = np.zeros_like(like)
    api.copy_out(handle, 0, out)
    return out


@pytest.mark.parametrize("name", ["opencl_lib", "opencl_factory"])
def test_modules_that_tvm_stored_are_read_and_stored_again(shared: Path, name: str) -> None:
    body = stored_by_tvm(shared, name)
    module = load_from_bytes("opencl", body)
    assert isinstance(module, OpenClModule)
    assert module.type_key == "opencl"
    assert module.property_mask == 3
    assert module.save_to_bytes() == body
    assert module.functions["tvmgen_default_fused_nn_softmax_kernel_1"] == FunctionInfo(
        "", ("handle", "handle", "handle"), ("blockIdx.x",)
    )
    extent = extent_of("opencl")
    assert extent is not None
    assert extent(memoryview(body + TREE_KEY)) == len(body)


def test_tvms_kernels_give_tvms_result(shared: Path, api: DeviceApi) -> None:
    """Run the fixture's graph: conv2d with ReLU, flatten (a view), softmax in four kernels."""
    module = load_from_bytes("opencl", stored_by_tvm(shared, "opencl_factory"))
    io = np.load(shared / "fixtures/tvm-0.14/conv_io.npz")
    data, weights, relu = to_device(api, io["data"]), to_device(api, io["w"]), api.allocate(8192)
    largest, total, powers, result = (api.allocate(nbytes) for nbytes in (4, 4, 8192, 8192))
    name = "tvmgen_default_fused_nn_softmax_kernel"
    # the extents along x, y and z appear four times each, as in TVM's launch tags
    module["tvmgen_default_fused_nn_conv2d_nn_relu_kernel"](relu, data, weights, 8, 16, 16, *[1] * 9)
    module[name](largest, relu, 1)
    module[f"{name}_1"](powers, largest, relu, 1)
    module[f"{name}_2"](powers, total, 1, 64)
    module[f"{name}_3"](powers, total, result, 1, 64)
    np.testing.assert_allclose(from_device(api, result, io["out"]), io["out"], rtol=2e-5, atol=1e-7)


@given(
    st.permutations(TAGS).flatmap(
        lambda tags: st.tuples(
            st.lists(st.sampled_from(tags), min_size=1, max_size=9), st.lists(st.integers(0, 3), min_size=9, max_size=9)
        )
    )
)
def test_extents_are_those_that_the_tags_say(case: tuple[list[str], list[int]]) -> None:
    tags, values = case
    device = need_opencl()
    handle = device.api.allocate(28)
    module_of(SIZES, "sizes", ("handle",), tuple(tags))["sizes"](handle, *values[: len(tags)])
    found = from_device(device.api, handle, np.zeros(7, np.int32)).tolist()
    device.api.free(handle)
    last = dict(zip(tags, values, strict=False))
    assert found[1:] == [max(1, last.get(tag, 1)) for tag in TAGS]
    assert found[0] == 1 + max(TAGS.index(tag) % 3 for tag in tags)


def test_numbers_are_narrowed_as_c_does_it(api: DeviceApi) -> None:
    source = """// Function: numbers
__kernel void numbers(__global double* out, char a, ushort b, int c, ulong d, float e, double f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
}
"""
    types = ("handle", "int8", "uint16", "int32", "uint64", "float32", "float64")
    handle = api.allocate(48)
    module_of(source, "numbers", types)["numbers"](handle, 0x1FF, -1, 1 << 31, -1, 0.1, 0.1, 1)
    found = from_device(api, handle, np.zeros(6))
    assert found.tolist() == [-1, 65535, -(2.0**31), 2.0**64, float(np.float32(0.1)), 0.1]


def test_shared_memory_of_a_launch_is_a_local_parameter(api: DeviceApi) -> None:
    source = """// Function: turn
__kernel void turn(__global int* data, __local int* kept) {
  int i = get_local_id(0), last = get_local_size(0) - 1;
  kept[i] = data[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  data[i] = kept[last - i];
}
"""
    module = module_of(source, "turn", ("handle",), ("threadIdx.x", "tir.use_dyn_shared_memory"))
    numbers = np.arange(32, dtype=np.int32)
    handle = to_device(api, numbers)
    module["turn"](handle, 32, 128)
    assert from_device(api, handle, numbers).tolist() == numbers[::-1].tolist()


def test_binaries_of_the_drivers_compiler_are_loaded(api: DeviceApi) -> None:
    import pyopencl

    found = next(device for platform in pyopencl.get_platforms() for device in platform.get_devices())
    program = pyopencl.Program(pyopencl.Context([found]), SIZES).build()
    binary = program.get_info(pyopencl.program_info.BINARIES)[0]
    module = OpenClModule("clbin", {"sizes": FunctionInfo("", ("handle",), ("threadIdx.y",))}, binary)
    again = load_from_bytes("opencl", module.save_to_bytes())
    handle = api.allocate(28)
    again["sizes"](handle, 5)
    assert from_device(api, handle, np.zeros(7, np.int32)).tolist() == [2, 1, 1, 1, 1, 5, 1]
    assert again.get_source() == ""


def test_threads_choose_their_devices(api: DeviceApi) -> None:
    module = module_of(SIZES, "sizes", ("handle",))
    handle, errors = api.allocate(28), []

    def run_elsewhere() -> None:
        set_device(4, 77)
        try:
            module["sizes"](handle, 1)
        except DeviceError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run_elsewhere)
    thread.start()
    thread.join()
    assert errors[0].startswith("unknown device opencl(77)")
    module["sizes"](handle, 2)
    assert from_device(api, handle, np.zeros(7, np.int32))[1] == 2


def test_memory_is_copied_at_offsets_and_within_the_device(api: DeviceApi) -> None:
    numbers = np.arange(100, dtype=np.int16).reshape(10, 10)
    first, second = to_device(api, numbers), api.allocate(200)
    api.copy_in(first, 20, np.full(10, -1, np.int16))
    api.copy(first, 20, second, 0, 40)
    out = np.zeros((10, 4), np.int16)
    api.copy_out(second, 0, out[:, :2])  # not contiguous
    assert out[:5, :2].reshape(-1).tolist() == [-1] * 10
    assert out[5:, :2].reshape(-1).tolist() == list(range(20, 30))
    assert not out[:, 2:].any()
    start = api.mark()
    api.copy(first, 0, second, 0, 200)
    assert api.nanoseconds(start, api.mark()) > 0


def test_memory_that_is_not_there_is_refused(api: DeviceApi) -> None:
    handle, data = api.allocate(16), np.zeros(4, np.int32)
    for offset in (-4, 4, 1 << 60):
        with pytest.raises(InputError, match=r"opencl\(0\): bytes .* exceed a block of 16 bytes"):
            api.copy_in(handle, offset, data)
    api.free(handle)
    for use in (lambda: api.free(handle), lambda: api.copy_out(handle, 0, data), lambda: api.copy_in(12345, 0, data)):
        with pytest.raises(InputError, match="was not allocated on this device"):
            use()
    module = module_of(SIZES, "sizes", ("handle",))
    with pytest.raises(DeviceError, match=rf"sizes: argument 0 is {handle:#x}, not memory of opencl\(0\)"):
        module["sizes"](handle, 1)


def test_tensors_stand_for_their_handles(api: DeviceApi) -> None:
    kernel = module_of(SIZES, "sizes", ("handle",))["sizes"]
    out = array(np.zeros(7, np.int32), api.device)
    kernel(out, 3)
    assert out.numpy().tolist() == [1, 3, 1, 1, 1, 1, 1]
    with pytest.raises(
        InputError, match=r"^sizes: argument 0 is NDArray\(int32\[7\] on cpu\(0\)\), not a tensor on the"
    ):
        kernel(array(np.zeros(7, np.int32)), 3)


def test_too_much_memory_says_how_much_and_where(api: DeviceApi) -> None:
    with pytest.raises(
        DeviceError, match=r"opencl\(0\) \(.*\): OpenCL failed while allocating 35,184,372,088,832 bytes"
    ):
        api.allocate(1 << 45)


def test_arguments_that_do_not_fit_name_the_kernel(api: DeviceApi) -> None:
    kernel = module_of(SIZES, "sizes", ("handle",))["sizes"]
    handle = api.allocate(28)
    with pytest.raises(InputError, match=r"^sizes: it takes 1 arguments and 1 launch parameters, not 3 values"):
        kernel(handle, 1, 1)
    for wrong in (None, "x", 1.5, 0, -1, 1 << 64):
        with pytest.raises(InputError, match=r"^sizes: argument 0 is .*, not a tensor on the device, or a handle"):
            kernel(wrong, 1)
    for wrong in (-1, 1 << 32, 2.0, None):
        with pytest.raises(InputError, match=r"^sizes: expected a launch extent"):
            kernel(handle, wrong)
    with pytest.raises(DeviceError, match=r"groups \(1, 1, 1\) of \(1048576, 1, 1\) items: .*Its groups are not those"):
        module_of(SIZES, "sizes", ("handle",), ("threadIdx.x",))["sizes"](handle, 1 << 20)
    with pytest.raises(DeviceError, match=r"^sizes: the kernel has 1 parameters, its description 2"):
        module_of(SIZES, "sizes", ("handle", "int32"))["sizes"](handle, 1, 1)


def test_a_kernel_that_does_not_compile_shows_the_log(api: DeviceApi, capfd: pytest.CaptureFixture[str]) -> None:
    broken = "// Function: f\n__kernel void f(__global int* out) { out[0] = missing_name; }\n"
    with pytest.raises(DeviceError, match="the driver's compiler rejects kernel f:") as caught:
        module_of(broken, "f", ("handle",))["f"](api.allocate(4), 1)
    assert "missing_name" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 16


def test_sources_that_are_not_cut_as_the_table_says(api: DeviceApi) -> None:
    handle = api.allocate(28)
    with pytest.raises(ArchiveError, match=r"the source has 0 kernels behind '// Function: ' lines, the table 1"):
        module_of(SIZES.partition("\n")[2], "sizes", ("handle",))["sizes"](handle, 1)
    with pytest.raises(ArchiveError, match="the source has no kernel 'other'"):
        module_of(SIZES, "other", ("handle",))["other"](handle, 1)


@pytest.mark.parametrize(
    ("types", "tags", "message"),
    [
        (("bfloat16",), ("blockIdx.x",), "f: kernels take no arguments of the type bfloat16"),
        (("float32x4",), ("blockIdx.x",), "f: kernels take no arguments of the type float32x4"),
        (("handle",), ("blockIdx.w",), "f: launch parameter 0 is 'blockIdx.w', which is not allowed there"),
        (("handle",), ("tir.use_dyn_shared_memory", "blockIdx.x"), "f: launch parameter 0 is 'tir.use_dyn_shared"),
    ],
)
def test_kernels_that_cannot_be_called_are_kept(types: tuple[str, ...], tags: tuple[str, ...], message: str) -> None:
    body = module_of("", "f", types, tags).save_to_bytes()
    module = load_from_bytes("opencl", body)
    assert module.save_to_bytes() == body
    with pytest.raises(InputError) as caught:
        module["f"]()
    assert str(caught.value).startswith(message)


def test_stored_modules_cut_anywhere_are_refused(shared: Path) -> None:
    body = stored_by_tvm(shared, "opencl_lib")
    for length in [*range(400), *range(400, len(body), 97), len(body) - 1]:
        with pytest.raises(ArchiveError, match="module of the kind 'opencl', byte"):
            load_from_bytes("opencl", body[:length])
    with pytest.raises(ArchiveError, match="1 bytes follow the code"):
        load_from_bytes("opencl", body + b"\0")


@given(st.data())
def test_stored_modules_with_flipped_bits_are_modules_or_refused(data: st.DataObject) -> None:
    module = module_of(SIZES, "sizes", ("handle", "int32"), TAGS)
    body = bytearray(module.save_to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        again = load_from_bytes("opencl", bytes(body))
    except ArchiveError:
        return
    assert again.save_to_bytes() == bytes(body)


@pytest.mark.parametrize(
    ("before", "environment", "message"),
    [
        ("import sys; sys.modules['pyopencl'] = None; ", {}, 'Run in a checkout of mlfc: pip install ".[opencl]"'),
        ("", {"OCL_ICD_VENDORS": "/nowhere"}, "apt-get install pocl-opencl-icd"),
    ],
)
def test_what_is_missing_is_said(before: str, environment: dict[str, str], message: str) -> None:
    code = (
        f"{before}import mlfc\n"
        "print(mlfc.opencl(0).exists)\n"
        "try: mlfc.opencl(0).api\n"
        "except mlfc.errors.DeviceError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.stdout.startswith("False\nOpenCL "), done.stdout + done.stderr
    assert message in done.stdout


def test_pocl_without_a_linker_is_not_there(api: DeviceApi, tmp_path: Path) -> None:
    """Report the missing linker; PoCL would end the process with the first kernel."""
    if "Portable Computing Language" not in api.driver:
        pytest.skip("only PoCL calls a linker; on Debian: apt-get install pocl-opencl-icd")
    code = "import mlfc\ntry: mlfc.opencl(0).api\nexcept mlfc.errors.DeviceError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )  # fmt: skip
    assert "ld is not on the PATH, without which PoCL aborts the process" in done.stdout, done.stdout + done.stderr
    assert "apt-get install binutils" in done.stdout


BROKEN_PLATFORM = """
import pyopencl
from mlfc.runtime.drivers import opencl as opencl_api

class Broken:
    name = "broken"

    def get_devices(self):
        raise pyopencl.LogicError("clGetDeviceIDs failed: OUT_OF_HOST_MEMORY")

whole = pyopencl.get_platforms
pyopencl.get_platforms = lambda: [Broken(), *whole()]
print(opencl_api.OpenClDriver().count() == sum(len(platform.get_devices()) for platform in whole()))
opencl_api._devices.cache_clear()
pyopencl.get_platforms = lambda: [Broken()]
try:
    opencl_api.OpenClDriver().count()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_platform_that_fails_hides_no_other(api: DeviceApi) -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN_PLATFORM], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True\nDeviceError OpenCL has no driver here: OUT_OF_HOST_MEMORY. Install"), (
        done.stdout + done.stderr
    )


def test_devices_are_listed_with_what_would_make_others_appear(
    api: DeviceApi, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlfc.runtime.drivers.cuda import CudaDriver

    def fail(_: CudaDriver) -> int:
        raise DeviceError("CUDA has no driver here", next_step="Install it")

    monkeypatch.setattr(CudaDriver, "count", fail)
    listed = json.loads(command("devices", "--json"))
    assert [item["device"] for item in listed["devices"]][:2] == ["cpu(0)", "opencl(0)"]
    assert listed["devices"][1] | {"driver": ""} == {
        "device": "opencl(0)", "name": api.name, "memory": api.memory_bytes, "driver": "",
    }  # fmt: skip
    assert listed["missing"] == {"cuda": "CUDA has no driver here. Install it"}
    text = command("devices")
    assert api.name in text
    assert text.endswith("no cuda: CUDA has no driver here. Install it\n")


def test_kinds_of_devices_are_imported_when_a_stored_module_is_of_them() -> None:
    code = (
        "import sys\n"
        "from mlfc.runtime import load_from_bytes\n"
        "for kind in ('opencl', 'cuda'):\n"
        "    assert f'mlfc.runtime.{kind}_module' not in sys.modules\n"
        "    module = load_from_bytes(kind, bytes(24))\n"
        "    assert (module.type_key, module.functions, module.save_to_bytes()) == (kind, {}, bytes(24))\n"
        "assert not {'pyopencl', 'cuda'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
