"""The size of an installation without extras."""

from __future__ import annotations

from benchmarks.install_size import LIMIT, packages, size_of


def test_installation_without_extras_stays_small() -> None:
    sizes = {name: size_of(name) or 0 for name in packages()}
    assert {"mlfc", "numpy", "llvmlite", "onnx", "rich"} <= sizes.keys()
    assert "ziglang" not in sizes
    assert 50_000_000 < sum(sizes.values()) < LIMIT, sizes


def test_extra_is_counted_with_what_it_requires() -> None:
    assert packages("cross") == {"ziglang"}
    assert "cuda-pathfinder" in packages("cuda")
