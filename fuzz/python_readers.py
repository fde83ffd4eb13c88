"""Every Python reader on damaged input: it returns or raises an error of mlfc, in few steps and little memory.

Seeds are valid files made here; a seed number determines the damage, so that failures can be reproduced.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from fuzz.mutation import BLIND, Mutator, json_changed
from mlfc.errors import InternalError, MlfcError
from mlfc.runtime import Module
from tests.counting import counted_calls

MAX_CALLS = 10_000_000
"""Function calls allowed for reading one file: about two seconds on a slow core."""
MAX_BYTES = 256 << 20
_DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits_int8.tflite"


@dataclass(frozen=True)
class Target:
    """A reader and its inputs.

    Attributes
    ----------
    name : str
    read : callable
        Called with the bytes of a file.
    seeds : sequence of bytes
        Valid files.
    mutators : sequence of Mutator
    calls : int
        Function calls allowed per file.
    """

    name: str
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    mutators: Sequence[Mutator]
    calls: int = MAX_CALLS


@dataclass(frozen=True)
class Failure:
    """An input that made a reader fail.

    Attributes
    ----------
    target : str
    data : bytes
    cause : str
    """

    target: str
    data: bytes
    cause: str


def inputs(target: Target, chance: random.Random) -> Iterator[bytes]:
    """Yield damaged files forever."""
    while True:
        data = chance.choice(target.seeds)
        mutator = chance.choice(target.mutators)
        try:
            yield mutator(data, chance)
        except (ValueError, RecursionError):
            # an impossible change, such as JSON of half a character
            continue


def failure_of(target: Target, data: bytes) -> Failure | None:
    """Read a file; return the fault, if any."""
    try:
        with counted_calls() as calls:
            target.read(data)
    except InternalError as error:
        return Failure(target.name, data, f"an error that blames mlfc: {error}")
    except MlfcError:
        pass
    except Exception as error:  # the fuzzer looks for these
        return Failure(target.name, data, f"{type(error).__name__}: {error}")
    return Failure(target.name, data, f"it took {calls.number:,} calls") if calls.number > target.calls else None


def fuzz(target: Target, seconds: float = inf, seed: int = 0, *, count: int = sys.maxsize) -> list[Failure]:
    """Feed a reader for some time, or a number of files; return one failing input of each kind.

    Parameters
    ----------
    target : Target
    seconds : float
        Default: until `count` files are read.
    seed : int
        The same seed gives the same files in the same order.
    count : int
    """
    failures: dict[str, Failure] = {}
    end = time.monotonic() + seconds
    tracemalloc.start()
    try:
        for index, data in enumerate(inputs(target, random.Random(f"{target.name} {seed}"))):
            if index >= count or time.monotonic() > end:
                break
            tracemalloc.reset_peak()
            failure = failure_of(target, data)
            peak = tracemalloc.get_traced_memory()[1]
            if failure is None and peak > MAX_BYTES:
                failure = Failure(target.name, data, f"it took {peak:,} bytes of memory")
            if failure is not None:
                failures.setdefault(failure.cause[:40], failure)
    finally:
        tracemalloc.stop()
    return list(failures.values())


def targets() -> tuple[Target, ...]:
    """Return every reader, with seeds from a small model compiled for both executors."""
    from mlfc.archive.read import bson
    from mlfc.archive.read.c_header import parse_header
    from mlfc.archive.read.params_forms import load_bson, load_json, params_bson, params_json
    from mlfc.archive.validate.parsed_files import defined_functions, defined_symbols
    from mlfc.relay.text import from_text
    from mlfc.runtime.executors.graph_json import parse_graph
    from mlfc.support.content import to_bytes
    from mlfc.support.executable import decode
    from mlfc.support.params import load_params, save_params

    aot, graph = _archive("aot"), _archive("graph")
    weights = {"p0": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), np.int64), "e": np.zeros((0, 3))}
    member = _member(graph)
    text = (*BLIND, json_changed)
    code = [member("codegen/host/src/digits_lib0.c")[:3000], member("codegen/host/src/digits_lib1.c")[-6000:]]
    return (
        Target("tar", _read_tar, [_small_tar()], BLIND),
        Target("archive", _read_archive, [aot, graph], (*BLIND, _metadata_changed)),
        Target("parameters", load_params, [save_params(weights), save_params({})], BLIND),
        Target("parameters as JSON", load_json, [to_bytes(params_json(weights))], text),
        Target("parameters as BSON", load_bson, [to_bytes(params_bson(weights))], BLIND),
        Target("BSON", lambda data: bson.decode(data, "fuzz"), [to_bytes(params_bson(weights))], BLIND),
        Target("graph JSON", parse_graph, [member("executor-config/graph/digits.graph")], text),
        Target(
            "Relay text",
            lambda data: from_text(data.decode("utf-8", "replace")),
            [member("src/digits.relay"), _RELAY, _DYNAMIC_RELAY],
            BLIND,
        ),
        Target("C code", defined_symbols, code, BLIND),
        Target("C header", lambda data: parse_header(data.decode("latin-1")), [_header(aot)], BLIND),
        Target("module blob", _blob_reader("classic"), [_blob("classic")], (*BLIND, _blob_changed)),
        Target("tvm-ffi blob", _blob_reader("ffi"), [_blob("ffi")], (*BLIND, _blob_changed)),
        Target("dynamic model", lambda data: decode(data, "fuzz"), descriptions(), text),
        Target("ELF object", lambda data: defined_functions(data, "fuzz"), [elf_object(32), elf_object(64)], BLIND),
    )


_RELAY = b"""#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4), float32]) {
  %0 = fn (%p: float32, Primitive=1) { exp(%p) };
  (sum(%x, axis=[1]), %x * 2f, 1i64).0 + %0(1f)
}
"""
_DYNAMIC_RELAY = b"""#[version = "0.0.5"]
/* module={"output_names": ["y", "z"], "symbols": {"n": "rows of x"}} */
def @main(%x: Tensor[(n, 4), float32], %go: bool, defines=[k], symbols="n=1..32,k=0..,r=0..") {
  let %r0: Tensor[(r, 4), float32] = if (%go) { @turn(%x) } else { exp(%x) };
  (%r0, full(1f, shape=[k, 2 * n - floordiv(n + 1, 2)], dtype="float32"), sum(cast(%x, dtype="int32")))
}
def @turn(%x: Tensor[(m, 4), float32]) -> Tensor[(?, 4), float32] { concatenate((%x, %x)) }
"""


def descriptions() -> list[bytes]:
    """Return the descriptions of a dynamic model with state, and of one that maps a sequence to an optional."""
    from mlfc.support.executable import Executable, PartInfo, VmValue, encode
    from mlfc.support.module_info import SymbolInfo
    from mlfc.support.tensor_info import BYTES, EXTENTS, GIVEN

    x, y = (VmValue(name, "float32", ("rows", 4, None)) for name in "xy")
    symbols = (SymbolInfo("rows", 1, 8), SymbolInfo("items", 0, None))
    state = VmValue("h", "int8", (4,))
    parts = (
        VmValue("s.extents", "int64", ("items", 2), PartInfo(EXTENTS, "sequence")),
        VmValue("s.bytes", "uint8", (None,), PartInfo(BYTES, "float32")),
    )
    optional = (
        VmValue("o.given", "bool", (), PartInfo(GIVEN)),
        VmValue("o.extents", "int64", (None, 2), PartInfo(EXTENTS, "optional sequence")),
        VmValue("o.bytes", "uint8", (None,), PartInfo(BYTES, "float32")),
    )
    return [
        encode(Executable("net", (x,), (y,), symbols[:1], (state,), ("h2",), 4096, 3)),
        encode(Executable("lists", parts, optional, symbols[1:], devices=("opencl",))),
    ]


class _Library(Module):
    """A stand-in for the library around a blob."""

    @property
    def is_dso_exportable(self) -> bool:
        """Return True, as a library contains code."""
        return True


def _blob(abi: str) -> bytes:
    """Return a tree with every built-in module kind, as stored in a library."""
    from mlfc.library.module_tree import pack
    from mlfc.runtime import FactoryModule, OnnxRuntimeModule, OpaqueModule, OpenClModule
    from mlfc.runtime.modules.device_module import FunctionInfo
    from mlfc.runtime.modules.tvm_kinds import ConstLoader, MetadataModule
    from mlfc.support.content import to_bytes

    info = FunctionInfo("", ("handle", "float32"), ("blockIdx.x", "threadIdx.x"))
    library = _Library()
    library.import_module(OpenClModule("cl", {"k": info}, "// Function: k\n__kernel void k() {}\n"))
    weights = {"w": np.arange(4, dtype=np.int8), "b": np.ones(2, np.float32)}
    members: tuple[Module, ...] = (
        ConstLoader(weights, {"f": ["w"]}),
        MetadataModule(),
        OnnxRuntimeModule(b"model"),
        OpaqueModule("dnnl_json", bytes.fromhex("01000000000000006602000000000000007b7d0000000000000000")),
    )
    for member in members:
        library.import_module(member)
    root = FactoryModule("m", library, graph_json='{"nodes": []}', params=weights)
    return to_bytes(pack(root, abi).content)


def _blob_reader(abi: str) -> Callable[[bytes], object]:
    from mlfc.runtime.modules.blob import read_tree

    return lambda data: read_tree(data, _Library(), abi)


def _blob_changed(seed: bytes, chance: random.Random) -> bytes:
    """Return a blob whose size matches its damaged content."""
    body = chance.choice(BLIND)(seed[8:], chance)
    return len(body).to_bytes(8, "little") + body


def _archive(executor: str) -> bytes:
    import mlfc

    module, params = mlfc.import_model(_DIGITS)
    factory = mlfc.build(module, params=params, module_name="digits", executor=executor)
    with tempfile.TemporaryDirectory() as folder:
        path = mlfc.export_model_library_format(factory, Path(folder) / "digits.tar", runtime=False)
        return path.read_bytes()


def _member(archive: bytes) -> Callable[[str], bytes]:
    import tarfile

    def read(name: str) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            file = tar.extractfile(f"./{name}")
            assert file is not None
            return file.read()

    return read


def _header(archive: bytes) -> bytes:
    return _member(archive)("codegen/host/include/tvmgen_digits.h")


def _small_tar() -> bytes:
    from mlfc.support.tar import write_tar

    file = io.BytesIO()
    write_tar(file, {"metadata.json": b"{}", "a/b": b"x" * 700, "a/" + "c" * 120: b"y"}, 0)
    return file.getvalue()


def elf_object(bits: int) -> bytes:
    """Return a small object file that defines the function ``f``."""
    import struct

    strings, symbol, head, section = b"\0f\0", "<IIIBBH", "<16sHHIIIIIHHHHHH", "<10I"
    wide = bits == 64
    if wide:
        symbol, head, section = "<IBBHQQ", "<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ"
    fields = (1, 0x12, 0, 1, 0, 4) if wide else (1, 0, 4, 0x12, 0, 1)
    symbols = bytes(struct.calcsize(symbol)) + struct.pack(symbol, *fields)
    start = struct.calcsize(head)
    table = start + len(symbols) + len(strings)
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    header = struct.pack(head, ident, 1, 62, 1, 0, 0, table, 0, start, 0, 0, struct.calcsize(section), 3, 0)
    sections = struct.pack(section, *[0] * 10)
    sections += struct.pack(section, 0, 2, 0, 0, start, len(symbols), 2, 1, 8, struct.calcsize(symbol))
    sections += struct.pack(section, 0, 3, 0, 0, start + len(symbols), len(strings), 0, 0, 1, 0)
    return header + symbols + strings + sections


def _read_tar(data: bytes) -> None:
    from mlfc.support.tar import open_tar

    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(data)
        file.flush()
        with open_tar(file.name) as tar:
            for name, size in tar.sizes.items():
                if len(tar.read(name, size)) != size or len(tar.view(name)) != size:
                    raise ValueError(f"{name} does not have the declared {size} bytes")


def _read_archive(data: bytes) -> None:
    from mlfc import archive

    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(data)
        file.flush()
        archive.validate(file.name)
        archive.inspect(file.name)


def _metadata_changed(seed: bytes, chance: random.Random) -> bytes:
    """Return an archive in which only the metadata is changed."""
    import tarfile

    from mlfc.support.tar import write_tar

    with tarfile.open(fileobj=io.BytesIO(seed)) as tar:
        files = {
            info.name.removeprefix("./"): tar.extractfile(info).read()  # type: ignore[union-attr]
            for info in tar
            if info.isreg()
        }
    document = json.loads(files["metadata.json"])
    # the list of files is half of the text, and mutations of it find little
    listed = document["mlfc"].pop("files")
    changed = json.loads(json_changed(json.dumps(document).encode(), chance))
    if isinstance(changed.get("mlfc"), dict):
        changed["mlfc"].setdefault("files", listed)
    file = io.BytesIO()
    write_tar(file, {**files, "metadata.json": json.dumps(changed).encode()}, 0)
    return file.getvalue()
