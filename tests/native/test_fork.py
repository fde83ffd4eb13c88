"""Children of a process that forks while other threads run models can run the models, too.

An alarm ends a child that hangs, so its status is not 0; its run time does not matter.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.runtime.libraries import library_context
from mlfc.runtime.libraries.library_module import LibraryModule
from mlfc.support.locks import ForkSafeLock
from tests.conftest import need
from tests.native.crt_build import STRICT, write_tree
from tests.native.extracted import imported

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.usefixtures("quick_builds"),
]
WATCHDOG_S = 120
FORKS = 6
GATE = Path(__file__).parent / "crt" / "check_gate.c"


def status_of_child(work: Callable[[], bool]) -> int:
    """Return the wait status of a forked child; 0 if its work returned True."""
    child = os.fork()
    if child == 0:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WATCHDOG_S)
        try:
            os._exit(0 if work() else 3)
        finally:
            os._exit(4)
    return os.waitpid(child, 0)[1]


@contextmanager
def busy(work: Callable[[], Any]) -> Iterator[None]:
    """Run work repeatedly in another thread."""
    ends, began = threading.Event(), threading.Event()

    def repeat() -> None:
        while not ends.is_set():
            work()
            began.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Hold a lock in another thread."""
    ends, began = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            began.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    began.wait()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.fixture(scope="module")
def words(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("words")
    return {
        executor: imported(models / "kws_ref_model.tflite", "words", executor=executor).export_library(
            folder / f"{executor}.so", abi=("classic",)
        )
        for executor in ("aot", "graph")
    }


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_children_run_the_model_that_another_thread_runs(words: dict[str, Path], executor: str) -> None:
    model = mlfc.load(words[executor])
    data = np.random.default_rng(1).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)
    (expected,) = (array.tolist() for array in model.run(data).values())

    def works() -> bool:
        for fresh in (model, mlfc.load(words[executor])):
            if [array.tolist() for array in fresh.run(data).values()] != [expected]:
                return False
        return True

    with busy(lambda: model.run(data)):
        assert [status_of_child(works) for _ in range(FORKS)] == [0] * FORKS
    assert works()


def test_children_call_functions_that_wait_for_one_another(words: dict[str, Path]) -> None:
    """Call packed functions, whose gate is in the library; no Python lock is held."""
    run = LibraryModule(words["aot"])["words"]
    data, out = np.zeros((1, 49, 10, 1), np.int8), np.zeros((1, 12), np.int8)
    run(data, out)
    expected = out.tolist()

    def works() -> bool:
        found = np.zeros((1, 12), np.int8)
        run(data, found)
        return bool(found.tolist() == expected)

    with busy(lambda: run(data, out)):
        assert [status_of_child(works) for _ in range(FORKS)] == [0] * FORKS


def test_every_lock_is_free_in_a_child(words: dict[str, Path]) -> None:
    models = [mlfc.load(path) for path in words.values()]
    data = np.zeros((1, 49, 10, 1), np.int8)
    expected = [only.tolist() for model in models for only in model.run(data).values()]
    names = mlfc.runtime.ffi.library_names  # type: ignore[attr-defined]  # a module of the package
    aot = mlfc.runtime.executors.aot_module  # type: ignore[attr-defined]
    locks = [*(model._lock for model in models), names._guard, aot._locks_guard, library_context._lock]
    assert all(isinstance(lock, ForkSafeLock) for lock in locks)

    def works() -> bool:
        fresh = [*models, *(mlfc.load(path) for path in words.values())]
        return [only.tolist() for model in fresh for only in model.run(data).values()] == 2 * expected

    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(held_elsewhere(lock))
        assert status_of_child(works) == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_lock_stays_with_the_thread_that_forks(reentrant: bool) -> None:
    lock = ForkSafeLock(reentrant=reentrant)

    def still_held() -> bool:
        taken: list[bool] = []
        thread = threading.Thread(target=lambda: taken.append(lock._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return taken == [False]

    def works() -> bool:
        with lock:
            return True

    with lock:
        if reentrant:
            with lock:
                assert status_of_child(still_held) == 0
        assert status_of_child(still_held) == 0
        assert still_held()
    assert status_of_child(works) == 0
    with held_elsewhere(lock):
        assert status_of_child(works) == 0


def test_objects_in_memory_run_in_a_child(models: Path) -> None:
    """Run code in a child that LLVM's linker links on its first call."""
    model = imported(models / "hello_world_int8.tflite", "hello", target="llvm").runtime
    other = imported(models / "hello_world_int8.tflite", "other", target="llvm")
    data = np.full((1, 1), 7, np.int8)
    expected = [array.tolist() for array in model.run(data).values()]

    def works() -> bool:
        return [array.tolist() for array in other.runtime.run(data).values()] == expected

    assert status_of_child(works) == 0
    with busy(lambda: model.run(data)):
        assert [status_of_child(works) for _ in range(FORKS)] == [0] * FORKS


def test_a_child_leaves_its_parents_files() -> None:
    from mlfc.support.plain_file import private_folder

    folder = private_folder()

    def leaves() -> bool:
        import atexit

        own = private_folder()
        atexit._run_exitfuncs()
        return own != folder and not own.exists()

    assert status_of_child(leaves) == 0
    assert folder.is_dir()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_gate_that_another_thread_held_at_a_fork_opens(compiler: str, tmp_path: Path) -> None:
    tree = write_tree(tmp_path) / "runtime"
    program = tmp_path / "check_gate"
    subprocess.run(
        [need(compiler, compiler), *STRICT, "-pthread", f"-I{tree}/include", f"-I{tree}/library", str(GATE),
         f"{tree}/library/gate.c", "-o", str(program)],
        check=True,
    )  # fmt: skip
    assert subprocess.run([program], check=False).returncode == 0
