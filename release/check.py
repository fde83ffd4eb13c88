"""Build the packages of a release and check them as installed: ``python release/check.py [FOLDER]``.

Each is installed in a separate environment and runs the README's first commands there. Requires hatchling and pip.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "release" / "runtime"
_FOREIGN = ("onnx", "tflite", "llvmlite", "lark", "typer", "rich", "jinja2", "jsonschema", "fastjsonschema")
_RUN = """
import sys
import numpy as np
import mlfc

model = mlfc.load(sys.argv[1])
image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
sys.stdout.write(model.run(image)["probabilities"].tobytes().hex())
assert mlfc.load_module(sys.argv[1]).type_key
"""
_RUNTIME_ALONE = f"""
try:
    mlfc.compile
except mlfc.errors.InstallationError as error:
    assert "pip install ." in str(error)
else:
    raise AssertionError("there is a compiler")
assert not {{name.partition(".")[0] for name in sys.modules}} & {{*{_FOREIGN!r}}}
"""


class FaultError(Exception):
    """A fault of a package."""


def build(folder: Path, project: Path) -> tuple[Path, Path]:
    """Build a project's source distribution, and its wheel from that; raise FaultError if the checkout's differs."""
    work = folder / "work"
    call([sys.executable, "-m", "hatchling", "build", "-d", work], cwd=project)
    sdist, direct = next(work.glob("*.tar.gz")), next(work.glob("*.whl"))
    with tarfile.open(sdist) as tar:
        tar.extractall(work, filter="data")
    call([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=work / sdist.name[:-7])
    wheel = folder / direct.name
    if digest(wheel) != digest(direct):
        raise FaultError(f"{wheel.name}: differs if it is built from the source distribution")
    kept = folder / sdist.name
    shutil.move(sdist, kept)
    shutil.rmtree(work)
    return kept, wheel


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_metadata(wheel: Path) -> None:
    """Raise FaultError if the metadata that an index shows is incomplete, or its page has relative links."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    wanted = {
        "Summary",
        "License-Expression",
        "License-File",
        "Requires-Python",
        "Classifier",
        "Description-Content-Type",
    }
    if missing := sorted(wanted - {*metadata.keys()}):
        raise FaultError(f"{wheel.name}: the metadata does not contain {', '.join(missing)}")
    for name in ("mlfc/py.typed", "licenses/LICENSE"):
        if not any(item.endswith(name) for item in names):
            raise FaultError(f"{wheel.name}: {name} is missing")
    if link := re.search(r"\]\((?!https?:)[^)]*\)", page(metadata)):
        raise FaultError(f"{wheel.name}: its page has a link to a file: {link[0]}")


def page(metadata: Message) -> str:
    """Return the text that an index shows."""
    text = metadata.get_payload()
    assert isinstance(text, str)
    return text


class Environment:
    """An empty environment in which a package is installed."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        call([*pip, "install", "--quiet", "--no-compile", wheel])
        call([*pip, "check"])
        self.folder = folder

    def run(self, *command: str | Path, cwd: Path) -> str:
        """Run a program of the environment, isolated from this checkout."""
        path = os.pathsep.join((str(self.bin), os.environ.get("PATH", os.defpath)))
        return call([self.bin / str(command[0]), *command[1:]], cwd=cwd, path=path)


def check_mlfc(environment: Environment, work: Path) -> None:
    """Run the README's first commands in `work`, and leave a library of their model there."""
    for line in first_commands():
        environment.run(*line.split(), cwd=work)
    environment.run("mlfc", "compile", "digits.onnx", "-o", "model.so", cwd=work)
    if not (environment.folder / "share" / "man" / "man1" / "mlfc-compile.1").is_file():
        raise FaultError("mlfc: no manual pages are installed")
    if not (environment.folder / "share" / "cmake" / "mlfc" / "mlfcConfig.cmake").is_file():
        raise FaultError("mlfc: no package of CMake is installed")


def first_commands() -> list[str]:
    """Return the first commands of README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (mlfc [^#\n]+?) +#", text.partition("## ")[0], re.MULTILINE)
    if len(commands) < 2:
        raise FaultError("README.md must begin with at least two mlfc commands")
    return commands


def call(command: Sequence[str | Path], cwd: Path | None = None, path: str | None = None) -> str:
    """Run a program and return its output; raise FaultError with the output if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MLFC"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment | ({"PATH": path} if path else {}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FaultError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def check(folder: Path) -> list[Path]:
    """Build and check both packages; return the files of the release."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mlfc-release-") as name:
        work = Path(name)
        files = []
        results = []
        for project, package in ((ROOT, "mlfc"), (RUNTIME, "mlfc-runtime")):
            made = build(work / package, project)
            check_metadata(made[1])
            environment = Environment(work / f"{package}-environment", made[1])
            if package == "mlfc":
                check_mlfc(environment, work)
            script = _RUN if package == "mlfc" else _RUN + _RUNTIME_ALONE
            results.append(environment.run("python", "-c", script, "model.so", cwd=work))
            files += [Path(shutil.copy(path, folder)) for path in made]
        if results[0] != results[1]:
            raise FaultError("mlfc-runtime: the results of a library differ from those in mlfc")
    return files


def main() -> None:
    """Build, check and list the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="dist", type=Path, help="output folder; default: dist")
    try:
        files = check(parser.parse_args().folder)
    except FaultError as fault:
        sys.exit(f"error: {fault}")
    for path in files:
        sys.stdout.write(f"{digest(path)}  {path}\n")


if __name__ == "__main__":
    main()
