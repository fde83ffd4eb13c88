"""Values in Relay text: numbers, strings, lists, names, and tensor constants.

Tensors are in the ``#[metadata]`` section: TVM's object graph in JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import ArchiveError, TextError
from mlfc.relay.ir import Constant
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Symbol
from mlfc.support.params import decode_ndarray, encode_ndarray
from mlfc.support.text import shortest_digits

_SUFFIX = {"int16": "i16", "int32": "", "int64": "i64", "float16": "f16", "float32": "f", "float64": "f64"}
_NUMBER = re.compile(r"(?P<digits>inf|nan|\d+(?P<fraction>\.\d*)?(?P<power>[eE][+-]?\d+)?)(?P<suffix>[fiu]\d*)?")
BOUNDS = "symbols"  # the attribute that declares the bounds of symbols
ANY = "?"  # a dimension of any size, for TVM
# patterns read as one token, as a tree of their numbers would dominate the parser's time and memory
INTEGERS = r"\[[-0-9, \t\r\n\f]+\]"
STATIC_TYPE = r"Tensor\s*\[\s*\(\s*(?:[0-9]{1,18}\s*,\s*){0,32}(?:[0-9]{1,18}\s*)?\)\s*,\s*[A-Za-z0-9_]+\s*\]"

_LONGEST_INTEGER = 20
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES = {escaped[1]: plain for plain, escaped in _ESCAPES.items()}


def float_text(value: float | np.floating[Any]) -> str:
    """Return the shortest digits that parse to the same number, without a suffix."""
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    text = shortest_digits(value)
    return text[:-2] if text.endswith(".0") else text


def attribute_text(value: Any, extent: Callable[[Any], str] = str) -> str:
    """Return an attribute's value as text: floats in double precision, `Dim` and `Symbol` as `extent` prints them."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return f"{float_text(float(value))}f"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPES.get(letter, letter) for letter in value) + '"'
    if isinstance(value, tuple):
        return f"[{', '.join(attribute_text(item, extent) for item in value)}]"
    if isinstance(value, (Dim, Symbol)):
        return extent(value)
    return str(int(value))


def string_value(token: str) -> str:
    """Return the value of a quoted string."""
    return re.sub(r"\\(.)", lambda match: _UNESCAPES.get(match.group(1), match.group()), token[1:-1], flags=re.DOTALL)


def scalar_text(data: npt.NDArray[Any], dtype: str) -> str | None:
    """Return a scalar constant as a literal, or None for constants that Relay text keeps in its metadata section."""
    if data.shape:
        return None
    if dtype == "bool":
        return str(bool(data))
    if dtype not in _SUFFIX:
        return None
    if not dtypes.is_float(dtype):
        return f"{int(data)}{_SUFFIX[dtype]}"
    # TVM cannot parse its own text of nan
    return None if np.isnan(data) else f"{float_text(data.reshape(-1)[0])}{_SUFFIX[dtype]}"


