"""Real channels-first architectures: the layout pass leaves no transpose between layers, and few others."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from mlfc.frontend.onnx import import_onnx
from mlfc.transform import pipeline
from tests.relay_run import operators

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.fixture(scope="session")
def zoo(shared: Path) -> ModuleType:
    """Return the script that fills the architectures with random weights."""
    spec = importlib.util.spec_from_file_location("onnx_zoo", shared / "tools/onnx_zoo.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("squeezenet", {"transpose": 1, "nn.conv2d+nn.bias_add+nn.relu": 26, "nn.max_pool2d": 3, "concatenate": 8}),
        # the other 16 are the channel shuffles of the architecture itself
        ("shufflenet", {"transpose": 1 + 16, "nn.conv2d+nn.bias_add+add+nn.relu": 13, "nn.conv2d+nn.bias_add": 19}),
        # one batch norm has a factor so small that its product with the next one would be subnormal
        ("densenet121", {"transpose": 1, "nn.conv2d+nn.bias_add+nn.relu": 59, "multiply+add+nn.relu": 57,
                         "multiply+add+multiply+add+nn.relu": 1}),
        ("inception_v1", {"transpose": 1, "nn.conv2d+nn.bias_add+nn.relu": 57, "nn.dense+nn.bias_add": 1}),
    ],
)  # fmt: skip
def test_only_the_input_is_transposed(zoo: ModuleType, name: str, expected: dict[str, int]) -> None:
    model = zoo.randomized(onnx.load(LIGHT / f"light_{name}.onnx"))
    module, params = import_onnx(model.SerializeToString(), name)
    counts = Counter(operators(pipeline.run(module, params)))
    assert {key: counts[key] for key in expected} == expected
    assert sum(count for key, count in counts.items() if "transpose" in key) == expected["transpose"]
    assert not {"nn.batch_norm", "nn.dropout", "nn.pad"} & set("+".join(counts).split("+"))
