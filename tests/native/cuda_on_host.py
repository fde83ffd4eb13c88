"""CUDA without a GPU: kernels compiled for this processor, and a stand-in for NVIDIA's driver that runs them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from mlfc.runtime.devices import cuda_compilers
from mlfc.runtime.devices.cuda_compilers import compile_cuda
from tests import session_cache
from tests.conftest import need

PARTS = Path(__file__).with_name("stand_ins") / "cuda"

_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\(\d+\)\s+)?(\w+)\s*\(")
# arrays in dynamic shared memory, whose size is a launch parameter
_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


@cache
def host_code(source: str) -> bytes:
    """Return the stand-in's "machine code": a shared library of a source's kernels, to be called by ``on_host_run``."""
    names = _KERNEL.findall(source)
    text = _DYNAMIC.sub(r"\1 *\2 = reinterpret_cast<\1 *>(on_host::dynamic_shared);", source)
    text = "\n".join((text, *(f"ON_HOST_KERNEL({name})" for name in names), ""))
    flags = ["-std=c++14", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
    # a quarter of g++'s compile time, which kernels that run once never make up for
    compiler, header = need("clang++", "clang"), PARTS / "on_host.h"

    def make() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            kernels, library = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            kernels.write_text(text)
            _compile(compiler, *flags, "-include", str(header), "-o", str(library), str(kernels))
            return {"library": library.read_bytes()}

    return session_cache.built(session_cache.key_of([compiler, *flags, header.read_bytes(), text]), make)["library"]


def assert_nvrtc_takes(source: str) -> None:
    """Fail unless NVRTC, if installed, compiles a source; optimization, which does not change the source, is off."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(cuda_compilers, "_OPTIONS", (*cuda_compilers._OPTIONS, "--device-debug"))
        assert compile_cuda(source).format == "ptx"


def make_driver(folder: Path) -> Path:
    """Build the stand-in's ``libcuda.so.1`` in a folder and return it; callers add it to LD_LIBRARY_PATH."""
    flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]
    _compile(need("gcc", "gcc"), *flags, "-o", str(folder / "libcuda.so.1"), str(PARTS / "driver.c"), "-ldl")
    return folder


def _compile(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
