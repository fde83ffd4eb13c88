"""The backend of torch.compile: a compiled module returns PyTorch's results."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from torch import nn
from torch.utils import _pytree as pytree

from mlfc.errors import OptionError, UnsupportedError
from mlfc.torch import FallbackWarning, backend
from tests.torch_models import Cnn, Vit, one_registry, seeded

# float32; outputs are of order 1
TOLERANCE = 2e-6


@pytest.fixture(scope="module", autouse=True)
def _one_registry() -> Generator[None, None, None]:
    with one_registry():
        yield


class Mlp(nn.Module):
    """A network that returns its result, a size, None, and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int, None, torch.Tensor]:
        return self.layers(x), 2 * x.shape[0], None, x


class Compiled:
    """A compiled module, and the graphs that TorchDynamo captured from it."""

    def __init__(self, module: Any, **options: Any) -> None:
        self.graphs: list[Any] = []
        torch.compiler.reset()

        def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            self.graphs.append(backend(graph, inputs, options={"target": "llvm", **options}))
            return self.graphs[-1]

        self.run = torch.compile(module, backend=keep)

    def __call__(self, *inputs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.run(*inputs)

    @property
    def versions(self) -> int:
        return sum(len(graph.models) for graph in self.graphs)


@pytest.mark.parametrize(("make", "shape"), [(Mlp, (6,)), (Cnn, (3, 16, 16)), (Vit, (3, 16, 16))])
def test_a_module_returns_what_pytorch_returns_for_two_batches(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    module = seeded(make).eval()
    compiled = Compiled(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for batch in (2, 3, 3):
            x = torch.randn((batch, *shape), generator=generator)
            found, wanted = compiled(x), module(x)
            if make is Mlp:
                assert found[1:3] == wanted[1:3]
                assert found[3] is x
                found, wanted = found[0], wanted[0]
            torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert compiled.versions == 2, "one for each shape"


def test_attention_layers_of_pytorch_are_compiled() -> None:
    attention = seeded(lambda: nn.MultiheadAttention(16, 4, batch_first=True)).eval()
    layer = seeded(lambda: nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)).eval()

    def both(x: torch.Tensor) -> Any:
        return attention(x, x, x), layer(x)

    x = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ((mixed, weights), hidden), ((wanted, scores), after) = Compiled(both)(x), both(x)
    for ours, theirs in ((mixed, wanted), (weights, scores), (hidden, after)):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_are_read_and_returned_in_place(dtype: torch.dtype) -> None:
    compiled = Compiled(lambda x, n: (x + 1, n.sum()))
    x, n = torch.arange(6, dtype=dtype).reshape(2, 3), torch.arange(4)
    found = compiled(x, n)
    assert torch.equal(found[0], x + 1)
    assert torch.equal(found[1], n.sum())
    x = torch.arange(12, dtype=dtype).reshape(2, 6)[:, ::2]
    assert torch.equal(compiled(x, n)[0], x + 1), "memory with gaps is read, too"


def test_weights_that_change_are_compiled_again() -> None:
    module = seeded(lambda: nn.Linear(4, 2))
    compiled = Compiled(module)
    x = torch.ones(1, 4)
    with torch.no_grad():
        before = compiled(x)
        module.weight.mul_(2)
        torch.testing.assert_close(compiled(x), module(x), rtol=TOLERANCE, atol=TOLERANCE)
        assert not torch.equal(compiled(x), before)
        module.weight.data = -module.weight
        torch.testing.assert_close(compiled(x), module(x), rtol=TOLERANCE, atol=TOLERANCE)
        module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
        assert torch.equal(compiled(x), torch.zeros(1, 2))
        module.bias = nn.Parameter(torch.ones(2))
        assert torch.equal(compiled(x), torch.ones(1, 2))


def svd(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return torch.linalg.svd(y)[1]


def writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "operator": (svd, r"test_torch_compile.py, line \d+: .*'aten._linalg_svd.default' is not in ONNX"),
    "random": (nn.Dropout(), "operator 'aten.dropout.default' draws random numbers"),
    "writes": (writes, "writes to its input"),
    "view": (lambda x: (x.t(), x + 1), "operator 't': a result shares the memory of an input"),
    "complex": (torch.fft.fft, r"expected tensors of the types \[\('complex64', \(3, 3\)\)\], got"),
    "training": (nn.Linear(3, 3), "requires gradients, but mlfc only compiles inference"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compiled_runs_in_pytorch_and_says_why(case: str) -> None:
    function, reason = REFUSED[case]
    x = torch.rand((3, 3), generator=torch.Generator().manual_seed(3))
    compiled = Compiled(function)
    torch.manual_seed(4)
    with pytest.warns(FallbackWarning, match=reason) as seen:
        found = compiled.run(x.clone())
    assert len(seen) == 1
    torch.manual_seed(4)
    torch.testing.assert_close(found, function(x.clone()))
    assert any(item.requires_grad for item in pytree.tree_leaves(found)) == (case == "training")
    if case == "operator":
        with pytest.raises(UnsupportedError, match=reason):
            Compiled(function, fallback=False).run(x)


def test_graphs_of_views_alone_run_in_pytorch_without_a_word() -> None:
    x = torch.ones(2, 3)
    found = Compiled(lambda x: (x.t(), x, x.shape[0]))(x)
    assert found[0].data_ptr() == x.data_ptr()
    assert found[1] is x


def test_options_are_checked() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    for given, reason in (
        ({"mode": "max-autotune"}, "has no mode 'max-autotune'"),
        ({"options": {"shapes": {}}}, "does not support the option 'shapes'"),
    ):
        with pytest.raises(OptionError, match=reason):
            backend(graph, [torch.ones(1)], **given)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown option 'nonsense' of compile"):
        backend(graph, [torch.ones(1)], options={"nonsense": 1})(torch.ones(1))


def test_torch_finds_the_backend_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["mlfc"].partition(":")
    assert getattr(import_module(module), name) is backend
    assert "mlfc" in torch.compiler.list_backends()
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "torch-compile.md").read_text()
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for code in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            exec(code, found)
        with torch.no_grad():
            x = torch.rand(2, 64)
            torch.testing.assert_close(found["fast"](x), found["net"](x), rtol=TOLERANCE, atol=TOLERANCE)
