"""Options of importing, building and compiling a model, each declared and documented only here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mlfc.support.keywords import option
from mlfc.target.target import EVERY_CPU, PORTABLE

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlfc.memory import ConstantPool, Pool
    from mlfc.target.tuning_log import Log

AUTO = "auto"
_LIMITS = "Multiply the limits on memory and work for compiling one model."
Params: TypeAlias = "Mapping[str, npt.NDArray[Any]]"


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportOptions:
    """Options of `mlfc.import_model`."""

    example_inputs: Any = option(
        None,
        "Example arguments for the ``forward`` of a PyTorch module, by position or by name. Required for modules: "
        "their shapes and dtypes become those of the inputs.",
    )
    dynamic_shapes: Any = option(
        None,
        "Dynamic dimensions of a PyTorch module's inputs, in the form of the argument of `torch.export.export`: "
        '``({0: torch.export.Dim("batch", min=1, max=32)},)``. The names and bounds are kept.',
    )
    shapes: Mapping[str, Sequence[int]] | None = option(
        None,
        "Shapes of inputs whose dimensions are dynamic in the model. To keep a dimension dynamic, pass an `mlfc.Dim` "
        "or (name, low, high) instead of a number.",
    )
    values: Mapping[str, npt.ArrayLike] | None = option(
        None,
        "Inputs to replace by constants, which are folded into the model. A number fills the whole input; a list has "
        "its elements in order. For a quantized input, pass its integers.",
    )
    states: Mapping[str, str] | None = option(
        None,
        "Inputs that the compiled model keeps between runs, each with the output that is its next value: "
        '``{"h_in": "h_out"}``. Variables of TFLite models, and buffers that a PyTorch module writes, are always '
        "states.",
    )
    state_init: Mapping[str, npt.ArrayLike] | str | None = option(
        None,
        "Initial values of states, by the names of inputs or variables, or ``zeros``. Default: the model's, else "
        "zeros.",
    )
    numerics: str = option(
        "litert", "Integer rounding of TFLite models: ``litert`` (default) or ``tflm`` (TensorFlow Lite Micro)."
    )
    signature: str | None = option(None, "The signature of a TFLite model to import. Default: its first subgraph.")
    name: str | None = option(None, "The name of the model. Default: the file's name without suffix, or ``model``.")
    byoc: Sequence[str] = option(
        (),
        "External code generators for the operators they support, in order of precedence: ``cmsis_nn``, "
        "``onnxruntime``.",
    )
    operators: Sequence[str | os.PathLike[str]] = option(
        (),
        "Python files with operators of your own (`mlfc.operators.declare`) or external code generators. They are run.",
    )
    target: str | None = option(
        None,
        "The target that the model will be compiled for, if it is known: errors then suggest only what works there.",
    )
    limit_factor: float = option(1.0, _LIMITS)
    dynamic: bool = option(
        False,
        "Keep dynamic dimensions that an ONNX model declares, shapes that depend on data, branches and loops. Only the "
        "executor ``vm`` runs such a module. Shapes with an `mlfc.Dim` imply it.",
    )


@dataclass(frozen=True, eq=False)
class BuildOptions:
    """Options of `mlfc.build`."""

    target: str = option(
        PORTABLE,
        "A target string; see `mlfc.target.target.parse_target`. With a device (``opencl``, ``cuda``), operators that "
        "the device does not support run on the host.",
    )
    _: KW_ONLY
    target_host: str = option(PORTABLE, "The target of the host's code beside a device's: ``c`` (default) or ``llvm``.")
    executor: str | None = option(
        None,
        "``aot``: one C function runs the model. ``graph``: the graph executor calls one operator at a time. ``vm``: "
        "the virtual machine runs dynamic shapes and control flow. Default: ``vm`` for dynamic models, ``graph`` where "
        "a device or a runtime module of an external generator is used, else ``aot``.",
    )
    module_name: str | None = option(
        None,
        "Part of every symbol: letters, digits and underscores. Default: in `mlfc.compile` the name of the file or of "
        "the module's class, else ``default``.",
    )
    optimize: str = option("speed", "``speed`` (default) or ``size``.")
    external_workspace: bool = option(
        False, "The caller passes the workspace in, instead of a static array. Requires the executor ``aot``."
    )
    workspace_io: bool = option(
        False, "Inputs and outputs are in the workspace; a run destroys the inputs. Requires the executor ``aot``."
    )
    pools: Sequence[Pool] = option((), "Memories for the workspace, the fastest first.")
    constants: Sequence[ConstantPool] = option((), "Memories for constants, the fastest first.")
    ram: int | None = option(
        None,
        "Tile layers by rows to keep workspace, inputs and outputs within this number of bytes. This adds calls and "
        "does not change results. Exceeding it is not an error; see `mlfc.archive.write.budget.check_budget`.",
    )
    limit_factor: float = option(1.0, _LIMITS)
    specialize: Sequence[Mapping[str, int]] | str = option(
        (),
        'Values of dynamic dimensions with specialized code, ``[{"batch": 1}, {"batch": 8}]``: faster, with the same '
        "bits. ``auto``, in `mlfc.compile` alone: in this process, code for shapes that recur is generated at run "
        "time; exported files do not contain it.",
    )
    parallel: bool | None = option(
        None,
        "Kernels share their work among threads; results are the same for any number of them. Archives start threads "
        "through a function that the application provides. Default: libraries where this is faster; C programs once "
        "they request threads.",
    )
    tuned: Log | None = option(
        None,
        "The log of mlfc tune: kernels use the parameters measured as fastest, with the same bits. Default: a log that "
        "comes with mlfc; ``none``: no log.",
    )
    dry_run: bool = option(False, "Stop before code generation; all errors have been raised by then.")


@dataclass(frozen=True, eq=False)
class CompileOptions(ImportOptions, BuildOptions):
    """Options of `mlfc.compile`."""

    target: str = option(
        EVERY_CPU,
        "A target string, as for `build`. The default suits each use: models run here with code for this processor, "
        "libraries contain code for each level of the architecture, and archives contain portable C.",
    )
