"""Read untrusted files, each in a child process, and measure the cost.

As a program it is a server with one line of JSON per request: a process that has imported everything forks for each
file, so that memory and time are those of reading that file alone.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.counting import counted_calls

ROOT = Path(__file__).resolve().parents[2]
# limit of data memory beyond the process's own: well above that of a valid reading, and harmless for the machine
_GUARD = 1 << 30
_SECONDS = 30
READY = "ready\n"
_DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"


@dataclass(frozen=True)
class Reading:
    """The result of reading one file.

    Attributes
    ----------
    error : str or None
        The class of the exception, if any.
    code : str or None
        The code, if it is an error of mlfc.
    text : str
        Its message, or the faults listed by `validate`.
    calls : int
        Number of function calls, a measure of time that does not depend on the machine's load.
    megabytes : float
        Peak memory beyond the process's own, of this reading and earlier readings of the same file.
    """

    error: str | None
    code: str | None
    text: str
    calls: int
    megabytes: float


class Reader:
    """A process that reads files.

    Parameters
    ----------
    folder : path
        Its working folder, home, temporary files and caches.
    good : path
        A valid archive, read once as a warm-up.
    """

    def __init__(self, folder: Path, good: Path) -> None:
        environment = {
            **os.environ, "TMPDIR": str(folder), "HOME": str(folder), "XDG_CACHE_HOME": str(folder), "CC": "false",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.reading"],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._send(str(good))
        # wait for the warm-up, so that files it creates, such as caches, do not count as those of a reading
        assert self._process.stdout
        assert self._process.stdout.readline() == READY

    def read(self, action: str, path: Path, **options: float) -> Reading:
        """Run one action of `ACTIONS`, `BLOB_ACTIONS` or `MODEL_ACTIONS` on a file; options are its arguments."""
        return self.read_all((action,), path, **options)[action]

    def read_all(self, actions: Iterable[str], path: Path, **options: float) -> dict[str, Reading]:
        """Run several actions in order."""
        assert self._process.stdout
        readings = {}
        self._send(json.dumps([[*actions], str(path), options]))
        for action in actions:
            line = self._process.stdout.readline()
            assert line, "the reading process ended"
            readings[action] = Reading(**json.loads(line))
        return readings

    def _send(self, line: str) -> None:
        assert self._process.stdin
        print(line, file=self._process.stdin, flush=True)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _inspect(path: Path) -> str:
    from mlfc import archive

    return str(archive.inspect(path))


def _validate(path: Path) -> str:
    from mlfc import archive

    return "\n".join(archive.validate(path))


def _load(path: Path) -> str:
    from mlfc import archive

    # CC is a program that fails, so loading stops if it reaches compilation
    archive.load(path)
    return "loaded"


def _load_module(path: Path) -> str:
    from mlfc import archive

    return archive.load_module(path).type_key


def _rebuild(path: Path) -> str:
    from mlfc.archive.write.rebuild import rebuild

    return str(len(rebuild(path)))


def _diff(path: Path) -> str:
    from mlfc import archive

    return str(archive.diff(path, path))


def _migrate(path: Path) -> str:
    from mlfc.archive.write.older import migrate

    target = Path("migrated.tar")
    try:
        migrate(path, target)
    finally:
        target.unlink(missing_ok=True)
    return "migrated"


ACTIONS: dict[str, Callable[[Path], str]] = {
    "inspect": _inspect,
    "validate": _validate,
    "load": _load,
    "load_module": _load_module,
    "rebuild": _rebuild,
    "diff": _diff,
    "migrate": _migrate,
}


def _read_blob(abi: str) -> Callable[[Path], str]:
    def read(path: Path) -> str:
        from mlfc.runtime import Module
        from mlfc.runtime.modules.blob import read_tree

        with path.open("rb") as file:
            # the modules may keep views of it
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return read_tree(memoryview(mapped), Module(), abi, place=path.name).type_key

    return read


BLOB_ACTIONS: dict[str, Callable[[Path], str]] = {abi: _read_blob(abi) for abi in ("classic", "transitional", "ffi")}


def _check(path: Path, limit_factor: float = 1.0) -> str:
    import mlfc

    return "\n".join(f"[{problem.code}] {problem}" for problem in mlfc.check(path, limit_factor=limit_factor))


def _compile(path: Path, limit_factor: float = 1.0) -> str:
    import mlfc
    from mlfc.errors import ProblemsError

    target = Path("compiled.tar")
    try:
        mod, params = mlfc.import_model(path, limit_factor=limit_factor)
        factory = mlfc.build(mod, params=params, limit_factor=limit_factor)
        mlfc.export_model_library_format(factory, target)
    except ProblemsError as error:
        return "\n".join(f"[{problem.code}] {problem}" for problem in error.problems)
    except mlfc.errors.MlfcError as error:
        return f"[{error.code}] {error}"
    finally:
        target.unlink(missing_ok=True)
    return ""


MODEL_ACTIONS: dict[str, Callable[..., str]] = {"check": _check, "compile": _compile}
_ALL_ACTIONS: dict[str, Callable[..., str]] = {**ACTIONS, **BLOB_ACTIONS, **MODEL_ACTIONS}


def _get_ready() -> None:
    """Compile a small model of each format, so that lazy imports do not count as part of a reading."""
    from tests.onnx_models import small_network

    path = Path("ready.onnx")
    for data in (small_network().SerializeToString(), _DIGITS.read_bytes()):
        path.write_bytes(data)
        _compile(path)
        path.unlink()


def _measured(action: str, path: Path, options: dict[str, float], before: int) -> dict[str, Any]:
    soft = _limited()
    error, code, text = None, None, ""
    with counted_calls() as calls:
        try:
            text = _ALL_ACTIONS[action](path, **options)
        except BaseException as caught:  # any exception is a result
            error, code, text = type(caught).__name__, getattr(caught, "code", None), str(caught)
    resource.setrlimit(resource.RLIMIT_DATA, soft)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # a reading fits into the pipe, unless a file has thousands of faults
    return {
        "error": error, "code": code, "text": text[:100_000], "calls": calls.number,
        "megabytes": max(0, peak - before) / 2**20,
    }  # fmt: skip


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _limited() -> tuple[int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    soft = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + _GUARD, soft[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    return soft


def _forked(actions: list[str], path: Path, options: dict[str, float]) -> list[str]:
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        before = _resident_bytes()
        with os.fdopen(target, "w") as pipe:
            for action in actions:
                print(json.dumps(_measured(action, path, options, before)), file=pipe, flush=True)
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    lost = {"error": "died", "code": None, "text": f"status {status}", "calls": 0, "megabytes": 0}
    return [*lines, *[json.dumps(lost)] * (len(actions) - len(lines))]


def main() -> None:
    """Serve readings until the input ends."""
    from tests.hostile import corpus, corpus_metadata  # noqa: F401  (registers its files)

    good, faulty = Path(sys.stdin.readline().strip()), Path("faulty.tar")
    _get_ready()
    corpus.FAULTS["metadata_no_executor"].write(faulty)  # listing its faults imports a slow package
    for path in (good, faulty):
        for action in (*ACTIONS.values(), *BLOB_ACTIONS.values()):
            try:
                with counted_calls():
                    action(path)
            except Exception:
                # the errors do not matter: this only imports everything before memory is measured
                continue
    faulty.unlink()
    # garbage collection in a child would write to each page with an object, which copies the page
    gc.collect()
    gc.freeze()
    sys.stdout.write(READY)
    sys.stdout.flush()
    for line in sys.stdin:
        actions, path, options = json.loads(line)
        sys.stdout.writelines(f"{reading}\n" for reading in _forked(actions, Path(path), options))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
