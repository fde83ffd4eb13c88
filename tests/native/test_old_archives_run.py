"""Code from archives of all versions computes the same as TVM's own build of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import ArchiveError
from tests.interop.archive_versions import VERSIONS, older_archive, proposed_archive

pytestmark = pytest.mark.usefixtures("quick_builds")


def check(archive: Path, shared: Path) -> None:
    expected = np.load(shared / "fixtures/tvm-0.14/kws_io.npz")
    module = mlfc.load(archive)
    for x, y in zip(expected["inputs"], expected["outputs"], strict=True):
        (output,) = module.run({"input_1": x.reshape(module.inputs[0].shape)}).values()
        np.testing.assert_array_equal(output.reshape(y.shape), y)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_graph_executor_runs_archives_of_every_version(shared: Path, tmp_path: Path, version: int) -> None:
    original = shared / "fixtures/tvm-0.14/kws_graph_c.tar.xz"
    old = older_archive(original, version, tmp_path / "old.tar")
    check(old, shared)
    check(mlfc.migrate(old, tmp_path / "new.tar").path, shared)


def test_the_graph_executor_runs_the_proposed_form(shared: Path, tmp_path: Path) -> None:
    old = proposed_archive(shared / "fixtures/tvm-0.14/kws_graph_c.tar.xz", tmp_path / "kws.model-lib")
    check(old, shared)
    check(mlfc.migrate(old, tmp_path / "new.tar").path, shared)


def test_the_c_interface_runs_after_migration(shared: Path, tmp_path: Path) -> None:
    check(mlfc.migrate(shared / "fixtures/tvm-0.14/kws_aot_c.tar.xz", tmp_path / "new.tar").path, shared)


@pytest.mark.parametrize("version", [5, 6])
def test_a_c_interface_of_a_time_without_sizes_says_what_it_lacks(shared: Path, tmp_path: Path, version: int) -> None:
    # before version 7 (TVM 0.11), neither the header nor the Relay text has the sizes and dtypes of outputs
    old = older_archive(shared / "fixtures/tvm-0.14/kws_aot_c.tar.xz", version, tmp_path / "old.tar")
    with pytest.raises(ArchiveError, match="the size of 'Identity'"):
        mlfc.load(old)
