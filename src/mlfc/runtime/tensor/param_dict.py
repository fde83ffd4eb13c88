"""TVM's functions for parameter files: `save_param_dict` and `load_param_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlfc.errors import OptionError, unknown
from mlfc.runtime.tensor.ndarray import from_dlpack
from mlfc.support.arrays import Array
from mlfc.support.params import load_params, save_params

_ABIS = ("classic", "ffi")


def save_param_dict(params: Mapping[str, Any], abi: str = "classic") -> bytes:
    """Return the bytes of a parameter file, as TVM's ``save_param_dict``.

    Parameters
    ----------
    params : mapping of str to array
        Arrays of numpy or of any DLPack library.
    abi : str
        Form of bool tensors: ``classic`` writes the one-bit unsigned integers of TVM 0.14, ``ffi`` the bool of DLPack
        and tvm-ffi. TVM 0.27 requires ``ffi``: it stores the others in too little memory. Other types are equal.

    Returns
    -------
    bytes
        Names are sorted, so equal dictionaries produce equal bytes.

    Examples
    --------
    >>> data = mlfc.save_param_dict({"w": np.ones(2, np.float32)})
    >>> mlfc.load_param_dict(data)["w"].tolist()
    [1.0, 1.0]
    """
    if abi not in _ABIS:
        raise OptionError(unknown("calling convention", abi, _ABIS), place="abi")
    return save_params({name: _host_array(value) for name, value in params.items()}, abi)


def load_param_dict(param_bytes: bytes | bytearray | memoryview) -> dict[str, Array]:
    """Read a parameter file of any TVM version, as TVM's ``load_param_dict``.

    Returns
    -------
    dict of str to ndarray
        Read-only arrays in the order of the file, views of `param_bytes` where alignment allows.

    Raises
    ------
    ArchiveError
        If the bytes are not a parameter file.
    """
    return load_params(memoryview(param_bytes))


def _host_array(value: Any) -> Array:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return from_dlpack(value).numpy()
