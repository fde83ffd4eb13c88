"""Modules of CUDA kernels: type key ``cuda``, stored and launched as TVM's are."""

from __future__ import annotations

from typing import Any

from mlfc.errors import DeviceError, InputError
from mlfc.runtime.devices.cuda_api import CudaApi
from mlfc.runtime.devices.device import cuda
from mlfc.runtime.devices.kernel_launch import LoadedKernel
from mlfc.runtime.devices.nvrtc import compute_arch, require_nvrtc
from mlfc.runtime.modules.device_module import DeviceModule, body_extent, whole_body
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Module
from mlfc.support.locks import ForkSafeLock

SOURCE, PTX = "cu", "ptx"
_PLACE = "module of the kind 'cuda'"


class CudaModule(DeviceModule):
    """Kernels for NVIDIA's GPUs.

    The format is ``cu`` for source, which NVRTC compiles for the GPU at hand, ``ptx`` for what the driver compiles,
    ``cubin`` or ``fatbin`` for machine code.
    """

    type_key = "cuda"
    device_kind = "cuda"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._images: dict[int, Any] = {}
        self._loading = ForkSafeLock()

    def get_source(self) -> str:
        """Return the source or PTX; empty for machine code."""
        return str(self.data, "utf-8", "replace") if self.format in (SOURCE, PTX) else ""

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = cuda(index).api
        if not isinstance(api, CudaApi):
            raise InputError("CUDA kernels run on the CUDA driver that comes with mlfc", place=name)
        with self._loading:
            if index not in self._images:
                self._images[index] = api.load(self._image(api), ", ".join(self.functions))
        return api.kernel(self._images[index], name)

    def _image(self, api: CudaApi) -> bytes:
        if self.format != SOURCE:
            # text must end with a NUL
            return bytes(self.data) + (b"\0" if self.format == PTX else b"")
        compiler = require_nvrtc()
        number = 10 * api.capability[0] + api.capability[1]
        known = compiler.architectures()
        if number in known:
            return compiler.compile(self.get_source(), api.arch)
        older = [arch for arch in known if arch < number]
        if not older:
            raise DeviceError(
                f"NVRTC {compiler.version} compiles for compute capability {known[0] / 10} and later, not for "
                f"{number / 10}",
                place=f"{api.device} ({api.name})",
                next_step="Install an older NVRTC",
            )
        return compiler.compile(self.get_source(), compute_arch(f"sm_{older[-1]}")) + b"\0"


def _extent(view: memoryview) -> int:
    return body_extent(view, _PLACE)


@register_loader("cuda", _extent)
def _load(data: bytes | memoryview) -> Module:
    return CudaModule(*whole_body(data, _PLACE))
