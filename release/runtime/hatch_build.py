"""The files of mlfc in the package ``mlfc-runtime``, from the checkout or the source distribution made from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = (
    "__init__.py",
    "errors.py",
    "py.typed",
    "registry.py",
    "objfile",
    "runtime",
    "support",
    # file type detection for `mlfc.load` and `mlfc.load_module`
    "archive/__init__.py",
    "archive/loading.py",
    "archive/read/__init__.py",
    "archive/read/load.py",
    # sessions with libraries
    "compat/__init__.py",
    "compat/onnxruntime",
)
_HERE = Path(__file__).resolve().parent


def source() -> Path:
    """Return the folder of mlfc's package."""
    own = _HERE / "src" / "mlfc"
    return own if own.is_dir() else _HERE.parents[1] / "src" / "mlfc"


def version() -> str:
    """Return the version of mlfc."""
    found = re.search(r'__version__ = "([^"]+)"', (source() / "support" / "version.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


class RuntimeFiles(BuildHookInterface[Any]):
    """Hook that adds the files."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatch's
        """Add them to a wheel as the package, to a source distribution below ``src``."""
        below = "src/" if self.target_name == "sdist" else ""
        build_data["force_include"] |= {str(source() / name): f"{below}mlfc/{name}" for name in FILES}
