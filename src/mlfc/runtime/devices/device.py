"""Where tensors live, in DLPack's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlfc.errors import DeviceError, InputError, OptionError
from mlfc.support.device_types import TYPE_CODES
from mlfc.support.display import Displayed

if TYPE_CHECKING:
    from mlfc.runtime.devices.device_api import DeviceApi

_KIND_OF_CODE = {code: kind for kind, code in TYPE_CODES.items()}
# the words of target strings for code of the host
_HOST_TARGETS = ("c", "llvm")


@dataclass(frozen=True)
class Device(Displayed):
    """A device.

    Attributes
    ----------
    kind : str
        A key of `support.device_types.TYPE_CODES`.
    type_code : int
        DLDeviceType: 1 is the CPU.
    index : int
        Which of the devices of this kind, from 0.
    """

    kind: str
    type_code: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"

    @property
    def api(self) -> DeviceApi:
        """What allocates and copies there; raise DeviceError where the device, or its driver, is not there."""
        from mlfc.runtime.devices.device_api import device_api

        return device_api(self)

    @property
    def exists(self) -> bool:
        """Whether the device and its driver are there."""
        try:
            return self.api is not None
        except DeviceError:
            return False

    @property
    def name(self) -> str:
        """What the driver calls the device."""
        return self.api.name

    def synchronize(self) -> None:
        """Wait until all work that was given to the device is done; raise DeviceError if it failed."""
        self.api.synchronize()


def device(kind: str, index: int = 0) -> Device:
    """Return a device by its kind; it need not be there.

    Parameters
    ----------
    kind : str
        A key of `support.device_types.TYPE_CODES`; ``c`` and ``llvm``, as in target strings, are the CPU.
    index : int
        Which of the devices of this kind, from 0.

    Raises
    ------
    OptionError
        For a kind that is not known, or an index below 0.
    """
    known = "cpu" if kind in _HOST_TARGETS else kind
    if known not in TYPE_CODES:
        raise OptionError(f"there is no kind of device '{kind}'", next_step=f"Kinds: {', '.join(TYPE_CODES)}")
    if index < 0:
        raise OptionError(f"devices count from 0: there is no {known}({index})")
    return Device(known, TYPE_CODES[known], index)


def require_device(value: object) -> Device:
    """Return a device as it is; raise InputError for what is none."""
    if isinstance(value, Device):
        return value
    raise InputError(
        f"a device is expected, not {value!r}, a {type(value).__name__}",
        next_step="Give mlfc.cpu(0) or mlfc.device(kind, index)",
    )


def device_of_code(type_code: int, index: int = 0) -> Device:
    """Return a device by its DLDeviceType; raise OptionError for a number that is none."""
    return device(kind_of_code(type_code), index)


def kind_of_code(type_code: int) -> str:
    """Return the kind of a DLDeviceType; raise OptionError for a number that is none."""
    if type_code not in _KIND_OF_CODE:
        raise OptionError(f"there is no device type {type_code}")
    return _KIND_OF_CODE[type_code]


def cpu(index: int = 0) -> Device:
    """Return the host's processor."""
    return Device("cpu", TYPE_CODES["cpu"], index)


def opencl(index: int = 0) -> Device:
    """Return an OpenCL device; they count through all platforms in the order of the OpenCL loader."""
    return device("opencl", index)


def cuda(index: int = 0) -> Device:
    """Return a GPU of the CUDA driver."""
    return device("cuda", index)
