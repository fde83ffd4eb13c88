"""Parameters in the two further forms of the 2021 proposal, beside TVM's own: JSON, with base64, and BSON.

Both contain ``format``, ``version`` and in ``params`` one object per tensor with ``name``, ``dtype``, ``shape`` and
``data``, the elements in row-major order and little-endian.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.archive.read import bson
from mlfc.errors import ArchiveError, OptionError
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, Content, Data, Joined, chunks_of, nbytes_of
from mlfc.support.json_text import parse_json
from mlfc.support.params import MAX_DIMENSIONS, load_params, params_content
from mlfc.support.tar import TarReader
from mlfc.support.text import shortened

FORMAT = "mlfc-params"
VERSION = 1
# JSON is parsed as a whole and needs several times its size in memory
MAX_JSON = 64 << 20
Params = Mapping[str, npt.NDArray[Any]]
_AGAIN = "Export the archive again"


def params_json(params: Params) -> Content:
    """Return parameters as JSON, one tensor per line, sorted by name; raise OptionError if too large to read back."""
    parts: list[Data] = [f'{{"format": "{FORMAT}", "version": {VERSION}, "params": ['.encode()]
    for index, name in enumerate(sorted(params)):
        head = json.dumps({"name": name, **_kind(params[name])}, ensure_ascii=False)[:-1]
        data = Base64(ArrayContent(np.asarray(params[name])))
        parts += [f'{"," if index else ""}\n{head}, "data": "'.encode(), data, b'"}']
    content = Joined((*parts, b"\n]}\n"))
    if content.nbytes > MAX_JSON:
        raise OptionError(
            f"parameters of {content.nbytes:,} bytes as JSON are more than the {MAX_JSON:,} that are read",
            next_step="Write parameters in the form params instead",
        )
    return content


def params_bson(params: Params) -> Content:
    """Return parameters as BSON, sorted by name; raise OptionError if they are too large for BSON."""
    arrays = {name: ArrayContent(np.asarray(params[name])) for name in sorted(params)}
    tensors = [{"name": name, **_kind(params[name]), "data": data} for name, data in arrays.items()]
    return bson.encode({"format": FORMAT, "version": VERSION, "params": tensors})


WRITERS: Mapping[str, Callable[[Params], Content]] = {
    "params": params_content,
    "json": params_json,
    "bson": params_bson,
}
"""Writer of each form in `options.PARAMS_FORMS`; the form is also the file's extension."""


def load_json(data: bytes | memoryview, *, place: str = "parameters") -> dict[str, npt.NDArray[Any]]:
    """Read parameters from JSON; raise ArchiveError naming the tensor at fault."""
    if len(data) > MAX_JSON:
        raise ArchiveError(
            f"{len(data):,} bytes of JSON are more than the {MAX_JSON:,} that are read",
            place=place,
            next_step="Use the .params file",
        )
    return _params(parse_json(bytes(data), place), _from_base64, place)


def load_bson(data: bytes | memoryview, *, place: str = "parameters") -> dict[str, npt.NDArray[Any]]:
    """Read parameters from BSON; raise ArchiveError naming the byte or tensor at fault."""
    return _params(bson.decode(data, place), lambda value: value if isinstance(value, memoryview) else None, place)


def read_params(tar: TarReader, path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the parameters in a member of an archive, in the form given by its extension."""
    readers = {".json": load_json, ".bson": load_bson}
    return readers.get(PurePosixPath(path).suffix, load_params)(tar.view(path), place=f"{tar.path}: {path}")


@dataclass(frozen=True, eq=False)
class Base64:
    """Data as base64 text."""

    data: Data

    @property
    def nbytes(self) -> int:
        """Size of the text in bytes."""
        return -(-nbytes_of(self.data) // 3) * 4

    def chunks(self) -> Iterator[bytes]:
        """Yield the text piece by piece."""
        rest = b""
        for chunk in chunks_of(self.data):
            piece = rest + bytes(chunk)
            # three bytes become four characters; the remainder is kept for the next piece
            whole = len(piece) // 3 * 3
            rest = piece[whole:]
            yield base64.b64encode(piece[:whole])
        yield base64.b64encode(rest)


def _kind(array: npt.NDArray[Any]) -> dict[str, Any]:
    return {"dtype": dtypes.from_numpy(array.dtype), "shape": list(array.shape)}


def _from_base64(value: object) -> bytes | None:
    with suppress(ValueError):  # including binascii's errors
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    return None


def _params(
    document: object, data_of: Callable[[object], bytes | memoryview | None], place: str
) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(document, dict) or document.get("format") != FORMAT or "params" not in document:
        raise ArchiveError(f"it does not declare the format {FORMAT}", place=place, next_step=_AGAIN)
    if document.get("version") != VERSION:
        raise ArchiveError(f"expected {FORMAT} of version {VERSION}", place=place, next_step="Use the .params file")
    tensors = document["params"]
    if not isinstance(tensors, list) or document.keys() != {"format", "version", "params"}:
        raise ArchiveError("params is not a list, or there are unknown keys", place=place, next_step=_AGAIN)
    params: dict[str, npt.NDArray[Any]] = {}
    for index, tensor in enumerate(tensors):
        where = f"{place}, tensor {index}"
        if not isinstance(tensor, dict) or tensor.keys() != {"name", "dtype", "shape", "data"}:
            raise ArchiveError("a tensor has name, dtype, shape and data", place=where, next_step=_AGAIN)
        name = tensor["name"]
        if not isinstance(name, str) or name in params:
            raise ArchiveError("its name is not a string, or is duplicated", place=where, next_step=_AGAIN)
        params[name] = _array(tensor, data_of(tensor["data"]), f"{place}, tensor '{shortened(name)}'")
    return params


def _array(tensor: Mapping[str, Any], data: bytes | memoryview | None, place: str) -> npt.NDArray[Any]:
    dtype, shape = tensor["dtype"], tensor["shape"]
    if dtype not in dtypes.SCALARS:
        raise ArchiveError("its dtype is unknown", place=place, next_step=f"Known: {', '.join(dtypes.SCALARS)}")
    is_shape = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    is_shape = is_shape and all(type(extent) is int and extent >= 0 for extent in shape)
    # a dimension of zero must not hide others that no array could have
    if not is_shape or prod(max(extent, 1) for extent in shape) > 1 << 48:
        raise ArchiveError("its shape is not one that a tensor can have", place=place, next_step=_AGAIN)
    if data is None:
        raise ArchiveError("its data cannot be read", place=place, next_step=_AGAIN)
    expected = prod(shape) * dtypes.nbytes(dtype)
    if len(data) != expected:
        raise ArchiveError(
            f"{len(data)} bytes of data, but {shape} of {dtype} is {expected} bytes", place=place, next_step=_AGAIN
        )
    if dtype == "bool":
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(shape)
    kind = dtypes.to_numpy(dtype)
    return np.frombuffer(data, kind.newbyteorder("<")).astype(kind).reshape(shape)
