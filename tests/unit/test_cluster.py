"""Jobs on a cluster of two workers, one of which is killed: no job is lost, and none is done twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlfc
from mlfc.cluster import BUILD, MEASURE, LocalWorkers, opened_workers
from mlfc.cluster import workers as workers_module
from mlfc.errors import OptionError, RunError
from mlfc.tuning.tune import tune
from tests.onnx_models import small_network

distributed = pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parents[2]
JOBS = 12


def recorded(folder: str, number: int) -> int:
    """Record a job; the fifth one kills its worker the first time, and the seventh fails."""
    place = Path(folder)
    with (place / "begun").open("a") as file:
        file.write(f"{number}\n")
    if number == 4 and not (place / "killed").exists():
        (place / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with (place / "done").open("a") as file:
        file.write(f"{number}\n")
    if number == 6:
        raise RunError("this one fails")
    return number * number


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(resources={BUILD: 1, MEASURE: 1}, host="127.0.0.1", **options) as cluster:
        yield cluster.scheduler_address


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_worker_loses_nothing_and_nothing_is_done_twice(address: str, tmp_path: Path) -> None:
    with opened_workers(address, BUILD) as workers:
        outcomes = list(workers.run(BUILD, recorded, [(str(tmp_path), number) for number in range(JOBS)]))
    assert sorted(outcome.index for outcome in outcomes) == list(range(JOBS))
    assert {outcome.index: outcome.value for outcome in outcomes if outcome.error is None} == {
        number: number * number for number in range(JOBS) if number != 6
    }
    assert [str(outcome.error) for outcome in outcomes if outcome.error] == ["this one fails"]
    assert sorted(map(int, (tmp_path / "done").read_text().split())) == list(range(JOBS))
    begun = list(map(int, (tmp_path / "begun").read_text().split()))
    assert sorted(begun) == sorted([*range(JOBS), 4]), "only what the killed worker was doing began again"


def test_local_jobs_end_as_those_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "killed").touch()
    found = {item.index: item for item in LocalWorkers(2).run(BUILD, recorded, [(str(tmp_path), n) for n in (3, 6)])}
    assert (found[0].value, str(found[1].error)) == (9, "this one fails")


def test_a_cluster_compiles_and_tunes(address: str, tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.toml"
    (tmp_path / "net.onnx").write_bytes(small_network().SerializeToString())
    matrix.write_text('[models]\nnet = "net.onnx"\n')
    made = mlfc.compile_matrix(matrix, tmp_path / "all", scheduler=address)
    assert not made.problems
    assert mlfc.validate(tmp_path / "all" / "net.tar") == []
    log = tmp_path / "tune.jsonl"
    found = tune(tmp_path / "net.onnx", output=log, scheduler=address, trials=1)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert found.is_complete
    for kind in ("trial", "choice"):  # candidates are measured again depending on their speed
        assert len({str(line["kernel"]) for line in lines if line["kind"] == kind}) == len(found.kernels)
    assert len(lines) == 2 * len(found.kernels)


def test_clusters_that_cannot_do_it_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="no worker has the resource GPU"), opened_workers(address, BUILD, "GPU"):
        pass
    monkeypatch.setattr(workers_module, "__version__", "0.0.1")
    with pytest.raises(OptionError, match=r"versions of mlfc differ: 0\.0\.1 here"), opened_workers(address, BUILD):
        pass
    monkeypatch.setattr(workers_module, "_SECONDS", 0.2)
    with pytest.raises(OptionError, match="no scheduler answers"), opened_workers("tcp://127.0.0.1:1", BUILD):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match="distributed is not installed"), opened_workers(address, BUILD):
        pass
