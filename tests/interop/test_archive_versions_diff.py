"""Comparisons of archives of every version with those of every other."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import mlfc
from tests.interop.archive_versions import VERSIONS, older_archive, operator_archive, proposed_archive


@pytest.mark.parametrize("name", ["kws_aot_c", "kws_graph_c"])
def test_only_a_lost_header_breaks_callers_of_the_same_module(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / "fixtures/tvm-0.14" / f"{name}.tar.xz"
    archives = {version: older_archive(path, version, tmp_path / f"{version}.tar") for version in VERSIONS}
    archives[0] = proposed_archive(path, tmp_path / "proposed.tar")
    for a, b in product(archives, repeat=2):
        found = mlfc.diff(archives[a], archives[b])
        assert found["equal"] == (a == b)
        losses = name == "kws_aot_c" and has_header(archives[a]) and not has_header(archives[b])
        assert found["breaks"] == losses, (a, b)
        assert found["facts"].get("version", [a, b]) in ([a, b], [a or 1, b or 1])
        changes = found["modules"]["kws"]
        # the target is the same one, in the form of each version
        assert "target" not in changes["facts"]
        assert not any(changes["weights"].values())
        assert not changes["operators"]["removed"] + changes["operators"]["added"] + changes["operators"]["changed"]


def has_header(archive: Path) -> bool:
    return any(file["path"].endswith(".h") for file in mlfc.inspect(archive)["files"] if "host" in file["path"])


def test_archives_of_operator_style_compare_by_their_functions(shared: Path, tmp_path: Path) -> None:
    archives = [operator_archive(version, tmp_path / f"{version}.tar") for version in (4, 5, 6, 7)]
    for a, b in product(archives, repeat=2):
        found = mlfc.diff(a, b)
        assert not found["breaks"]
        assert found["equal"] == (a == b)
    assert mlfc.diff(shared / "fixtures/tvm-0.14/kws_aot_c.tar.xz", archives[0])["modules_removed"] == ["kws"]
