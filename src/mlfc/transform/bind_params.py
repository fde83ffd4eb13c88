"""Bind weights as constants, so that later passes can compute with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import InputError
from mlfc.relay.ir import Constant, Expr, Function, IRModule, tensor_type
from mlfc.relay.visitor import substitute


@dataclass(frozen=True)
class BindParams:
    """Turn the parameters of ``main`` that have a value into constants named after them.

    Parameters that `params` does not contain stay inputs of the model. An unknown name raises InputError: the values
    belong to another model, or to a graph executor.
    """

    params: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with its parameters bound."""
        main = module.main
        known = {param.name for param in main.params}
        unknown = [name for name in self.params if name not in known]
        if unknown:
            raise InputError(
                f"the model has no parameter '{unknown[0]}'",
                place="params",
                next_step="Pass the params that import_model returned with this module",
            )
        values: dict[Expr, Expr] = {}
        for param in main.params:
            if param.name not in self.params:
                continue
            values[param] = constant = Constant(np.asarray(self.params[param.name]), param.name, param.span)
            if constant.type != (kind := tensor_type(param)):
                raise InputError(
                    f"the value is {constant.type}, the parameter is {kind}",
                    place=f"parameter '{param.name}'",
                    next_step="Pass the params that belong to this module",
                )
        inputs = tuple(param for param in main.params if param not in values)
        body = substitute(main.body, values)
        return module.with_main(Function(inputs, body, main.attrs, main.span))
