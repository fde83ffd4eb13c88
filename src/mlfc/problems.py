"""Every problem of a model at once, without writing any code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy.typing as npt

from mlfc.compiler import build
from mlfc.errors import MlfcError, ProblemsError
from mlfc.frontend import import_model


def check(
    model: str | Path | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
    states: Mapping[str, str] | None = None,
    state_init: Mapping[str, npt.ArrayLike] | str | None = None,
    numerics: str = "litert",
    name: str | None = None,
    byoc: Sequence[str] = (),
    target: str = "c",
    limit_factor: float = 1.0,
) -> list[MlfcError]:
    """Return every problem of a model at once; an empty list means that it can be compiled for the target.

    Everything happens that compiling it takes, but for the code's being printed.

    Parameters
    ----------
    model, shapes, values, states, state_init, numerics, name, byoc, limit_factor
        As for `import_model`.
    target : str
        As for `build`.
    """
    try:
        mod, params = import_model(
            model,
            shapes=shapes,
            values=values,
            states=states,
            state_init=state_init,
            numerics=numerics,
            name=name,
            byoc=byoc,
            target=target,
            limit_factor=limit_factor,
        )
        build(mod, target, params, limit_factor=limit_factor, dry_run=True)
    except ProblemsError as error:
        return list(error.problems)
    except MlfcError as error:
        return [error]
    return []
