"""TVM's ``tvm.transform`` and ``tvm.relay.transform``: the compiler chooses its passes, so these change nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from mlfc.relay.ir import IRModule
from mlfc.support.text import Displayed

# settings that steer how TVM plans memory and prints code, or that mlfc always follows
_FULFILLED = frozenset(
    (
        "relay.FuseOps.max_depth", "relay.backend.use_auto_scheduler", "relay.backend.use_meta_schedule",
        "tir.disable_storage_rewrite", "tir.disable_vectorize", "tir.usmp.algorithm", "tir.usmp.enable",
    )
)  # fmt: skip


class PassContext(Displayed):
    """A context for `build`; one warning names all arguments, and keys of `config`, that have no effect."""

    _entered: ClassVar[list[PassContext]] = []

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.opt_level, self.config = opt_level, dict(config or {})
        given = {"required_pass": required_pass, "disabled_pass": disabled_pass, "instruments": instruments}
        ignored = [name for name, value in given.items() if value] + sorted(self.config.keys() - _FULFILLED)
        if ignored:
            warnings.warn(f"PassContext: no effect in mlfc: {', '.join(ignored)}", stacklevel=2)

    def _facts(self) -> Mapping[str, object]:
        return {"opt_level": self.opt_level, "config": self.config}

    def __enter__(self) -> PassContext:
        self._entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop()

    @classmethod
    def current(cls) -> PassContext:
        """Return the innermost context, or the default one."""
        return cls._entered[-1] if cls._entered else cls()


def sequence(*_: Any, **__: Any) -> Callable[[IRModule], IRModule]:
    """Return a pass, or a sequence of passes, that returns its module."""
    return lambda mod: mod


Sequential = InferType = FoldConstant = SimplifyInference = SimplifyExpr = FoldScaleAxis = CanonicalizeOps = sequence
DeadCodeElimination = EliminateCommonSubexpr = RemoveUnusedFunctions = DynamicToStatic = sequence
FuseOps = AlterOpLayout = ConvertLayout = FoldExplicitPadding = sequence
