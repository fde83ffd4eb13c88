"""The whole CUDA pipeline, from kernel source to results: on a stand-in for the driver, and on a GPU if present."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import mlfc
from mlfc.errors import ArchiveError, DeviceError, OptionError, ToolchainError
from mlfc.runtime import CudaModule, FunctionInfo, load_from_bytes
from mlfc.runtime.devices import cuda_compilers
from mlfc.runtime.devices.cuda_compilers import compile_cuda
from mlfc.runtime.drivers import cuda as cuda_driver
from tests.native import cuda_cases
from tests.native.cuda_on_host import host_code, make_driver

pytestmark = pytest.mark.usefixtures("quick_builds")

ROOT = Path(__file__).parents[2]
CASES = Path(cuda_cases.__file__)
# in separate processes, because a process chooses its driver when it first looks for a device
DRIVERS = ("stand-in", *(("NVIDIA",) if mlfc.cuda(0).exists else ()))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process whose CUDA driver is the stand-in."""
    folder = make_driver(tmp_path_factory.mktemp("driver"))
    (folder / "image").write_bytes(host_code(cuda_cases.SUMS))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "MLFC_CUDA_STAND_IN": "1",
        "MLFC_IMAGE": str(folder / "image"),
    }


def run_python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )


@pytest.mark.parametrize("driver", DRIVERS)
def test_cases(driver: str, stand_in: dict[str, str]) -> None:
    environment = stand_in if driver == "stand-in" else dict(os.environ)
    done = run_python(environment, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(re.findall('^def test_', CASES.read_text(), re.MULTILINE)) + 1} passed" in done.stdout


SCRIPT = """
import os
from pathlib import Path
import mlfc
from mlfc.runtime import CudaModule, FunctionInfo
print(mlfc.cuda(0).exists)
try:
    handle = mlfc.cuda(0).api.allocate(400)
    table = {"twice": FunctionInfo("", ("handle",), ("threadIdx.x", "threadIdx.y"))}
    CudaModule("cubin", table, Path(os.environ["MLFC_IMAGE"]).read_bytes())["twice"](handle, 10, 10)
    mlfc.cuda(0).synchronize()
except mlfc.errors.DeviceError as error:
    print(error)
"""


TWO_DEVICES = """
import os
from pathlib import Path
import numpy as np
from cuda.bindings import driver
import mlfc
from mlfc.runtime import CudaModule, FunctionInfo
from mlfc.runtime.devices.device import set_device
table = {"twice": FunctionInfo("", ("handle",), ("threadIdx.x", "threadIdx.y"))}
module = CudaModule("cubin", table, Path(os.environ["MLFC_IMAGE"]).read_bytes())
apis = [mlfc.cuda(index).api for index in (0, 1)]
ours = [int(driver.cuDevicePrimaryCtxRetain(index)[1]) for index in (0, 1)]
for other in ours:
    driver.cuCtxSetCurrent(driver.CUcontext(other))
    for index, api in enumerate(apis):
        data = np.arange(8, dtype=np.float32)
        handle = api.allocate(32)
        api.copy_in(handle, 0, data)
        set_device(2, index)
        start = api.mark()
        module["twice"](handle, 8, 1)
        api.nanoseconds(start, api.mark())
        api.copy_out(handle, 0, data)
        api.free(handle)
        api.synchronize()
        print(index, data.tolist() == list(range(0, 16, 2)), int(driver.cuCtxGetCurrent()[1]) == other)
"""


def test_threads_keep_the_device_that_they_work_with(stand_in: dict[str, str]) -> None:
    """Check that the current context of another library's GPU is restored after each call."""
    done = run_python(stand_in, "-c", TWO_DEVICES)
    assert done.stdout.splitlines() == ["0 True True", "1 True True"] * 2, done.stderr


