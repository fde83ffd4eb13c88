"""The ``#[metadata]`` section of Relay text: TVM's object graph in JSON, with the tensor constants."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from mlfc.errors import ArchiveError, TextError
from mlfc.relay.ir import Constant
from mlfc.support.params import decode_ndarray, encode_ndarray

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
