"""Clients of microTVM's Project API, for any project with a server, and the server of mlfc's templates."""

from __future__ import annotations

from mlfc.micro.project_api.client import GeneratedProject as GeneratedProject
from mlfc.micro.project_api.client import ProjectTransport as ProjectTransport
from mlfc.micro.project_api.client import TemplateProject as TemplateProject
from mlfc.micro.project_api.client import generate_project as generate_project
from mlfc.micro.project_api.client import get_microtvm_template_projects as get_microtvm_template_projects
from mlfc.micro.project_api.client import get_standalone_crt_dir as get_standalone_crt_dir
