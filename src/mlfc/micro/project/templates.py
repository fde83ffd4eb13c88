"""The templates that come with mlfc."""

from __future__ import annotations

from functools import cache

from mlfc.micro.project import arduino, cmake, cmsis_pack, esp_idf, makefile, package, zephyr
from mlfc.micro.project.template import Template
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
def templates() -> Registry[Template]:
    """Return the templates of projects by name."""
    found: Registry[Template] = Registry("project template")
    for template in _TEMPLATES:
        found.add(template.name, template)
    return found
