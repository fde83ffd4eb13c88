"""The template ``zephyr``: a Zephyr module with the model, and an application that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.micro.board.board import Board
from mlfc.micro.project.firmware import APPLICATION_TYPES, application_files, expected_line, main_stack
from mlfc.micro.project.model_interface import c_files, interface_of, library_files, library_values
from mlfc.micro.project.options import BUILD, FLASH, GENERATE
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand, refuses_without_name
from mlfc.micro.render import render
from mlfc.support.content import Data

_OTHERS = 2048  # bytes of stack for Zephyr, printf and the caller of the model
_INSTALL = "Install Zephyr, its SDK and west as https://docs.zephyrproject.org says under Getting Started"


def _files(model: ProjectModel, board: Board, project_type: str, options: Mapping[str, Any]) -> dict[str, Data]:
    interface = interface_of(model)
    application = application_files(model, project_type, "int main(void)")
    values = {**library_values(model, project_type), "project_type": project_type}
    return {
        "zephyr/module.yml": render("zephyr/module.yml", module=f"mlfc-{model.name.replace('_', '-').strip('-')}"),
        "zephyr/CMakeLists.txt": render("zephyr/module.cmake", **values),
        "zephyr/Kconfig": render("zephyr/Kconfig", **values, io_bytes=interface.nbytes),
        "zephyr/workspace.ld": render("zephyr/workspace.ld", **values),
        "app/CMakeLists.txt": render("zephyr/app.cmake", **values, app_sources=c_files(application, "src/")),
        "app/prj.conf": render(
            "zephyr/prj.conf",
            **values,
            **main_stack(model, board, options["config_main_stack_size"], _OTHERS),
            prints_floats=project_type == "standalone" and any(item.is_float for item in interface.outputs),
            has_fpu="FPU" in board.features,
            core=board.core,
        ),
        "app/sample.yaml": render(
            "zephyr/sample.yaml", **values, platform=board.vendor["zephyr"], expected=expected_line(model, project_type)
        ),
        **library_files(model, application, "app/src"),
    }


def _commands(_model: ProjectModel, board: Board) -> dict[str, ToolCommand]:
    environment = {"ZEPHYR_BASE": "{zephyr_base}"}
    build = (
        "{west_cmd}", "{verbose:--verbose}", "build", "--board", board.vendor["zephyr"], "--build-dir", "build", "app",
    )  # fmt: skip
    flash = ("{west_cmd}", "{verbose:--verbose}", "flash", "--build-dir", "build", "--dev-id={serial_number}")
    return {"build": ToolCommand(build, _INSTALL, environment), "flash": ToolCommand(flash, _INSTALL, environment)}


TEMPLATE = ProjectTemplate(
    "zephyr",
    "Zephyr module, and an application for west",
    APPLICATION_TYPES,
    refuses_without_name("zephyr"),
    _files,
    options=(
        ProjectOption("west_cmd", "The program", default="west", optional=(BUILD, FLASH)),
        ProjectOption("zephyr_base", "Folder of Zephyr's source, instead of $ZEPHYR_BASE", optional=(BUILD, FLASH)),
        ProjectOption(
            "config_main_stack_size",
            "CONFIG_MAIN_STACK_SIZE instead of the model's, or the board's",
            "int",
            optional=(GENERATE,),
        ),
    ),
    commands=_commands,
    elf=lambda _model: "build/zephyr/zephyr.elf",
)