def number_value(token: str, *, negative: bool = False) -> npt.NDArray[Any] | None:
    """Return the scalar of a literal such as ``3``, ``3i64``, ``1e-5f``, ``inff``, or None if it is not one."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        return None
    digits, suffix = match["digits"], match["suffix"] or ""
    is_integer = digits.isdecimal()
    if suffix.startswith("f"):
        return _typed(float(digits) * (-1.0 if negative else 1.0), f"float{suffix[1:] or 32}")
    if not is_integer or len(digits) > 20:
        return None
    value = -int(digits) if negative else int(digits)
    if suffix:
        return _typed(value, ("int" if suffix[0] == "i" else "uint") + (suffix[1:] or "32"))
    low, high = dtypes.limits("int32")
    return _typed(value, "int32" if low <= value <= high else "int64")


def integer_values(token: str) -> tuple[int, ...] | None:
    """Return the integers of a list such as ``[1, -2]``, or None if an element is not an integer of at most 64 bits."""
    if not token[1:-1].strip():
        return ()
    elements = token[1:-1].split(",")
    # the limit on digits keeps the conversion's time linear
    if max(map(len, elements)) > _LONGEST_INTEGER and max(len(item.strip()) for item in elements) > _LONGEST_INTEGER:
        return None
    try:
        values = tuple(map(int, elements))
    except ValueError:
        return None
    low, high = dtypes.limits("int64")
    return values if low <= min(values) and max(values) <= high else None


def _typed(value: float, dtype: str) -> npt.NDArray[Any] | None:
    if dtype not in dtypes.SCALARS:
        return None
    if not dtypes.is_float(dtype):
        low, high = dtypes.limits(dtype)
        if not low <= value <= high:
            return None
    with np.errstate(over="ignore"):
        return np.asarray(value, dtypes.to_numpy(dtype))


def unique_names(names: Iterable[str]) -> list[str]:
    """Return unique names that lex as Relay identifiers: other characters become ``_``, repetitions are numbered."""
    safe = [_UNSAFE.sub("_", name) for name in names]
    wanted = [name if name[:1].isalpha() else f"v{name}" for name in safe]
    taken: set[str] = set()
    # a valid name stays unchanged, regardless of the names before it
    reserved = {want for want, name in zip(wanted, names, strict=True) if want == name}
    counts: dict[str, int] = {}
    result = []
    for want, name in zip(wanted, names, strict=True):
        title = want
        while title in taken or (title in reserved and title != name):
            counts[want] = counts.get(want, 0) + 1
            title = f"{want}{counts[want]}"
        taken.add(title)
        result.append(title)
    return result


SECTION = "#[metadata]"
_TVM_VERSION = "0.14.0"
# a constant of four dimensions has about fifty
_MAX_VALUES = 500_000


def metadata_text(constants: Sequence[Constant]) -> str:
    """Return the JSON whose i-th constant is ``meta[relay.Constant][i]``."""
    nodes: list[dict[str, Any]] = [{"type_key": ""}]  # node 0 is null

    def add(type_key: str, **fields: Any) -> int:
        nodes.append({"type_key": type_key, **fields})
        return len(nodes) - 1

    def type_of(constant: Constant) -> int:
        sizes = [
            add("IntImm", attrs={"dtype": "int32", "span": "0", "value": str(extent)}) for extent in constant.type.shape
        ]
        shape = add("Array", data=sizes)
        return add("relay.TensorType", attrs={"dtype": constant.type.dtype, "shape": str(shape), "span": "0"})

    scope = add("runtime.String", repr_str="")
    device = {"device_type_int": "-1", "memory_scope": str(scope), "target": "0", "virtual_device_id": "-1"}
    virtual_device = add("VirtualDevice", attrs=device)
    found = []
    for index, constant in enumerate(constants):
        facts = {"_checked_type_": str(type_of(constant)), "data": str(index), "span": "0"}
        found.append(add("relay.Constant", attrs={**facts, "virtual_device_": str(virtual_device)}))
    root = add("Map", keys=["relay.Constant"], data=[add("Array", data=found)])
    document = {
        "root": root,
        "nodes": nodes,
        "b64ndarrays": [base64.b64encode(encode_ndarray(constant.data)).decode() for constant in constants],
        "attrs": {"tvm_version": _TVM_VERSION},
    }
    return json.dumps(document, indent=2)


def read_metadata(text: str, place: str) -> list[npt.NDArray[Any]]:
    """Return the constants of a metadata section; raise TextError if it is broken or an index is invalid."""
    try:
        if sum(map(text.count, "[{,:")) > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES:,} values")
        document = json.loads(text)
        nodes, blobs = document["nodes"], document["b64ndarrays"]
        table = nodes[_index(document["root"], nodes)]
        listed = nodes[_index(table["data"][table["keys"].index("relay.Constant")], nodes)]["data"]
        holders = [nodes[_index(item, nodes)]["attrs"]["data"] for item in listed]
        places = [_index(holder, blobs) for holder in holders]
        # several constants may refer to one tensor
        tensors = {index: _tensor(blobs[index], place) for index in set(places)}
        return [tensors[index] for index in places]
    except ArchiveError as error:
        raise TextError(f"the metadata section is broken: {error.cause}", place=error.place) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TextError(
            f"the metadata section does not lead to its constants ({type(error).__name__}: {error})",
            place=place,
            next_step=f"What follows {SECTION} must be the JSON that the printer writes there",
        ) from None


def _index(value: Any, items: Any) -> int:
    index = int(value)
    if not isinstance(items, list) or not 0 <= index < len(items):
        raise IndexError(f"element {index} does not exist")
    return index


def _tensor(blob: Any, place: str) -> npt.NDArray[Any]:
    try:
        raw = base64.b64decode(blob, validate=True)
    except (binascii.Error, TypeError) as error:
        raise ArchiveError(f"a tensor is not base64 ({error})", place=place) from None
    return decode_ndarray(raw, place=f"{place}, metadata tensor")[0]
