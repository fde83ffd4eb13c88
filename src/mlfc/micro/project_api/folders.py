"""Where the templates and the C runtime lie, under the names that microTVM's users call."""

from __future__ import annotations

from pathlib import Path

import mlfc.crt
from mlfc.micro.project.templates import templates


def get_microtvm_template_projects(platform: str) -> Path:
    """Return the folder of a template project; OptionError, with the near names, where there is none."""
    return Path(__file__).parents[1] / "templates" / templates().get(platform).name


def get_standalone_crt_dir() -> Path:
    """Return the folder of the C runtime."""
    return Path(mlfc.crt.__file__).parent
