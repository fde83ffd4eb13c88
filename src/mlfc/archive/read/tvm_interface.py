"""What archives that TVM wrote say of a module's inputs and outputs, put together from header, metadata and Relay text.

TVM's metadata have names, dtypes and sizes, in no order; the header has the order; the Relay text has the shapes
of inputs. Where no shape is known a tensor is flat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlfc.archive.read.c_header import Header, parse_header
from mlfc.archive.read.model import ModuleRecord, TensorRecord
from mlfc.errors import ArchiveError
from mlfc.support.module_info import MemoryInfo, ModuleInterface, PoolInfo
from mlfc.support.tensor_info import TensorInfo

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PARAMETER = re.compile(r"%([^\s,()]+?):\s*(?:Tensor\[\(([0-9, ]*)\),\s*(\w+)\]|(\w+))")
_SIGNATURE = "def @main("


def c_interface(record: ModuleRecord, header_text: str, relay: str | None, place: str) -> ModuleInterface:
    """Return the description of a module's C entry for `AotModule`.

    Raises ArchiveError if the header declares no entry, or one that wants what only firmware can give it; or if the
    size of a tensor is nowhere to be found.
    """
    header = parse_header(header_text)
    prefix = f"tvmgen_{record.name.lower()}"
    entry = f"{prefix}_run"
    if entry not in header.functions:
        raise ArchiveError(
            f"the header declares no function {entry}", place=place, next_step="Export the archive again"
        )
    if f"{prefix}_devices" in header.structs:
        raise ArchiveError(
            f"the module '{record.name}' takes device contexts",
            place=place,
            next_step="Run it as firmware: only its own project can provide them",
        )
    main = record.main[0] if record.main else None
    shapes = relay_inputs(relay or "")
    pools = _pools(header, prefix, place)
    inputs = _tensors(header, f"{prefix}_inputs", main.inputs if main else (), shapes, place)
    outputs = _tensors(header, f"{prefix}_outputs", main.outputs if main else (), {}, place)
    return ModuleInterface(
        entry=entry,
        inputs=inputs,
        outputs=outputs,
        external_workspace=bool(pools),
        pools=pools,
        workspace_io=f"{prefix}_map_inputs" in header.functions,
        memory=MemoryInfo(main.workspace_bytes if main else 0, 0, 0, 0),
    )


def relay_inputs(text: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of each parameter of ``main`` in Relay text, by its name as a C identifier.

    Nothing is returned of a text that has no such function: this looks for facts, it does not check.
    """
    start = text.find(_SIGNATURE)
    if start < 0:
        return {}
    # comments may hold any character, braces too, so they go first; the signature of a function is its first line
    end = text.find("\n", start)
    signature = _COMMENT.sub("", text[start : end if end >= 0 else len(text)]).partition("{")[0]
    found = {}
    for name, extents, dtype, scalar in _PARAMETER.findall(signature):
        shape = tuple(int(extent) for extent in extents.replace(" ", "").split(",") if extent)
        found[_identifier(name)] = (shape, dtype or scalar)
    return found


def graph_outputs(outputs: Sequence[TensorRecord], known: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return the outputs `known` of a graph under the names of the metadata, where sizes tell which is which."""
    left = {tensor.name: (tensor.dtype, tensor.nbytes) for tensor in outputs}
    kinds = [(info.dtype, info.nbytes) for info in known]
    if sorted(left.values()) != sorted(kinds) or len(set(kinds)) != len(kinds):
        return tuple(known)
    names = {kind: name for name, kind in left.items()}
    return tuple(TensorInfo(names[kind], info.shape, info.dtype) for info, kind in zip(known, kinds, strict=True))


def _tensors(
    header: Header,
    struct: str,
    known: Sequence[TensorRecord],
    shapes: dict[str, tuple[tuple[int, ...], str]],
    place: str,
) -> tuple[TensorInfo, ...]:
    by_field = {_identifier(tensor.name): tensor for tensor in known}
    tensors = []
    for field in header.structs.get(struct, ()):
        tensor, relay = by_field.get(_identifier(field.name)), shapes.get(_identifier(field.name))
        if tensor is None and relay is None:
            raise ArchiveError(
                f"neither the metadata nor the Relay text say how large '{field.name}' is",
                place=place,
                next_step="Compile the model again with mlfc",
            )
        dtype = tensor.dtype if tensor else relay[1] if relay else ""
        info = TensorInfo(tensor.name if tensor else field.name, relay[0] if relay else (), dtype)
        if tensor and (relay is None or info.nbytes != tensor.nbytes or relay[1] != dtype):
            flat = (tensor.nbytes // max(1, TensorInfo(tensor.name, (), dtype).nbytes),)
            info = TensorInfo(tensor.name, tensor.shape or flat, dtype)
        tensors.append(info)
    return tuple(tensors)


def _pools(header: Header, prefix: str, place: str) -> tuple[PoolInfo, ...]:
    """Return each pool that the caller passes in, in the order of the struct."""
    pools = []
    for field in header.structs.get(f"{prefix}_workspace_pools", ()):
        macro = f"{prefix}_{field.name}_WORKSPACE_POOL_SIZE".upper()
        text = header.macros.get(macro, "").strip("()uUlL ")
        if not text.isdecimal() or len(text) > 15:
            raise ArchiveError(
                f"the header does not say the size of the pool '{field.name}', or it holds constants",
                place=place,
                next_step="Run it as firmware, which provides the pool",
            )
        pools.append(PoolInfo(field.name, int(text), base=0, lower_bound_bytes=0))
    return tuple(pools)


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)
