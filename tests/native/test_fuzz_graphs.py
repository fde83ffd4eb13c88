"""A short seeded run of the random graphs that ``make fuzz`` compares with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from fuzz import graphs
from tests.conftest import need


def test_graphs_on_edge_values_agree_bit_for_bit() -> None:
    need("clang", "clang")
    assert not graphs.fuzz(0, 100, sanitized=True, batch=6)


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lambda *_, **__: np.zeros((), bool)  # noqa: E731
    monkeypatch.setattr(graphs, "_same", wrong)
    assert len(graphs.fuzz(0, 100, sanitized=False, batch=1)) == 1
