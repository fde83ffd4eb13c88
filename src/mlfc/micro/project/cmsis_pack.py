"""The template ``cmsis_pack``: a CMSIS pack with the model, and a solution of CMSIS-Toolbox that runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.micro.project.firmware import APPLICATION_TYPES, application_files
from mlfc.micro.project.model_interface import c_files, library_files, library_values
from mlfc.micro.project.options import BUILD, GENERATE
from mlfc.micro.project.template import ProjectModel, ProjectOption, ProjectTemplate, ToolCommand
from mlfc.micro.render import render
from mlfc.support.c_names import bounded
from mlfc.support.content import Data
from mlfc.target.features import CPUS

_INSTALL = (
    "Install CMSIS-Toolbox as https://open-cmsis-pack.github.io/cmsis-toolbox says, and name the compiler by its "
    "variable, as in GCC_TOOLCHAIN_12_2_1=/usr/bin"
)
_ANY_CORE = "ARM::Cortex_DFP"
# limit of the format: component names have up to 32 characters, of which bounded() adds 17
_COMPONENT_LIMIT = 15
_VENDOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,31}")
_TARGET_TYPE_LIMIT = 32
_FPU = {"-mfpu=fpv4-sp-d16": "sp", "-mfpu=fpv5-sp-d16": "sp", "-mfpu=fpv5-d16": "dp"}


def _refuses(board: Board) -> str | None:
    is_cortex_m = board.core.startswith("cortex-m") and board.core in CPUS
    return None if is_cortex_m else f"CMSIS knows Arm's Cortex-M cores, and this is {board.core}"


def _files(model: ProjectModel, board: Board, project_type: str, options: Mapping[str, Any]) -> dict[str, Data]:
    vendor = str(options["vendor"])
    if not _VENDOR.fullmatch(vendor):
        raise OptionError("option 'vendor' must be 2 to 32 letters, digits and hyphens, a letter or digit first")
    application = application_files(model, project_type, "int main(void)")
    # the device with the board's core in Arm's own pack
    generic = f"ARMC{board.core.removeprefix('cortex-').replace('plus', 'p').upper()}"
    fpu = next((_FPU[flag] for flag in board.toolchain.flags if flag in _FPU), None)
    values = {
        **library_values(model, project_type),
        "vendor": vendor,
        "component": bounded(model.name, _COMPONENT_LIMIT).lstrip("_"),
        "dcore": board.core.replace("plus", "+").title(),
    }
    return {
        f"{vendor}.{model.name}.pdsc": render(
            "cmsis_pack/pack.pdsc",
            **values,
            url=options["url"],
            version=options["version"],
            has_licence=bool(options["license"]),
        ),
        f"{model.name}.csolution.yml": render(
            "cmsis_pack/solution.yml",
            **values,
            board=board,
            target_type=board.name[:_TARGET_TYPE_LIMIT],
            device=options["device"] or generic,
            device_pack=options["device_pack"],
            fpu=fpu if options["device"] is None else None,
        ),
        f"{model.name}.cproject.yml": render(
            "cmsis_pack/project.yml", **values, app_sources=c_files(application, "app/")
        ),
        f"{model.name}.clayer.yml": render("cmsis_pack/layer.yml", **values),
        **library_files(model, application, "app"),
    }


def _commands(model: ProjectModel, _board: Board) -> dict[str, ToolCommand]:
    # flashing uses the board's own flash tool
    return {
        "build": ToolCommand(
            ("{cbuild_cmd}", "{verbose:--verbose}", "--packs", f"{model.name}.csolution.yml"), _INSTALL
        )
    }


TEMPLATE = ProjectTemplate(
    "cmsis_pack",
    "CMSIS pack, and a solution for cbuild",
    APPLICATION_TYPES,
    _refuses,
    _files,
    options=(
        ProjectOption("vendor", "Vendor of the pack", default="mlfc", optional=(GENERATE,)),
        ProjectOption("version", "Version of the pack", default="1.0.0", optional=(GENERATE,)),
        ProjectOption(
            "license", "License of the pack, which then has a file LICENSE", default="", optional=(GENERATE,)
        ),
        ProjectOption("url", "Home page of the pack", default="https://example.org/", optional=(GENERATE,)),
        ProjectOption(
            "device",
            "Device name in a device pack, instead of Arm's device with the board's core",
            optional=(GENERATE,),
        ),
        ProjectOption("device_pack", "The pack with the device", default=_ANY_CORE, optional=(GENERATE,)),
        ProjectOption("cbuild_cmd", "The program", default="cbuild", optional=(BUILD,)),
    ),
    commands=_commands,
    elf=lambda model: f"build/{model.name}.elf",
)
