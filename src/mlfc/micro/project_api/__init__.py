"""Clients of microTVM's Project API, for any project that has a server, and the server of our templates."""

from __future__ import annotations

from mlfc.micro.project_api.client import (
    GeneratedProject,
    ProjectTransport,
    TemplateProject,
    generate_project,
    get_microtvm_template_projects,
    get_standalone_crt_dir,
)

__all__ = [
    "GeneratedProject",
    "ProjectTransport",
    "TemplateProject",
    "generate_project",
    "get_microtvm_template_projects",
    "get_standalone_crt_dir",
]
