"""CUDA kernels, compiled ahead of time by NVIDIA's NVRTC in this process, or by nvcc."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mlfc.errors import OptionError, ToolchainError
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import first_lines

DEFAULT_ARCH = "compute_75"
"""Default target: the driver compiles its PTX for every GPU since 2018."""
_ARCH = re.compile(r"(sm|compute)_([1-9][0-9]{1,2})[af]?")
_SOURCE = "kernels.cu"
_OPTIONS = ("--std=c++17",)
_FILES = ("lib/libnvrtc.so.*", "bin/nvrtc64_*.dll", "bin/x86_64/nvrtc64_*.dll")
# the CUDA 12 wheel is the package nvidia.cuda_nvrtc; later wheels share one folder per CUDA version
_PACKAGES = ("cuda_nvrtc", "cu13")
_COMPILATION = 6


class CudaCode(NamedTuple):
    """Kernels in the stored form of a CUDA module."""

    format: str  # ``cubin``, ``fatbin``, ``ptx``, or ``cu`` for source
    data: bytes


def compile_cuda(source: str, arch: str | None = None) -> CudaCode:
    """Compile kernels; without a compiler, return the source for the loading machine to compile.

    `arch` is ``sm_90`` for machine code, ``compute_75`` for PTX, or several ``sm_`` architectures separated by commas;
    the default is PTX for `DEFAULT_ARCH`. NVRTC is preferred: it is ten times as fast as nvcc. For one compiler the
    output is deterministic.
    Raises OptionError for an invalid architecture, ToolchainError if the compiler rejects it or the source.
    """
    archs = (arch or DEFAULT_ARCH).split(",")
    for item in archs:
        if not _ARCH.fullmatch(item) or (len(archs) > 1 and not item.startswith("sm_")):
            raise OptionError(
                f"unknown GPU architecture '{item}'",
                place=f"-arch={arch}",
                next_step="Write -arch=sm_90, -arch=compute_75, or several: -arch=sm_80,sm_90",
            )
    form = "fatbin" if len(archs) > 1 else "cubin" if archs[0].startswith("sm_") else "ptx"
    nvrtc = find_nvrtc()
    if nvrtc is not None and len(archs) == 1 and int(re.sub("[^0-9]", "", archs[0])) in nvrtc.architectures():
        return CudaCode(form, nvrtc.compile(source, archs[0]))
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        return CudaCode(form, _by_nvcc(nvcc, source, archs, form))
    if nvrtc is not None:
        known = ", ".join(f"sm_{number}" for number in nvrtc.architectures())
        raise ToolchainError(
            f"NVRTC {nvrtc.version} does not compile for {','.join(archs)}, only for one of {known}",
            next_step="Choose one of these, or install nvcc of a CUDA toolkit that supports it",
        )
    return CudaCode("cu", source.encode())


def _by_nvcc(nvcc: str, source: str, archs: list[str], form: str) -> bytes:
    command = [nvcc, f"--{form}", *_OPTIONS, "-o", f"kernels.{form}", _SOURCE]
    for arch in archs:
        command += ["--generate-code", f"arch={compute_arch(arch)},code={arch}"]
    with TemporaryFolder() as folder:
        (Path(folder) / _SOURCE).write_text(source, encoding="utf-8")
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise ToolchainError(f"the compiler does not start: {error}", place=nvcc) from error
        if done.returncode != 0:
            reason = first_lines(done.stderr or done.stdout)
            raise ToolchainError(f"nvcc rejects the kernels:{reason}", place=f"{nvcc} for {','.join(archs)}")
        return (Path(folder) / f"kernels.{form}").read_bytes()


def compute_arch(arch: str) -> str:
    """Return the name of the virtual architecture for nvcc and NVRTC: ``compute_90`` for ``sm_90``."""
    return arch.replace("sm_", "compute_")


class Nvrtc:
    """NVRTC, loaded from a path."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        """Return the supported compute capabilities, as 75 for 7.5, ascending."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(sorted(numbers))

    def compile(self, source: str, arch: str) -> bytes:
        """Compile for ``compute_75`` to PTX or for ``sm_90`` to machine code; raise ToolchainError with the log."""
        options = [f"--gpu-architecture={arch}", *_OPTIONS]
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), _SOURCE.encode(), 0, None, None)
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), words)
            if status == _COMPILATION:
                log = self._text("nvrtcGetProgramLog", program).decode(errors="replace").strip(" \n\0")
                raise ToolchainError(f"NVRTC rejects the kernels:{first_lines(log)}", place=f"{_SOURCE} for {arch}")
            self._check(status, "nvrtcCompileProgram", f" with {' '.join(options)}")
            kind = "CUBIN" if arch.startswith("sm_") else "PTX"
            code = self._text(f"nvrtcGet{kind}", program)
            return code if kind == "CUBIN" else code.rstrip(b"\0")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(function, program, data)
        return data.raw

    def _call(self, function: str, *args: object) -> None:
        self._check(self._library[function](*args), function)

    def _check(self, status: int, function: str, detail: str = "") -> None:
        if status:
            reason = self._library.nvrtcGetErrorString(status).decode()
            raise ToolchainError(f"NVRTC {self.__dict__.get('version', '')} failed: {reason}", place=function + detail)


@cache
def find_nvrtc() -> Nvrtc | None:
    """Return NVRTC from NVIDIA's wheel, ``$CUDA_PATH`` or the system; None if none of them has it."""
    for path in _candidates():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError):  # for another machine, or not the whole library
            continue
    return None


def require_nvrtc() -> Nvrtc:
    """Return NVRTC; raise ToolchainError with installation instructions if it is missing."""
    found = find_nvrtc()
    if found is None:
        raise ToolchainError(
            "CUDA source must be compiled, and NVIDIA's compiler NVRTC is not installed",
            next_step='Run in a checkout of mlfc: pip install ".[cuda]"',
        )
    return found


def _candidates() -> Iterator[str]:
    roots: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        roots += [Path(folder) / package for package in _PACKAGES]
    roots += [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda"))
    for root in roots:
        for pattern in _FILES:
            # newest first; files named "builtins" and "alt" are only parts of NVRTC
            yield from sorted(
                (str(path) for path in root.glob(pattern) if re.search(r"nvrtc(64_|\.so)", path.name)), reverse=True
            )
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system
