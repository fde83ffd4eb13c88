"""Coverage of PyTorch's own module tests: ``python -m benchmarks.pytorch [--torch-compile]``.

The modules and their arguments are those of PyTorch's test suite, which the package contains (`torch.testing`); it
requires ``pip install expecttest``.
"""

from __future__ import annotations

import argparse
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mlfc
from mlfc.errors import MlfcError
from mlfc.torch import backend

# float32 sums in another order; PyTorch's own tolerances are similar
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
AGREES, REFUSED, DIFFERS = "agree", "refused", "differ"
_OWN = re.compile(r"'[^']*'|#?\d+")


class Called(torch.nn.Module):
    """A module that is called with tensors in order; other arguments are bound."""

    def __init__(self, module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.named = named

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the module with the tensors as its tensor arguments."""
        given = iter(tensors)

        def filled(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return next(given)
            return type(value)(map(filled, value)) if isinstance(value, (tuple, list)) else value

        arguments = [filled(value) for value in self.arguments]
        return self.module(*arguments, **{name: filled(value) for name, value in self.named.items()})


Run: TypeAlias = Callable[[Called, tuple[torch.Tensor, ...]], list[Any]]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def cases_of(info: Any, most: int) -> Iterator[tuple[Called, tuple[torch.Tensor, ...]]]:
    """Yield at most `most` modules in inference mode, with their tensors."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    for case in inputs[:most]:
        made, call = case.constructor_input, case.forward_input
        module = info.module_cls(*made.args, **made.kwargs).eval()
        called = Called(module, tuple(call.args), call.kwargs).eval()
        yield called, tuple(tensors_in([*call.args, *call.kwargs.values()]))


def as_a_whole(module: Called, tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    """Return the results of a module compiled by mlfc.compile."""
    model = mlfc.compile(module, "llvm", example_inputs=tensors)
    return list(model.run(*(tensor.numpy() for tensor in tensors)).values())


def by_torch(module: Called, tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    """Return the results of a module compiled by the backend of torch.compile."""
    torch.compiler.reset()
    compiled = torch.compile(module, backend=backend, options={"target": "llvm", "fallback": False})
    with torch.no_grad():
        return [tensor.numpy() for tensor in tensors_in(compiled(*tensors))]


def outcome_of(run: Run, module: Called, tensors: tuple[torch.Tensor, ...]) -> tuple[str, str] | None:
    """Return the outcome of a case, and the reason; None if PyTorch itself does not run it on float32."""
    try:
        with torch.no_grad():
            expected = [tensor.numpy() for tensor in tensors_in(module(*tensors))]
    except RuntimeError:
        return None
    try:
        found = run(module, tensors)
    except MlfcError as error:
        return REFUSED, _OWN.sub("_", str(error))[:100]
    if len(found) != len(expected):
        return DIFFERS, f"{len(found)} outputs, not {len(expected)}"
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, **TOLERANCE, equal_nan=True):
            return DIFFERS, f"of shapes {ours.shape} and {theirs.shape}"
    return AGREES, ""


def main() -> None:
    """Print the counts, and the cases that are rejected or differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="maximum number of cases per module; default: 100")
    parser.add_argument("--torch-compile", action="store_true", help="compile by torch.compile(backend='mlfc')")
    options = parser.parse_args()
    most, run = options.cases, by_torch if options.torch_compile else as_a_whole
    from torch.testing._internal.common_modules import module_db

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    table = Table("module", "outcome", "cases", "why", title="not all of whose cases agree")
    ran = whole = 0
    for info in track(module_db, "modules"):
        outcomes = Counter(filter(None, (outcome_of(run, *case) for case in cases_of(info, most))))
        for (outcome, why), count in outcomes.items():
            counts[outcome] += count
            if outcome != AGREES:
                table.add_row(info.name, outcome, str(count), why)
        ran += bool(outcomes)
        whole += {outcome for outcome, _ in outcomes} == {AGREES}
    console = Console(width=160)
    console.print(table)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in (AGREES, REFUSED, DIFFERS))
    console.print(
        f"PyTorch {torch.__version__}: {whole} of {ran} modules agree in all cases; of {counts.total()} cases {told}"
    )


if __name__ == "__main__":
    main()
