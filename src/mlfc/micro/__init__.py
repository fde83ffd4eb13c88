"""Firmware: boards as data, projects that build without mlfc, and runs under an emulator.

The names are those of microTVM's Python API; they load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfc.archive.write.export import export_model_library_format
    from mlfc.micro.project_api import (
        GeneratedProject,
        TemplateProject,
        generate_project,
        get_microtvm_template_projects,
        get_standalone_crt_dir,
    )
    from mlfc.micro.rpc.session import Session

_HOMES = {
    "GeneratedProject": "mlfc.micro.project_api",
    "Session": "mlfc.micro.rpc.session",
    "TemplateProject": "mlfc.micro.project_api",
    "export_model_library_format": "mlfc.archive.write.export",
    "generate_project": "mlfc.micro.project_api",
    "get_microtvm_template_projects": "mlfc.micro.project_api",
    "get_standalone_crt_dir": "mlfc.micro.project_api",
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
    raise AttributeError(f"module 'mlfc.micro' has no attribute '{name}'")
