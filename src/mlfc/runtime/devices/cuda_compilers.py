"""CUDA kernels, compiled ahead of time by NVIDIA's NVRTC in this process, or by nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mlfc.errors import OptionError, ToolchainError
from mlfc.runtime.devices.nvrtc import compute_arch, find_nvrtc
from mlfc.support.temporary import TemporaryFolder
from mlfc.support.text import first_lines

DEFAULT_ARCH = "compute_75"
"""PTX for it runs on every GPU since 2018, by way of the driver's compiler."""
_ARCH = re.compile(r"(sm|compute)_([1-9][0-9]{1,2})[af]?")
_SOURCE = "kernels.cu"


@dataclass(frozen=True)
class CudaCode:
    """Kernels as a CUDA module stores them."""

    format: str  # ``cubin``, ``fatbin``, ``ptx``, or ``cu`` for source
    data: bytes


def compile_cuda(source: str, arch: str | None = None) -> CudaCode:
    """Compile kernels; without a compiler, return the source, which the loading machine must then compile.

    `arch` is ``sm_90`` for machine code, ``compute_75`` for PTX, or several machines' separated by commas; default PTX
    for `DEFAULT_ARCH`. NVRTC comes first: it takes a tenth of nvcc's time. With one compiler, equal sources give equal
    bytes, anywhere and at any time.
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
    nvrtc = find_nvrtc()
    if nvrtc is not None and len(archs) == 1 and _number(archs[0]) in nvrtc.architectures():
        return CudaCode(_format_of(archs), nvrtc.compile(source, archs[0]))
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        return CudaCode(_format_of(archs), _by_nvcc(nvcc, source, archs))
    if nvrtc is not None:
        known = ", ".join(f"sm_{number}" for number in nvrtc.architectures())
        raise ToolchainError(
            f"NVRTC {nvrtc.version} does not compile for {','.join(archs)}, only for one of {known}",
            next_step="Choose one of these, or install nvcc of a CUDA toolkit that knows it",
        )
    return CudaCode("cu", source.encode())


def _number(arch: str) -> int:
    match = _ARCH.fullmatch(arch)
    return int(match[2]) if match else 0


def _format_of(archs: list[str]) -> str:
    if len(archs) > 1:
        return "fatbin"
    return "cubin" if archs[0].startswith("sm_") else "ptx"


def _by_nvcc(nvcc: str, source: str, archs: list[str]) -> bytes:
    form = _format_of(archs)
    command = [nvcc, f"--{form}", "--std=c++17", "-o", f"kernels.{form}", _SOURCE]
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
