"""The graph passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from mlfc.relay.ir import IRModule
from mlfc.transform.bind_params import BindParams
from mlfc.transform.convert_layout import ConvertLayout
from mlfc.transform.decompose import Decompose
from mlfc.transform.fold_constant import FoldConstant
from mlfc.transform.fold_pad import FoldPad
from mlfc.transform.fold_scale import FoldScale
from mlfc.transform.fuse import FuseOps
from mlfc.transform.layer_norm import RecognizeLayerNorm
from mlfc.transform.move_views import MoveViews
from mlfc.transform.partition import PartitionGraph
from mlfc.transform.quantize import CanonicalizeQuantized
from mlfc.transform.simplify import Simplify
from mlfc.transform.to_dense import ToDense
from mlfc.transform.widen_late import WidenLate

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
