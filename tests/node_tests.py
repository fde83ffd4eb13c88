"""ONNX's own node tests, computed once per session."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import session_cache

# shapes of pool inputs, and the size to which each side is reduced
SMALL = {(1, 3, 32, 32): 14, (1, 3, 32, 32, 32): 8}


@contextmanager
def quick_collection() -> Iterator[None]:
    """Collect node tests in a fifth of the time.

    Pool images of 32 x 32 and volumes of 32 x 32 x 32 are made smaller, because ONNX's reference computes window by
    window; the kinds of windows stay the same. The source code of each test, which ONNX's documentation shows, is not
    read.
    """
    draw = np.random.randn

    def randn(*shape: int) -> Any:
        drawn = draw(*shape)
        return drawn[(..., *[slice(SMALL[shape])] * len(shape[2:]))] if shape in SMALL else drawn

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as monkeypatch:
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import base

        monkeypatch.setattr(base, "process_snippet", lambda *_: ("", ""))
        monkeypatch.setattr(np.random, "randn", randn)
        yield


def _collected() -> dict[str, bytes]:
    with quick_collection():
        from onnx.backend.test.case.node import collect_testcases

        return {"tests": pickle.dumps(list(collect_testcases(None)))}


@cache
def node_tests() -> tuple[Any, ...]:
    """Return all of ONNX's node tests.

    ONNX computes all of its tests before it lists any, so one worker does it for all.
    """
    key = session_cache.key_of(["node tests", onnx.__version__, Path(__file__).read_bytes()])
    return tuple(pickle.loads(session_cache.built(key, _collected)["tests"]))
