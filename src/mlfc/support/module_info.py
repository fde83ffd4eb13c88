"""What mlfc says of a module and of an archive beyond the format: the objects ``mlfc`` of ``metadata.json``.

The reader, the writer, the JSON Schema (``schema/metadata-7.json``), `mlfc inspect` and ``docs/reference/archive.md``
are made from this declaration. Libraries carry a `ModuleInterface` of each model in them.
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
    """The bytes of a module."""

    workspace_bytes: Annotated[
        Bytes, Says("of all workspace, scratch included; for graph modules its blocks and largest scratch")
    ]
    workspace_lower_bound_bytes: Annotated[
        Bytes, Says("the most bytes that are live at once", "no plan can need less, so it shows how good this one is")
    ]
    constants_bytes: Annotated[Bytes, Says("of all constants, without padding")]
    io_bytes: Annotated[Bytes, Says("of inputs and outputs together")]
    state_bytes: Annotated[
        Bytes, Says("of tensors that are kept from one run to the next; absent if there are none", omitted=True)
    ] = 0


@dataclass(frozen=True)
class StateInfo(TensorInfo):
    """A tensor that a module keeps from one run to the next.

    Attributes
    ----------
    name : str
        The model's own: of the input, or of the variable.
    next : str
        The model's name of the tensor that it is set to at the end of a run.
    offset : int or None
        Where it begins in the memory of states; None for the graph executor, whose argument it is.
    """

    next: Annotated[Text, Says("the model's tensor that it becomes at the end of a run")] = ""
    offset: Annotated[Bytes | None, Says("in the memory of states; null for arguments of a graph")] = None


@dataclass(frozen=True)
class PoolInfo(Record):
    """A memory that a part of the workspace lies in."""

    name: MemoryName
    nbytes: Bytes
    base: Annotated[Bytes, Says("where it begins among the offsets of `plan`")]
    lower_bound_bytes: Bytes


@dataclass(frozen=True)
class ConstantPoolInfo(Record):
    """A memory that a part of the constants lies in."""

    name: MemoryName
    nbytes: Bytes
    file: Annotated[
        Annotated[str, Limits(pattern="^src/[a-z0-9_]{1,200}[.][a-z0-9_]{1,32}[.]bin$")] | None,
        Says("under `codegen/host`: what the caller loads; null for a section of the code"),
    ]


@dataclass(frozen=True)
class RowTilingInfo(Record):
    """Layers that are tiled by rows, and what that saved and cost."""

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
    """One call of a generated function: what profiles tell of it."""

    function: Text
    nodes: Annotated[tuple[Text, ...], Says("of the original model")]
    macs: Annotated[Bytes, Says("multiply-accumulates")]
    nbytes: Annotated[Bytes | None, Says("of all tensors it reads and writes", omitted=True)] = None
    tensors: Annotated[
        tuple[Text, ...],
        Says(
            "the types of what it reads, then of what it writes: `float32[1,64]`; a number that the run decides in"
            " reverse Polish notation, such as `n0 64 *`, in which `n0` is the kernel's first number",
            omitted=True,
        ),
    ] = ()
    run_macs: Annotated[
        Text | None, Says("`macs` of a run, where the run decides them: as in `tensors`", omitted=True)
    ] = None


@dataclass(frozen=True, kw_only=True)
class CallInfo(OperatorInfo):
    """One call of a generated function, with what it costs."""

    workspace_bytes: Annotated[Bytes | None, Says("its scratch, in the worst case; null where it has no bound")]
    shapes: Annotated[
        tuple[Text, ...],
        Says(
            "`tensors` with the model's names: `float32[1, (h + 1) // 2, 8]`; absent where all extents are known",
            omitted=True,
        ),
    ] = ()
    live_bytes: Annotated[Bytes | None, Says("of the workspace during the call", omitted=True)] = None
    device: Annotated[
        Text | None,
        Says("in models for a device: `cpu`, `opencl`, ...; copies between both are `__copy`", omitted=True),
    ] = None
    reads: Annotated[
        tuple[Annotated[int, Limits(minimum=-_INT32, maximum=_INT32)], ...],
        Says(
            "the positions of the calls whose results it reads; -1 - k for input k, with states after the inputs",
            omitted=True,
        ),
    ] = ()
    outputs: Annotated[
        tuple[Index, ...],
        Says(
            "the positions of the outputs that it computes, with next values of states after the outputs", omitted=True
        ),
    ] = ()


@dataclass(frozen=True)
class NamedBytes(Record):
    """A tensor and its bytes."""

    name: Text
    nbytes: Bytes


@dataclass(frozen=True)
class PeakInfo(Record):
    """The call during which most workspace is live."""

    function: Text
    nodes: tuple[Text, ...]
    live_bytes: Bytes
    tensors: Annotated[tuple[NamedBytes, ...], Says("the largest live ones")]


@dataclass(frozen=True)
class ReachInfo(Record):
    """An input of which an output takes bytes that are read no more."""

    block: Annotated[Index, Says("the position of the input in this list")]
    distance: Annotated[
        int,
        Limits(minimum=-(1 << 40), maximum=1 << 40),
        Says("at least how many bytes the output starts before the input"),
    ]


@dataclass(frozen=True)
class BlockInfo(Record):
    """A block of the workspace: its place and its life."""

    name: Text
    nbytes: Bytes
    offset: Bytes
    first: Annotated[Index, Says("the first call that needs it")]
    last: Annotated[Index, Says("the last call that needs it")]
    reuses: Annotated[Index | None, Says("the position in this list of the input it overwrites")]
    reaches: Annotated[
        tuple[ReachInfo, ...],
        Limits(max_items=64),
        Says("inputs of which it overwrites bytes no longer needed; absent if there are none", omitted=True),
    ] = ()


@dataclass(frozen=True)
class ConstantInfo(Record):
    """A constant's content."""

    name: Text
    nbytes: Bytes
    dtype: Dtype
    shape: Shape
    sha256: Sha256
    source: Annotated[Text | None, Says("for graph modules, its name in the model", omitted=True)] = None


