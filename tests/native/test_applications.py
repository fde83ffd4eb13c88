"""Applications of the build systems with their own start-up code, for modules with unusual names and types."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.runtime.tensor.arrays import fill
from tests.projects import NAME, archive, odd_archive, printed_output, project, reference_output
from tests.state_models import GRU_STATES, gru

pytestmark = pytest.mark.usefixtures("quick_builds")

BOARDS = {"zephyr": "host", "arduino": "arduino_mega", "esp_idf": "esp32c3", "cmsis_pack": "mps2-an386"}
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
# files without comments, or whose comments cannot contain a licence
WITHOUT_LICENCE = {"library.properties"}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    return odd_archive(tmp_path)


@pytest.mark.parametrize("template", ["zephyr", "cmsis_pack"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_odd_modules_print_their_outputs(template: str, compiler: str, odd: Path, tmp_path: Path) -> None:
    folder = project(template, odd, tmp_path / "project", BOARDS[template])
    code = [*(folder / "model/codegen/host/src").glob("*.c"), *(folder / "module").glob("*.c")]
    code += (folder / "app").rglob("*.c")
    includes = ["-I", folder / "model/codegen/host/include", "-I", folder / "module"]
    command = [
        compiler,
        *WARNINGS,
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover",
        *includes,
        *code,
        "-lm",
    ]
    subprocess.run([*map(str, command), "-o", str(tmp_path / "app")], check=True)
    text = subprocess.run([str(tmp_path / "app")], check=True, capture_output=True, text=True).stdout
    module = mlfc.load(odd)
    inputs = fill(module.inputs, seed=0)
    lines = text.replace("long\nname", "long name").splitlines()
    assert len(lines) == 4
    for line, expected in zip(lines, module.run(inputs).values(), strict=False):
        numbers = [float(word) for word in line.rpartition(":")[2].split()]
        np.testing.assert_allclose(numbers, expected.reshape(-1), rtol=1e-5)


@pytest.mark.parametrize("form", [{}, {"external_workspace": True}])
def test_an_application_begins_with_the_state_of_the_model(form: dict[str, bool], tmp_path: Path) -> None:
    begin = {"h_in": np.ones((1, 8), np.float32)}
    model = mlfc.compile(gru(), states=GRU_STATES, state_init=begin, module_name="cell", **form)
    folder = project("zephyr", model.export(tmp_path / "cell.tar"), tmp_path / "project", BOARDS["zephyr"])
    assert "It keeps 32 bytes from one run to the next." in (folder / "zephyr" / "Kconfig").read_text()
    code = [*(folder / "model/codegen/host/src").glob("*.c"), *(folder / "module").glob("*.c")]
    code += (folder / "app").rglob("*.c")
    includes = ["-I", folder / "model/codegen/host/include", "-I", folder / "module"]
    command = ["gcc", *WARNINGS, *includes, *code, "-lm", "-o", tmp_path / "app"]
    subprocess.run([str(word) for word in command], check=True)
    text = subprocess.run([str(tmp_path / "app")], check=True, capture_output=True, text=True).stdout
    expected = model.run({"x": np.zeros((1, 4), np.float32)})["y"]
    np.testing.assert_allclose(float(text.splitlines()[0].rpartition(":")[2]), expected, rtol=1e-5)


def test_inputs_in_the_workspace_are_zeros_without_test_vectors(models: Path, tmp_path: Path) -> None:
    model = archive(models, tmp_path, "c", vectors=0, workspace_io=True)
    folder = project("cmsis_pack", model, tmp_path / "project", BOARDS["cmsis_pack"])
    code = [path for part in ("model/codegen/host/src", "module", "app") for path in (folder / part).glob("*.c")]
    includes = ["-I", folder / "model/codegen/host/include", "-I", folder / "module"]
    renamed = ["-Dmain=application_main"]
    # the memory of a board may have any content after power-on
    runner = tmp_path / "runner.c"
    runner.write_text(
        f'#include <string.h>\n#include "{NAME}_model.h"\nint application_main(void);\n'
        f"int main(void) {{ memset({NAME}_input, 77, sizeof {NAME}_input); return application_main(); }}\n"
    )
    objects = []
    for path in (*code, runner):
        flags = renamed if path.name == "main.c" else []
        objects.append(tmp_path / f"{path.stem}.o")
        subprocess.run(
            [str(word) for word in ("gcc", *WARNINGS, *flags, *includes, "-c", path, "-o", objects[-1])], check=True
        )
    subprocess.run([str(word) for word in ("gcc", *objects, "-lm", "-o", tmp_path / "app")], check=True)
    text = subprocess.run([str(tmp_path / "app")], check=True, capture_output=True, text=True).stdout
    (info,) = mlfc.load(model).inputs
    zeros = np.zeros(info.shape, info.numpy_dtype)
    np.testing.assert_array_equal(printed_output(text), reference_output(models, {info.name: zeros}))


@pytest.mark.parametrize("template", sorted(BOARDS))
@pytest.mark.parametrize("project_type", ["standalone", "selftest"])
def test_projects_are_the_same_every_time_and_say_their_licence(
    template: str, project_type: str, odd: Path, tmp_path: Path
) -> None:
    folders = [project(template, odd, tmp_path / str(index), BOARDS[template], project_type) for index in range(2)]
    one, two = (
        {path.relative_to(item): path.read_bytes() for path in item.rglob("*") if path.is_file()} for item in folders
    )
    assert one == two
    own = [path for path in one if path.parts[0] not in ("model", "project_server") and len(path.parts) > 1]
    assert len(own) > 4
    for path in own:
        first = one[path].decode().split("\n\n")[0]
        assert re.search(r"SPDX-License-Identifier: 0BSD", first) or path.name in WITHOUT_LICENCE, path
