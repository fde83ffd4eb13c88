"""The graph passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from mlforge.relay.ir import IRModule
from mlforge.transform.bind_params import BindParams
from mlforge.transform.convert_layout import ConvertLayout
from mlforge.transform.decompose import Decompose
from mlforge.transform.fold_constant import FoldConstant
from mlforge.transform.fold_pad import FoldPad
from mlforge.transform.fold_scale import FoldScale
from mlforge.transform.fuse import FuseOps
from mlforge.transform.layer_norm import RecognizeLayerNorm
from mlforge.transform.move_views import MoveViews
from mlforge.transform.partition import PartitionGraph
from mlforge.transform.quantize import CanonicalizeQuantized
from mlforge.transform.simplify import Simplify
from mlforge.transform.to_dense import ToDense
from mlforge.transform.widen_late import WidenLate

Pass: TypeAlias = Callable[[IRModule], IRModule]

PASSES: tuple[Pass, ...] = (
    Decompose(),
    Simplify(),
    RecognizeLayerNorm(),
    ToDense(),
    CanonicalizeQuantized(),  # before constants are folded: it needs the dequantized weights as integers
    FoldConstant(),
    Simplify(),
    ToDense(),
    FoldScale(),
    FoldPad(),
    ConvertLayout(),
    FoldConstant(),
    Simplify(),
    MoveViews(),
    Simplify(),
    WidenLate(),
    FuseOps(),
)


def run(
    module: IRModule,
    params: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    partition: PartitionGraph | None = None,
    after_each: Callable[[str, IRModule], None] | None = None,
) -> IRModule:
    """Return the module with its parameters bound and all passes applied.

    Parameters
    ----------
    module : IRModule
        A model as a frontend made it.
    params : dict of str to ndarray, optional
        Values of parameters of ``main``.
    partition : PartitionGraph, optional
        Which external code generators take what they can before the rest is fused.
    after_each : callable ``(name, module) -> None``, optional
        Called after each pass with the name of its class, to verify or print.

    Returns
    -------
    IRModule
        What `transform.lower` takes: Primitive functions and VIEW operators.
    """
    external: tuple[Pass, ...] = () if partition is None else (partition,)
    steps: tuple[Pass, ...] = (BindParams(params or {}), *PASSES[:-1], *external, PASSES[-1])
    for step in steps:
        module = step(module)
        if after_each is not None:
            after_each(type(step).__name__, module)
    return module
