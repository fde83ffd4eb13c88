"""Where things lie in a Model Library Format archive of version 7."""

from __future__ import annotations

import re
from typing import Final

VERSION: Final = 7
METADATA: Final = "metadata.json"
SOURCES: Final = "codegen/host/src"
OBJECTS: Final = "codegen/host/lib"
HEADERS: Final = "codegen/host/include"
CODE: Final = "codegen/host"

# a name becomes part of file names, so it may hold nothing that a path gives a meaning to
_MODULE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_module_name(name: str) -> bool:
    """Tell whether a module may have this name in an archive."""
    return _MODULE_NAME.fullmatch(name) is not None


def relay_path(module: str) -> str:
    """Return the path of the module's source as Relay text."""
    return f"src/{module}.relay"


def params_path(module: str) -> str:
    """Return the path of the parameters that the executor loads: an empty dictionary for AOT."""
    return f"parameters/{module}.params"


def source_params_path(module: str) -> str:
    """Return the path of the model's own weights under their own names."""
    return f"src/{module}.params"


def graph_path(module: str) -> str:
    """Return the path of the graph executor's JSON."""
    return f"executor-config/graph/{module}.graph"