@pytest.mark.parametrize(
    ("fault", "there", "message"),
    [
        ("cuInit=100", False, "CUDA does not start: CUDA_ERROR_NO_DEVICE. Install NVIDIA's driver"),
        ("cuInit=803", False, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH. Reboot the machine"),
        ("cuDeviceGetCount=100", False, "no CUDA device was found. Install NVIDIA's driver"),
        ("cuDevicePrimaryCtxRetain=46", False, "CUDA_ERROR_DEVICE_UNAVAILABLE. Another process has exclusive use"),
        ("cuMemAlloc=2", True, "allocating 400 bytes: CUDA_ERROR_OUT_OF_MEMORY. The device is out of memory"),
        ("cuModuleLoadDataEx=222", True, "loading the kernels twice: CUDA_ERROR_UNSUPPORTED_PTX_VERSION. Update"),
        ("cuModuleLoadDataEx=209", True, 'NO_BINARY_FOR_GPU. Compile for this GPU: --target "cuda -arch=sm_90"'),
        (
            "cuLaunchKernel=701",
            True,
            "launching kernel twice over groups (1, 1, 1) of (10, 10, 1) items: CUDA_ERROR_LAU",
        ),
        ("cuStreamSynchronize=700", True, "waiting for the device: CUDA_ERROR_ILLEGAL_ADDRESS. The process has lost"),
    ],
)
def test_faults_of_the_driver_are_named(stand_in: dict[str, str], fault: str, there: bool, message: str) -> None:
    done = run_python({**stand_in, "CUDA_STAND_IN_FAIL": fault}, "-c", SCRIPT)
    assert done.stdout.startswith(f"{there}\n"), done.stderr
    assert message in done.stdout


@pytest.mark.parametrize(
    ("before", "library", "message"),
    [
        ("import sys; sys.modules['cuda.bindings'] = None\n", None, 'Run in a checkout of mlfc: pip install ".[cuda]"'),
        ("", b"", "CUDA has no driver here: its library cannot be loaded. Install NVIDIA's driver"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, before: str, library: bytes | None, message: str) -> None:
    if library is not None:
        (tmp_path / "libcuda.so.1").write_bytes(library)
    done = run_python({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, "-c", before + SCRIPT)
    assert done.stdout.startswith("False\n"), done.stderr
    assert message in done.stdout


# nvcc is neither in Debian nor on PyPI
COMPILERS = ("nvrtc", *(("nvcc",) if shutil.which("nvcc") else ()))


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Restrict `compile_cuda` to one compiler."""
    if request.param == "nvcc":
        monkeypatch.setattr(cuda_compilers, "find_nvrtc", lambda: None)
    else:
        monkeypatch.setattr(cuda_compilers.shutil, "which", lambda _: None)
    return str(request.param)


@pytest.mark.parametrize(
    ("arch", "form", "head"), [(None, "ptx", b"//"), ("compute_80", "ptx", b"//"), ("sm_90", "cubin", b"\x7fELF")]
)
def test_compilers_give_equal_bytes_without_paths(compiler: str, arch: str | None, form: str, head: bytes) -> None:
    code = compile_cuda(cuda_cases.SUMS, arch)
    assert code == compile_cuda(cuda_cases.SUMS, arch)
    assert code.format == form
    assert code.data.startswith(head)
    assert b"twice" in code.data
    assert tempfile.gettempdir().encode() not in code.data
    assert b"mlfc" not in code.data


@pytest.mark.parametrize(
    ("arch", "error", "message"),
    [
        ("sm_9", OptionError, r"-arch=sm_9: unknown GPU architecture 'sm_9'"),
        ("sm_80,compute_90", OptionError, r"unknown GPU architecture 'compute_90'"),
        ("sm_80;rm", OptionError, r"unknown GPU architecture 'sm_80;rm'"),
        ("sm_10", ToolchainError, r"sm_10"),
    ],
)
def test_architectures_that_are_none(compiler: str, arch: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compile_cuda(cuda_cases.SUMS, arch)


def test_kernels_that_do_not_compile_show_the_first_lines(compiler: str) -> None:
    with pytest.raises(ToolchainError, match=r"rejects the kernels:\n(.*\n)*.*missing_name") as caught:
        compile_cuda('extern "C" __global__ void f(int *a) { *a = missing_name; }\n')
    assert len(str(caught.value).splitlines()) < 16


def test_source_travels_where_no_compiler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compilers, "find_nvrtc", lambda: None)
    monkeypatch.setattr(cuda_compilers.shutil, "which", lambda _: None)
    code = compile_cuda(cuda_cases.SUMS, "sm_90")
    assert (code.format, code.data) == ("cu", cuda_cases.SUMS.encode())


@pytest.mark.parametrize("form", ["cu", "ptx", "cubin", "fatbin"])
def test_modules_are_stored_as_tvm_stores_them(form: str) -> None:
    """Compare field by field: format, kernels with types and launch parameters, code."""
    text, word = (lambda value: len(value).to_bytes(8, "little") + value), (lambda value: value.to_bytes(8, "little"))
    types = b"\x03\x40\x01\x00" + b"\x00\x20\x01\x00"
    tags = word(2) + text(b"blockIdx.x") + text(b"threadIdx.x")
    body = (
        text(form.encode()) + word(1) + text(b"f") + text(b"f_inner") + word(2) + types + tags + text(b"\x00code\xff")
    )
    module = load_from_bytes("cuda", body)
    assert isinstance(module, CudaModule)
    assert (module.type_key, module.format, module.property_mask) == ("cuda", form, 3)
    assert module.functions == {
        "f": FunctionInfo("f_inner", ("handle", "int32"), ("blockIdx.x", "threadIdx.x")),
    }
    assert module.save_to_bytes() == body
    for length in range(len(body)):
        with pytest.raises(ArchiveError, match="module of the kind 'cuda', byte"):
            load_from_bytes("cuda", body[:length])


@pytest.mark.parametrize(
    ("capability", "arch", "end"),
    [((8, 0), "sm_80", b""), ((9, 0), "compute_80", b"\0"), ((12, 1), "compute_80", b"\0")],
)
def test_source_for_gpus_newer_than_the_compiler_is_left_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], arch: str, end: bytes
) -> None:
    compiler = SimpleNamespace(version="0", architectures=lambda: (75, 80), compile=lambda _, arch: arch.encode())
    monkeypatch.setattr(cuda_driver, "require_nvrtc", lambda: compiler)
    api = SimpleNamespace(capability=capability, arch="sm_{}{}".format(*capability))
    assert CudaModule("cu", {}, "text")._image(api) == arch.encode() + end


def test_source_that_cannot_be_compiled_at_load_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(capability=(3, 5), arch="sm_35", device=mlfc.cuda(0), name="an old one")
    compiler = SimpleNamespace(version="12.9", architectures=lambda: (50, 90))
    with monkeypatch.context() as patch:
        patch.setattr(cuda_driver, "require_nvrtc", lambda: compiler)
        message = r"cuda\(0\) \(an old one\): NVRTC 12.9 compiles for compute capability 5.0 and later, not for 3.5"
        with pytest.raises(DeviceError, match=message):
            CudaModule("cu", {}, "text")._image(api)
    monkeypatch.setattr(cuda_compilers, "find_nvrtc", lambda: None)
    with pytest.raises(
        ToolchainError, match=r"NVRTC is not installed. Run in a checkout of mlfc: pip install \"\.\[cuda\]\""
    ):
        CudaModule("cu", {}, "text")._image(api)
