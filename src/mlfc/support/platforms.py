"""Platforms that code is built for, in LLVM's, Debian's and zig's names, and DLPack's device kinds."""

from __future__ import annotations

import platform as python_platform
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlfc.errors import OptionError

_ARCHES = {
    "x86_64": ("amd64", "x64", "x86_64h"),
    "x86": ("i386", "i486", "i586", "i686"),
    "aarch64": ("arm64", "arm64e", "armv8l"),
    "arm": ("armv6", "armv6l", "armv7", "armv7a", "armv7l", "armhf"),
    "riscv64": ("riscv64gc",),
    "riscv32": ("riscv32imac",),
    "powerpc64le": ("ppc64le",),
    "powerpc64": ("ppc64",),
    "s390x": (),
    "loongarch64": (),
    "wasm32": (),
}
_SYSTEMS = {
    "linux": (),
    "windows": ("win32", "mingw32", "mingw64", "w64", "cygwin"),
    "macos": ("darwin", "macosx", "apple"),
    "wasi": ("wasip1",),
}
_ARCH_OF = {name: arch for arch, others in _ARCHES.items() for name in (arch, *others)}
_SYSTEM_OF = {name: system for system, others in _SYSTEMS.items() for name in (system, *others)}
_DEFAULT_ABI = {"linux": "gnu", "windows": "gnu", "macos": "", "wasi": ""}
_ABIS = ("gnu", "musl", "gnueabihf", "gnueabi", "musleabihf", "musleabi", "gnux32", "gnuabin32")
_NAMES = {"x86_64": "x86-64", "aarch64": "AArch64", "riscv64": "RISC-V", "arm": "Arm", "wasm32": "WebAssembly"}
_SYSTEM_NAMES = {"linux": "Linux", "windows": "Windows", "macos": "macOS", "wasi": "WASI"}
EXAMPLES = "aarch64-linux-gnu, riscv64-linux-gnu, x86_64-windows-gnu, aarch64-macos, wasm32-wasi"
DEVICE_KINDS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "cpu": (1, "CPU"),
        "cuda": (2, "CUDA"),
        "cuda_host": (3, "CUDAHost"),
        "opencl": (4, "OpenCL"),
        "vulkan": (7, "Vulkan"),
        "metal": (8, "Metal"),
        "vpi": (9, "VPI"),
        "rocm": (10, "ROCM"),
        "rocm_host": (11, "ROCMHost"),
        "ext_dev": (12, "ExtDev"),
        "cuda_managed": (13, "CUDAManaged"),
        "oneapi": (14, "OneAPI"),
        "webgpu": (15, "WebGPU"),
        "hexagon": (16, "Hexagon"),
    }
)
"""DLPack's DLDeviceType of each kind of device, and its name in enumerators (``kDLOpenCL``) and ONNX Runtime."""
TYPE_CODES: Mapping[str, int] = MappingProxyType({kind: code for kind, (code, _) in DEVICE_KINDS.items()})
"""DLPack's DLDeviceType of each kind of device."""


@dataclass(frozen=True)
class Platform:
    """A processor with an operating system."""

    arch: str  # zig's name: ``x86_64``, ``aarch64``, ``riscv64``, ``wasm32``, ...
    system: str  # ``linux``, ``windows``, ``macos`` or ``wasi``
    abi: str = ""  # C library and calling convention, ``gnu`` or ``musl``; empty if the system has only one

    @property
    def triple(self) -> str:
        """The target triple in zig's form."""
        return "-".join(filter(None, (self.arch, self.system, self.abi)))

    @property
    def llvm_triple(self) -> str:
        """The target triple in LLVM's form."""
        vendor = {"windows": "pc", "macos": "apple"}.get(self.system, "unknown")
        arch = "i686" if self.arch == "x86" else self.arch
        return "-".join(filter(None, (arch, vendor, self.system, self.abi)))

    @property
    def suffix(self) -> str:
        """The suffix of shared libraries, with the dot."""
        return {"windows": ".dll", "macos": ".dylib", "wasi": ".wasm"}.get(self.system, ".so")

    def __str__(self) -> str:
        return f"{_NAMES.get(self.arch, self.arch)} {_SYSTEM_NAMES[self.system]}"


def arch_named(word: str) -> str | None:
    """Return the architecture, in `Platform`'s names, of the first word of a triple; None if unknown."""
    return _ARCH_OF.get(word)


def parse_platform(text: str) -> Platform:
    """Return the platform of a triple in LLVM's, Debian's or zig's form; raise OptionError if it is unknown."""
    words = text.strip().lower().split("-")
    arch = arch_named(words[0])
    # systems may have a version suffix: darwin20.6, macosx11.0, linux.5.10
    named = [re.sub(r"[\d.]+$", "", word) if word not in _SYSTEM_OF else word for word in words[1:]]
    systems = [_SYSTEM_OF[word] for word in named if word in _SYSTEM_OF]
    if arch is None or not systems:
        raise OptionError(f"unknown machine '{text}'", next_step=f"Machines: {EXAMPLES}, ...")
    # a vendor may have the name of a system: aarch64-apple-darwin, x86_64-w64-mingw32
    system = systems[-1]
    if system == "windows" and "msvc" in words:
        raise OptionError("libraries for Windows require the GNU ABI", place=text, next_step=f"Use {arch}-windows-gnu")
    abi = next((word for word in words[2:] if word in _ABIS), None)
    default = "gnueabihf" if (arch, system) == ("arm", "linux") else _DEFAULT_ABI[system]
    return Platform(arch, system, default if abi is None or not default else abi)


def host_arch() -> str:
    """Return the architecture of this process if it is known, else Python's name of it."""
    try:
        return this_platform().arch
    except OptionError:  # an unknown system
        return python_platform.machine().lower()


def this_platform() -> Platform:
    """Return the platform of this process; raise OptionError if it is unknown."""
    machine = python_platform.machine().lower()
    if struct.calcsize("P") == 4:  # a 32-bit Python on a 64-bit kernel
        machine = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}.get(machine, machine)
    system = {"win32": "windows", "cygwin": "windows", "darwin": "macos"}.get(sys.platform, sys.platform)
    return parse_platform(f"{machine}-{system}")
