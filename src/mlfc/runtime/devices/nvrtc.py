"""NVIDIA's compiler library: CUDA C++ to PTX or machine code within this process."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mlfc.errors import ToolchainError
from mlfc.support.text import first_lines

NEXT_STEP = 'Run: pip install "mlfc[cuda]"'

_NAME = "kernels.cu"
_OPTIONS = ("--std=c++17",)
_FILES = ("lib/libnvrtc.so.*", "bin/nvrtc64_*.dll", "bin/x86_64/nvrtc64_*.dll")
# a wheel of CUDA 12 is the package nvidia.cuda_nvrtc, those of later ones share the folder of their CUDA
_PACKAGES = ("cuda_nvrtc", "cu13")
_COMPILATION = 6


def compute_arch(arch: str) -> str:
    """Return what nvcc and NVRTC call a virtual architecture: ``compute_90`` for ``sm_90``."""
    return arch.replace("sm_", "compute_")


class Nvrtc:
    """The shared library at a path."""

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
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), _NAME.encode(), 0, None, None)
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), words)
            if status == _COMPILATION:
                log = self._text("nvrtcGetProgramLog", program).decode(errors="replace").strip(" \n\0")
                raise ToolchainError(f"NVRTC rejects the kernels:{first_lines(log)}", place=f"{_NAME} for {arch}")
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
    """Return the library of NVIDIA's wheel, of ``$CUDA_PATH``, or of the system; None without any."""
    for path in _candidates():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError):  # for another machine, or not the whole library
            continue
    return None


def require_nvrtc() -> Nvrtc:
    """Return the library; raise ToolchainError with how to install it."""
    found = find_nvrtc()
    if found is None:
        raise ToolchainError(
            "CUDA source must be compiled, and NVIDIA's compiler NVRTC is not installed", next_step=NEXT_STEP
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
            # the newest first; those called "builtins" and "alt" are parts of it
            yield from sorted(
                (str(path) for path in root.glob(pattern) if re.search(r"nvrtc(64_|\.so)", path.name)), reverse=True
            )
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system
