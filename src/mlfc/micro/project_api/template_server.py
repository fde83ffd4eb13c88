"""The API server of a template project: it generates projects, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlfc.errors import MlfcError, OptionError
from mlfc.micro.board.board import boards
from mlfc.micro.project.generate import generate_project, templates
from mlfc.micro.project.options import template_options
from mlfc.micro.project.record import as_json
from mlfc.micro.project_server.protocol import PROTOCOL_VERSION, StepError
from mlfc.micro.project_server.server import main


class TemplateServer:
    """Handler of a template's API server."""

    def __init__(self, name: str) -> None:
        self._template = templates().get(name)

    def server_info_query(self, tvm_version: str) -> dict[str, Any]:  # noqa: ARG002  (parameters are sent by name)
        """Return the description and options of the template."""
        return {
            "protocol_version": PROTOCOL_VERSION,
            "platform_name": self._template.name,
            "is_template": True,
            "model_library_format_path": "",
            "project_options": [as_json(option) for option in template_options(self._template, boards())],
        }

    def generate_project(
        self,
        model_library_format_path: str,
        standalone_crt_dir: str,  # noqa: ARG002  (generated projects contain mlfc's own runtime)
        project_dir: str,
        options: dict[str, Any],
    ) -> None:
        """Generate a project in a folder that does not exist yet."""
        if Path(project_dir).exists():
            raise StepError(f"{project_dir}: the folder already exists")
        try:
            generate_project(self._template.name, model_library_format_path, project_dir, options)
        except OptionError as error:
            raise ValueError(str(error)) from error
        except MlfcError as error:
            raise StepError(str(error)) from error

    def close_transport(self) -> None:
        """Do nothing: a template has no device."""

    def __getattr__(self, method: str) -> Any:
        def refused(**_params: Any) -> None:
            raise StepError(f"{method} is for generated projects, and this is a template")

        return refused


def serve(server: str) -> None:
    """Serve the template with the name of the folder of the server's file."""
    name = Path(server).resolve().parent.name
    main(lambda: TemplateServer(name))
