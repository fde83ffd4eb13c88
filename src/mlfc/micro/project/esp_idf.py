"""The template ``esp_idf``: an ESP-IDF component with the model, and an example that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.micro.board.board import Board
from mlfc.micro.project.firmware import APPLICATION_TYPES, application_files, main_stack
from mlfc.micro.project.model_interface import c_files, library_files, library_values
from mlfc.micro.project.options import BUILD, FLASH, GENERATE
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand, refuses_without_name
from mlfc.micro.render import render
from mlfc.support.content import Data

_OTHERS = 3584  # bytes of stack for the rest: ESP-IDF's default for the main task
_INSTALL = (
    "Install ESP-IDF 5 as https://docs.espressif.com/projects/esp-idf says under Get Started, "
    "and run its export.sh in this shell"
)


def _files(model: ProjectModel, board: Board, project_type: str, options: Mapping[str, Any]) -> dict[str, Data]:
    application = application_files(model, project_type, "void app_main(void)")
    example = _example(model)
    values = library_values(model, project_type)
    return {
        "CMakeLists.txt": render("esp_idf/component.cmake", **values),
        "Kconfig": render("esp_idf/Kconfig", **values),
        "idf_component.yml": render(
            "esp_idf/idf_component.yml", **values, **{name: options[name] for name in ("version", "url", "license")}
        ),
        "linker.lf.in": render("esp_idf/linker.lf.in", **values),
        f"{example}/CMakeLists.txt": render("esp_idf/example.cmake", **values),
        f"{example}/sdkconfig.defaults": render(
            "esp_idf/sdkconfig.defaults",
            chip=board.vendor["esp-idf"],
            **main_stack(model, board, options["main_stack_size"], _OTHERS),
        ),
        f"{example}/main/CMakeLists.txt": render("esp_idf/main.cmake", app_sources=c_files(application)),
        **library_files(model, application, f"{example}/main"),
    }


def _example(model: ProjectModel) -> str:
    return f"examples/{model.name}"


def _commands(model: ProjectModel, _board: Board) -> dict[str, ToolCommand]:
    start = ("{idf_cmd}", "{verbose:--verbose}", "-C", _example(model), "-B", "build")
    return {
        "build": ToolCommand((*start, "build"), _INSTALL),
        "flash": ToolCommand((*start, "--port={port}", "flash"), _INSTALL),
    }


TEMPLATE = ProjectTemplate(
    "esp_idf",
    "ESP-IDF component, and an example for idf.py",
    APPLICATION_TYPES,
    refuses_without_name("esp-idf"),
    _files,
    options=(
        ProjectOption("idf_cmd", "The program", default="idf.py", optional=(BUILD, FLASH)),
        ProjectOption("version", "Version of the component", default="1.0.0", optional=(GENERATE,)),
        ProjectOption("url", "Home page of the component", default="", optional=(GENERATE,)),
        ProjectOption("license", "SPDX license of the component", default="0BSD", optional=(GENERATE,)),
        ProjectOption(
            "main_stack_size",
            "CONFIG_ESP_MAIN_TASK_STACK_SIZE instead of the model's, or the board's",
            "int",
            optional=(GENERATE,),
        ),
    ),
    commands=_commands,
    elf=lambda model: f"build/{model.name}.elf",
)
