"""Kinds of devices in DLPack's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TYPE_CODES: Mapping[str, int] = MappingProxyType(
    {
        "cpu": 1,
        "cuda": 2,
        "cuda_host": 3,
        "opencl": 4,
        "vulkan": 7,
        "metal": 8,
        "vpi": 9,
        "rocm": 10,
        "rocm_host": 11,
        "ext_dev": 12,
        "cuda_managed": 13,
        "oneapi": 14,
        "webgpu": 15,
        "hexagon": 16,
    }
)
"""DLPack's DLDeviceType of each kind of device."""
