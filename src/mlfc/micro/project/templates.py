"""The templates that come with mlfc."""

from __future__ import annotations

from functools import cache

from mlfc.micro.project import arduino, cmake, cmsis_pack, esp_idf, makefile, package, zephyr
from mlfc.micro.project.template import ProjectTemplate
from mlfc.registry import Registry

_TEMPLATES = (
    makefile.TEMPLATE,
    cmake.TEMPLATE,
    package.TEMPLATE,
    zephyr.TEMPLATE,
    arduino.TEMPLATE,
    esp_idf.TEMPLATE,
    cmsis_pack.TEMPLATE,
)


@cache
def templates() -> Registry[ProjectTemplate]:
    """Return the templates of projects by name."""
    found: Registry[ProjectTemplate] = Registry("project template")
    for template in _TEMPLATES:
        found.add(template.name, template)
    return found
