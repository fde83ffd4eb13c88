"""Firmware: boards as data, projects that build without mlforge, and runs under an emulator.

The names are those of microTVM's Python API; they load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlforge.archive.export import export_model_library_format
    from mlforge.micro.project_api import (
        GeneratedProject,
        TemplateProject,
        generate_project,
        get_microtvm_template_projects,
        get_standalone_crt_dir,
    )
    from mlforge.micro.rpc.session import Session

_HOMES = {
    "GeneratedProject": "mlforge.micro.project_api",
    "Session": "mlforge.micro.rpc.session",
    "TemplateProject": "mlforge.micro.project_api",
    "export_model_library_format": "mlforge.archive.export",
    "generate_project": "mlforge.micro.project_api",
    "get_microtvm_template_projects": "mlforge.micro.project_api",
    "get_standalone_crt_dir": "mlforge.micro.project_api",
}

__all__ = [
    "GeneratedProject",
    "Session",
    "TemplateProject",
    "export_model_library_format",
    "generate_project",
    "get_microtvm_template_projects",
    "get_standalone_crt_dir",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mlforge.micro' has no attribute '{name}'")