@dataclass(frozen=True)
class ImportedModule(Record):
    """A module that a compiled model consists of."""

    type_key: Annotated[str, Limits(pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
    files: tuple[Text, ...]
    parent: Annotated[Index | None, Says("the position in this list of the module that imports it")]


@dataclass(frozen=True)
class AskedPool(Record):
    """A memory of the workspace as it was asked for."""

    name: MemoryName
    nbytes: Annotated[Size | None, Says("null for no limit")]


@dataclass(frozen=True)
class AskedConstantPool(AskedPool):
    """A memory of constants as it was asked for."""

    external: Annotated[bool, Says("whether the caller loads it")]


@dataclass(frozen=True)
class ToolchainInfo(Record):
    """What compiled the objects in the archive."""

    compiler: Text


@dataclass(frozen=True, kw_only=True)
class BuildInfo(Record):
    """All that compiling the same again takes, beside the source in the archive."""

    target: Text
    target_host: Annotated[Text | None, Says("of the code beside a device's", omitted=True)] = None
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
        Says("values of open extents that have code of their own", omitted=True),
    ] = ()
    ram: Annotated[Bytes | None, Says("the bytes that layers were tiled for", omitted=True)] = None
    pools: Annotated[tuple[AskedPool, ...], Limits(max_items=100), Says("as asked for", omitted=True)] = ()
    constants: Annotated[tuple[AskedConstantPool, ...], Limits(max_items=100), Says("as asked for", omitted=True)] = ()
    toolchain: Annotated[ToolchainInfo | None, Says("what compiled the objects in the archive; null without objects")]
    test_vectors: Bytes
    seed: Bytes


@dataclass(frozen=True)
class SymbolInfo(Record):
    """An open extent of inputs: its name and bounds."""

    name: Text
    low: Bytes
    high: Annotated[Bytes | None, Says("null where it has no bound")]


@dataclass(frozen=True)
class VmInfo(Record):
    """What a dynamic model needs."""

    arena_bytes: Annotated[
        Bytes | None,
        Says("the memory of all tensors at their largest sizes; null where runs allocate memory", "no heap is needed"),
    ]
    work_bytes: Annotated[
        Bytes | None,
        Says("of the work area of a run; null where there is no bound", "the one static array of firmware"),
    ]
    symbols: Annotated[tuple[SymbolInfo, ...], Limits(max_items=10000), Says("the open extents of the inputs")] = ()
    input_bytes: Annotated[
        Bytes | None,
        Says(
            "of all inputs in the worst case; absent where there is no bound",
            "outputs are in the work area, inputs are not",
            omitted=True,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModuleInterface(Record):
    """What callers must know of a module."""

    executor: Annotated[Executor, Says("`aot`, `graph` or `vm`")] = "aot"
    entry: Annotated[
        Symbol | None,
        Says("the C function to call; null for the graph executor", "the runtime need not know how names are made"),
    ]
    external_workspace: Annotated[
        bool, Says("whether the caller passes the workspace in", "the entry has one argument more")
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
            "layers that are tiled by rows; absent if there are none",
            "the cost and the saving of `--ram`",
            omitted=True,
        ),
    ] = None
    pools: Annotated[
        tuple[PoolInfo, ...],
        Limits(min_items=1, max_items=100),
        Says(
            "the memories that the workspace is spread over; absent if it is one array",
            "sections, or the caller's pointers, in this order",
            omitted=True,
        ),
    ] = ()
    constant_pools: Annotated[
        tuple[ConstantPoolInfo, ...],
        Limits(max_items=100),
        Says(
            "the memories that constants are spread over; absent if the linker places them",
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
            "shapes and scales have no place in the format",
        ),
    ]
    outputs: Annotated[tuple[TensorInfo, ...], Says("as `inputs`")]
    states: Annotated[
        tuple[StateInfo, ...],
        Limits(max_items=100000),
        Says(
            "the tensors that are kept from one run to the next; absent if there are none",
            "they are no inputs and outputs; `tvmgen_<M>_state_reset`, `..._save` and `..._restore` manage them",
            omitted=True,
        ),
    ] = ()
    levels: Annotated[
        tuple[Annotated[str, Limits(max_length=64)], ...],
        Limits(max_items=16),
        Says(
            "of a library with kernels for several levels of processors, these, the lowest first; absent for others",
            "one is chosen when the library is loaded; `tvmgen_<M>_cpu` tells which",
            omitted=True,
        ),
    ] = ()
    vm: Annotated[
        VmInfo | None,
        Says("of the virtual machine; absent for other executors", "bounds of open extents, and memory", omitted=True),
    ] = None
    memory: Annotated[MemoryInfo, Says("as the format's keys above, and a bound", "budgets")]
    operators: Annotated[
        tuple[OperatorInfo, ...] | None,
        Says("each call in order", "what runs, where, for which nodes, at what cost", omitted=True),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModuleInfo(ModuleInterface):
    """What mlfc knows of a module beyond the format; other readers skip this key."""

    version: Annotated[Text, Says("of the program", "modules of one archive may come from several")]
    numerics: Annotated[Text, Says("as compiled", "which results to expect")]
    optimize: Annotated[Text, Says("as compiled", "which code to expect")]
    operators: Annotated[
        tuple[CallInfo, ...], Says("each call in order", "what runs, where, for which nodes, at what cost")
    ] = field()  # that of the base class has a default
    parameters: Annotated[
        Bytes | None,
        Says(
            "the number of values in the model's own weights",
            "the size of the model, whatever its code",
            omitted=True,
            title="parameters of the model",
        ),
    ] = None
    peak: Annotated[
        PeakInfo | None,
        Says("the call with the most live bytes; null without a workspace", "what to change to save memory"),
    ]
    plan: Annotated[
        tuple[BlockInfo, ...] | None,
        Says(
            "AOT, and VM with bounds: every block of the workspace, by first call, as large as the bounds allow; null"
            " for graph modules, which have `memory.sids`, and where storage is allocated when the module runs",
            "anyone can check that no two live blocks overlap",
        ),
    ] = None
    constants: Annotated[
        tuple[ConstantInfo, ...] | None,
        Says("each distinct content once", "which weights it has, and which differ between two archives", omitted=True),
    ] = None
    module_tree: Annotated[
        tuple[ImportedModule, ...],
        Limits(min_items=1),
        Says(
            "the modules of the import tree, the generated C first", "loading gives the same imports back", omitted=True
        ),
    ] = ()
    build: Annotated[
        BuildInfo | None,
        Says("what it was compiled with", "with `src/`, all that compiling it again needs", omitted=True),
    ] = None
    source: Annotated[Mapping[str, Text], Says("`format`, `name`, `sha256` of the model file", "which model this is")]

    @classmethod
    def of(cls, interface: ModuleInterface, **facts: Any) -> ModuleInfo:
        """Return what an interface and these further facts say together."""
        return cls(**{**vars(interface), **facts})


@dataclass(frozen=True)
class FileInfo(Record):
    """A member of the archive."""

    nbytes: Bytes
    sha256: Sha256


@dataclass(frozen=True)
class SharedInfo(Record):
    """What several modules have together."""

    workspace_bytes: Annotated[Bytes, Says("shared by `workspace_modules`, which must never run at once")]
    workspace_modules: tuple[Text, ...]
    constants_bytes: Annotated[Bytes, Says("stored once")]
    functions: Annotated[tuple[Text, ...], Says("stored once")]


@dataclass(frozen=True)
class ArchiveInfo(Record):
    """The archive's own facts; other readers skip this key."""

    version: Annotated[Text, Says("of the program that wrote it", "for bug reports")]
    files: Annotated[
        Mapping[str, FileInfo], Says("every other member, by path", "damage is found before anything is compiled")
    ]
    shared: Annotated[SharedInfo | None, Says("of several modules", "budgets of the whole program", omitted=True)] = (
        None
    )


DEFINITIONS: Mapping[type[Record], str] = {ModuleInfo: "details", ArchiveInfo: "archive", TensorInfo: "tensor"}
"""Names of definitions in the JSON Schema."""
