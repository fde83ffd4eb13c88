"""Metadata of modules and archives beyond the Model Library Format: the objects ``mlfc`` of ``metadata.json``.

The reader, the writer, the JSON Schema (``schema/metadata-7.json``), `mlfc inspect` and ``docs/reference/archive.md``
are generated from these declarations. Libraries contain a `ModuleInterface` for each of their models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from mlfc.support.records import Limits, Record, Says
from mlfc.support.tensor_info import Dtype, TensorInfo, Text

_MOST = (1 << 53) - 1
_INT32 = (1 << 31) - 1

Bytes: TypeAlias = Annotated[int, Limits("bytes", minimum=0, maximum=_MOST)]
Index: TypeAlias = Annotated[int, Limits("index", minimum=0, maximum=_INT32)]
Count: TypeAlias = Annotated[int, Limits("count", minimum=1, maximum=_INT32)]
Size: TypeAlias = Annotated[int, Limits(minimum=1, maximum=_MOST)]
Sha256: TypeAlias = Annotated[str, Limits("sha256", pattern="^[0-9a-f]{64}$")]
MemoryName: TypeAlias = Annotated[str, Limits("memory_name", pattern="^[a-z][a-z0-9_]{0,31}$")]
Symbol: TypeAlias = Annotated[str, Limits(pattern="^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
Shape: TypeAlias = Annotated[tuple[Bytes, ...], Limits("shape", max_items=32)]
Executor: TypeAlias = Annotated[str, Limits(enum=("aot", "graph", "vm"))]


@dataclass(frozen=True)
class MemoryInfo(Record):
    """The memory sizes of a module, in bytes."""

    workspace_bytes: Annotated[
        Bytes, Says("of all workspace, scratch included; for graph modules its blocks and largest scratch")
    ]
    workspace_lower_bound_bytes: Annotated[
        Bytes, Says("the most bytes that are live at once", "no plan can need less: shows how good this one is")
    ]
    constants_bytes: Annotated[Bytes, Says("of all constants, without padding")]
    io_bytes: Annotated[Bytes, Says("of inputs and outputs together")]
    state_bytes: Annotated[Bytes, Says("of the states; absent if the module has none", omitted=True)] = 0


@dataclass(frozen=True)
class StateInfo(TensorInfo):
    """A tensor that persists between runs of a module.

    Attributes
    ----------
    name : str
        The name of the input or variable in the model.
    next : str
        The name in the model of the tensor that is its value after a run.
    offset : int or None
        Its start in the memory of states; None for the graph executor, where it is an argument.
    """

    next: Annotated[Text, Says("the model's tensor that is its value after a run")] = ""
    offset: Annotated[Bytes | None, Says("in the memory of states; null for arguments of a graph")] = None


@dataclass(frozen=True)
class PoolInfo(Record):
    """A memory pool that stores a part of the workspace."""

    name: MemoryName
    nbytes: Bytes
    base: Annotated[Bytes, Says("its first offset in `plan`")]
    lower_bound_bytes: Bytes


@dataclass(frozen=True)
class ConstantPoolInfo(Record):
    """A memory pool that stores a part of the constants."""

    name: MemoryName
    nbytes: Bytes
    file: Annotated[
        Annotated[str, Limits(pattern="^src/[a-z0-9_]{1,200}[.][a-z0-9_]{1,32}[.]bin$")] | None,
        Says("the file under `codegen/host` that the caller loads; null for a section of the code"),
    ]


@dataclass(frozen=True)
class RowTilingInfo(Record):
    """Layers that are tiled by rows, and the saving and cost of it."""

    nodes: Annotated[
        tuple[Annotated[tuple[Text, ...], Limits(max_items=100000)], ...],
        Limits(max_items=10000),
        Says("of each layer"),
    ]
    rows: Annotated[Count, Says("of the last layer in one tile")]
    count: Annotated[Count, Says("of tiles")]
    calls_without: Index
    workspace_bytes_without: Bytes


@dataclass(frozen=True)
class OperatorInfo(Record):
    """One call of a generated function, as in profiles."""

    function: Text
    nodes: Annotated[tuple[Text, ...], Says("of the original model")]
    macs: Annotated[Bytes, Says("multiply-accumulates")]
    nbytes: Annotated[Bytes | None, Says("of all tensors it reads and writes", omitted=True)] = None
    tensors: Annotated[
        tuple[Text, ...],
        Says(
            "the types of the tensors it reads, then of those it writes: `float32[1,64]`; dynamic dimensions are in"
            " reverse Polish notation, such as `n0 64 *`, where `n0` is the kernel's first number",
            omitted=True,
        ),
    ] = ()
    run_macs: Annotated[Text | None, Says("`macs` of a run if they are dynamic, as in `tensors`", omitted=True)] = None


@dataclass(frozen=True, kw_only=True)
class CallInfo(OperatorInfo):
    """One call of a generated function, with its cost."""

    workspace_bytes: Annotated[Bytes | None, Says("its scratch, in the worst case; null if unbounded")]
    shapes: Annotated[
        tuple[Text, ...],
        Says(
            "`tensors` with the model's names: `float32[1, (h + 1) // 2, 8]`; absent if all are static",
            omitted=True,
        ),
    ] = ()
    live_bytes: Annotated[Bytes | None, Says("of the workspace during the call", omitted=True)] = None
    device: Annotated[
        Text | None,
        Says("in models for a device: `cpu`, `opencl`, ...; copies between the two are `__copy`", omitted=True),
    ] = None
    reads: Annotated[
        tuple[Annotated[int, Limits(minimum=-_INT32, maximum=_INT32)], ...],
        Says(
            "the indices of the calls whose results it reads; -1 - k for input k; states follow the inputs",
            omitted=True,
        ),
    ] = ()
    outputs: Annotated[
        tuple[Index, ...],
        Says("the indices of the outputs that it computes; next values of states follow the outputs", omitted=True),
    ] = ()


@dataclass(frozen=True)
class NamedBytes(Record):
    """The name and size of a tensor."""

    name: Text
    nbytes: Bytes


@dataclass(frozen=True)
class PeakInfo(Record):
    """The call with the most live workspace bytes."""

    function: Text
    nodes: tuple[Text, ...]
    live_bytes: Bytes
    tensors: Annotated[tuple[NamedBytes, ...], Says("the largest live ones")]


@dataclass(frozen=True)
class ReachInfo(Record):
    """An input that an output overwrites after its last read."""

    block: Annotated[Index, Says("the index of the input in this list")]
    distance: Annotated[
        int,
        Limits(minimum=-(1 << 40), maximum=1 << 40),
        Says("the least number of bytes by which the output starts before the input"),
    ]


@dataclass(frozen=True)
class BlockInfo(Record):
    """A block of the workspace: offset and lifetime."""

    name: Text
    nbytes: Bytes
    offset: Bytes
    first: Annotated[Index, Says("the first call that needs it")]
    last: Annotated[Index, Says("the last call that needs it")]
    reuses: Annotated[Index | None, Says("the index in this list of the input it overwrites")]
    reaches: Annotated[
        tuple[ReachInfo, ...],
        Limits(max_items=64),
        Says("inputs that it overwrites after their last read; absent if none", omitted=True),
    ] = ()


@dataclass(frozen=True)
class ConstantInfo(Record):
    """The content of a constant."""

    name: Text
    nbytes: Bytes
    dtype: Dtype
    shape: Shape
    sha256: Sha256
    source: Annotated[Text | None, Says("for graph modules, its name in the model", omitted=True)] = None


@dataclass(frozen=True)
class ImportedModule(Record):
    """A module of a compiled model."""

    type_key: Annotated[str, Limits(pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
    files: tuple[Text, ...]
    parent: Annotated[Index | None, Says("the index in this list of the module that imports it")]


@dataclass(frozen=True)
class AskedPool(Record):
    """A memory pool of the workspace, as requested."""

    name: MemoryName
    nbytes: Annotated[Size | None, Says("null for no limit")]


@dataclass(frozen=True)
class AskedConstantPool(AskedPool):
    """A memory pool of constants, as requested."""

    external: Annotated[bool, Says("whether the caller loads it")]


@dataclass(frozen=True)
class ToolchainInfo(Record):
    """The toolchain that compiled the objects in the archive."""

    compiler: Text


@dataclass(frozen=True, kw_only=True)
class BuildInfo(Record):
    """All options for compiling the module again from the source in the archive."""

    target: Text
    target_host: Annotated[Text | None, Says("of the host code of a device", omitted=True)] = None
    executor: Executor
    optimize: Text
    numerics: Text
    external_workspace: bool
    workspace_io: Annotated[bool, Says(omitted=True)] = False
    byoc: Annotated[
        tuple[Text, ...], Limits(max_items=100), Says("external code generators, in order of precedence", omitted=True)
    ] = ()
    specialize: Annotated[
        tuple[Mapping[str, Bytes], ...],
        Limits(max_items=1000),
        Says("values of dynamic dimensions with specialized code", omitted=True),
    ] = ()
    ram: Annotated[Bytes | None, Says("the RAM budget in bytes that layers were tiled for", omitted=True)] = None
    pools: Annotated[tuple[AskedPool, ...], Limits(max_items=100), Says("as requested", omitted=True)] = ()
    constants: Annotated[tuple[AskedConstantPool, ...], Limits(max_items=100), Says("as requested", omitted=True)] = ()
    toolchain: Annotated[ToolchainInfo | None, Says("the compiler of the objects in the archive; null without objects")]
    test_vectors: Bytes
    seed: Bytes


@dataclass(frozen=True)
class SymbolInfo(Record):
    """A dynamic dimension of inputs: name and bounds."""

    name: Text
    low: Bytes
    high: Annotated[Bytes | None, Says("null if unbounded")]


@dataclass(frozen=True)
class VmInfo(Record):
    """The memory and dimensions of a dynamic model."""

    arena_bytes: Annotated[
        Bytes | None,
        Says("the memory of all tensors at their largest sizes; null if runs allocate memory", "no heap is needed"),
    ]
    work_bytes: Annotated[
        Bytes | None,
        Says("of the work area of a run; null if unbounded", "the one static array of firmware"),
    ]
    symbols: Annotated[tuple[SymbolInfo, ...], Limits(max_items=10000), Says("dynamic dimensions of the inputs")] = ()
    input_bytes: Annotated[
        Bytes | None,
        Says(
            "of all inputs in the worst case; absent if unbounded",
            "outputs are in the work area, inputs are not",
            omitted=True,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModuleInterface(Record):
    """The interface of a module for its callers."""

    executor: Annotated[Executor, Says("`aot`, `graph` or `vm`")] = "aot"
    entry: Annotated[
        Symbol | None,
        Says("the C function to call; null for the graph executor", "the runtime does not derive the name"),
    ]
    external_workspace: Annotated[
        bool, Says("whether the caller provides the workspace", "the entry has one more argument")
    ]
    workspace_io: Annotated[
        bool,
        Says(
            "true if inputs and outputs are in the workspace; else absent",
            "the entry takes no pointers to them; `tvmgen_<M>_map_inputs` and `..._map_outputs` return their addresses",
            omitted=True,
        ),
    ] = False
    tiling: Annotated[
        RowTilingInfo | None,
        Says(
            "layers that are tiled by rows; absent if none",
            "the cost and the saving of `--ram`",
            omitted=True,
        ),
    ] = None
    pools: Annotated[
        tuple[PoolInfo, ...],
        Limits(min_items=1, max_items=100),
        Says(
            "the memory pools of the workspace; absent if it is one array",
            "sections, or the caller's pointers, in this order",
            omitted=True,
        ),
    ] = ()
    constant_pools: Annotated[
        tuple[ConstantPoolInfo, ...],
        Limits(max_items=100),
        Says(
            "the memory pools of constants; absent if the linker places them",
            "sections, or the caller's pointers, after those of `pools`",
            omitted=True,
        ),
    ] = ()
    workspace_peers: Annotated[
        tuple[Annotated[str, Limits(max_length=128)], ...],
        Says("modules that use the same workspace; empty without `--share-workspace`", "never run two of them at once"),
    ] = ()
    inputs: Annotated[
        tuple[TensorInfo, ...],
        Says(
            "in the order of the C structs, with `scale` and `zero_point` of quantized tensors",
            "the format does not store shapes and scales",
        ),
    ]
    outputs: Annotated[tuple[TensorInfo, ...], Says("as `inputs`")]
    states: Annotated[
        tuple[StateInfo, ...],
        Limits(max_items=100000),
        Says(
            "the tensors that persist between runs; absent if none",
            "they are not inputs or outputs; `tvmgen_<M>_state_reset`, `..._save` and `..._restore` manage them",
            omitted=True,
        ),
    ] = ()
    levels: Annotated[
        tuple[Annotated[str, Limits(max_length=64)], ...],
        Limits(max_items=16),
        Says(
            "the CPU levels of a library's kernels, the lowest first; absent if it has only one",
            "one is chosen when the library is loaded; `tvmgen_<M>_cpu` returns it",
            omitted=True,
        ),
    ] = ()
    vm: Annotated[
        VmInfo | None,
        Says("of the virtual machine; absent for other executors", "bounds of dimensions, and memory", omitted=True),
    ] = None
    memory: Annotated[MemoryInfo, Says("as the format's keys above, and a bound", "budgets")]
    operators: Annotated[
        tuple[OperatorInfo, ...] | None,
        Says("each call in order", "what runs, where, for which nodes, at what cost", omitted=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModuleInfo(ModuleInterface):
    """Metadata of a module beyond the format; other readers skip this key."""

    version: Annotated[Text, Says("of the program", "modules of one archive may come from several")]
    numerics: Annotated[Text, Says("as compiled", "which results to expect")]
    optimize: Annotated[Text, Says("as compiled", "which code to expect")]
    operators: Annotated[
        tuple[CallInfo, ...], Says("each call in order", "what runs, where, for which nodes, at what cost")
    ] = field()  # the base class has a default
    parameters: Annotated[
        Bytes | None,
        Says(
            "the number of values in the model's own weights",
            "the size of the model, independent of its code",
            omitted=True,
            title="parameters of the model",
        ),
    ] = None
    peak: Annotated[
        PeakInfo | None,
        Says("the call with the most live bytes; null without a workspace", "where to save memory"),
    ]
    plan: Annotated[
        tuple[BlockInfo, ...] | None,
        Says(
            "AOT, and VM with bounds: every block of the workspace, by first call, at its largest size; null"
            " for graph modules, which have `memory.sids`, and if storage is allocated at run time",
            "anyone can check that no two live blocks overlap",
        ),
    ] = None
    constants: Annotated[
        tuple[ConstantInfo, ...] | None,
        Says("each distinct content once", "identifies the weights, also to compare two archives", omitted=True),
    ] = None
    module_tree: Annotated[
        tuple[ImportedModule, ...],
        Limits(min_items=1),
        Says("the modules of the import tree, the generated C first", "loading restores the imports", omitted=True),
    ] = ()
    build: Annotated[
        BuildInfo | None,
        Says("its compile options", "sufficient, with `src/`, to compile it again", omitted=True),
    ] = None
    source: Annotated[Mapping[str, Text], Says("`format`, `name`, `sha256` of the model file", "which model this is")]

    @classmethod
    def of(cls, interface: ModuleInterface, **facts: Any) -> ModuleInfo:
        """Return the module info that consists of an interface and additional fields."""
        return cls(**{**vars(interface), **facts})


@dataclass(frozen=True)
class FileInfo(Record):
    """A member of the archive."""

    nbytes: Bytes
    sha256: Sha256


@dataclass(frozen=True)
class SharedInfo(Record):
    """Resources that several modules share."""

    workspace_bytes: Annotated[Bytes, Says("shared by `workspace_modules`, which must never run at once")]
    workspace_modules: tuple[Text, ...]
    constants_bytes: Annotated[Bytes, Says("stored once")]
    functions: Annotated[tuple[Text, ...], Says("stored once")]


@dataclass(frozen=True)
class ArchiveInfo(Record):
    """Metadata of the archive; other readers skip this key."""

    version: Annotated[Text, Says("of the program that wrote it", "for bug reports")]
    files: Annotated[
        Mapping[str, FileInfo], Says("every other member, by path", "damage is detected before anything is compiled")
    ]
    shared: Annotated[SharedInfo | None, Says("of several modules", "budgets of the whole program", omitted=True)] = (
        None
    )


DEFINITIONS: Mapping[type[Record], str] = {ModuleInfo: "details", ArchiveInfo: "archive", TensorInfo: "tensor"}
"""Names of definitions in the JSON Schema."""
