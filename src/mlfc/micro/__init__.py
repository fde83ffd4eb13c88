"""Firmware: board descriptions, projects that build without mlfc, and runs under an emulator.

The names are those of microTVM's Python API; they are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.support.lazy import make_lazy

if TYPE_CHECKING:
    from mlfc.archive.write.export import export_model_library_format as export_model_library_format
    from mlfc.micro.project_api import GeneratedProject as GeneratedProject
    from mlfc.micro.project_api import TemplateProject as TemplateProject
    from mlfc.micro.project_api import generate_project as generate_project
    from mlfc.micro.project_api import get_microtvm_template_projects as get_microtvm_template_projects
    from mlfc.micro.project_api import get_standalone_crt_dir as get_standalone_crt_dir
    from mlfc.micro.rpc.session import Session as Session

_HOMES = {
    "GeneratedProject": "mlfc.micro.project_api",
    "Session": "mlfc.micro.rpc.session",
    "TemplateProject": "mlfc.micro.project_api",
    "export_model_library_format": "mlfc.archive.write.export",
    "generate_project": "mlfc.micro.project_api",
    "get_microtvm_template_projects": "mlfc.micro.project_api",
    "get_standalone_crt_dir": "mlfc.micro.project_api",
}

make_lazy(__name__)
