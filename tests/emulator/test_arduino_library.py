"""Arduino libraries, built with Arduino's own core for AVR and run under simavr."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import BudgetError
from mlfc.relay import ir
from tests.conftest import need
from tests.emulator.conftest import need_board
from tests.harness import module_of
from tests.projects import archive, expected_output, odd_archive, printed_output, project

ARDUINO = Path("/usr/share/arduino/hardware/arduino/avr")
BOARD = "arduino_mega"
# as in the core's platform.txt for the Mega; avr-gcc 5's float.h does not define DECIMAL_DIG for C++
MACHINE = ["-mmcu=atmega2560", "-DF_CPU=16000000L", "-DARDUINO=10819", "-DARDUINO_AVR_MEGA2560", "-DARDUINO_ARCH_AVR"]
FLAGS = [*MACHINE, "-DDECIMAL_DIG=__DECIMAL_DIG__", "-Os", "-ffunction-sections", "-fdata-sections"]
CPP = ["-std=gnu++11", "-fno-exceptions", "-fno-threadsafe-statics"]
# in library.properties, by Arduino's library specification
REQUIRED = ["name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url"]
STRICT = ["-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the objects of Arduino's core."""
    need_board(BOARD)
    need("avr-g++", "gcc-avr")
    sources = sorted((ARDUINO / "cores" / "arduino").glob("*.c*"))
    if not sources:
        pytest.skip(f"{ARDUINO} is not there; on Debian: apt-get install arduino-core-avr")
    folder = tmp_path_factory.mktemp("core")
    return [built(source, folder, ["-w"]) for source in sources]


def built(source: Path, folder: Path, flags: list[str]) -> Path:
    """Compile a file as Arduino's builder does."""
    made = folder / f"{source.name}.o"
    compiler = ["avr-g++", *CPP] if source.suffix == ".cpp" else ["avr-gcc", "-std=gnu11"]
    includes = [f"-I{ARDUINO}/cores/arduino", f"-I{ARDUINO}/variants/mega"]
    subprocess.run([*compiler, *FLAGS, *flags, *includes, "-c", str(source), "-o", str(made)], check=True)
    return made


def firmware(library: Path, core: list[Path], folder: Path) -> Path:
    """Build the library and its sketch, to which Arduino's builder adds the core's header."""
    (sketch,) = (library / "examples").glob("*/*.ino")
    program = folder / "sketch.cpp"
    program.write_text(f"#include <Arduino.h>\n#line 1\n{sketch.read_text()}")
    flags = [*STRICT, f"-I{library / 'src'}"]
    with ThreadPoolExecutor(2) as pool:
        objects = pool.map(lambda path: built(path, folder, flags), [*sorted((library / "src").glob("*.c")), program])
        elf = folder / "sketch.elf"
        command = ["avr-gcc", MACHINE[0], "-Os", "-Wl,--gc-sections", "-o", elf, *objects, *core, "-lm"]
    subprocess.run([str(word) for word in command], check=True)
    return elf


def said(elf: Path, until: str) -> str:
    """Return the firmware's serial output up to a line; the firmware never ends."""
    command = [need("simavr", "simavr"), "-m", "atmega2560", "-f", "16000000", str(elf)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(re.sub(r"\x1b\[\d*m", "", line).rstrip().removesuffix(".."))
            if until in line:
                break
        process.kill()
    return "\n".join(lines)


def test_the_sketch_prints_what_the_reference_computes(core: list[Path], models: Path, tmp_path: Path) -> None:
    model = archive(models, tmp_path, "c -mcpu=avr", workspace_io=True)
    library = project("arduino", model, tmp_path / "library", BOARD)
    text = said(firmware(library, core, tmp_path), ": done")
    assert re.search(r"^microseconds: [1-9]\d*$", text, re.MULTILINE)
    np.testing.assert_array_equal(printed_output(text), expected_output(models, model))


def test_the_sketch_checks_test_vectors_and_finds_a_wrong_one(core: list[Path], models: Path, tmp_path: Path) -> None:
    model = archive(models, tmp_path, "c -mcpu=avr", external_workspace=True)
    library = project("arduino", model, tmp_path / "library", BOARD, "selftest")
    assert "PASS 2 of 2" in said(firmware(library, core, tmp_path), " of ")
    vectors = library / "src" / "hello_world_vectors.c"
    output = re.compile(r"(\.StatefulPartitionedCall_0 = \{\s*)(-?\d+)")
    vectors.write_text(output.sub(lambda found: found[1] + str(int(found[2]) - 1), vectors.read_text(), count=1))
    failed = said(firmware(library, core, tmp_path), " of 2")
    assert "FAIL hello_world, vector 0: largest difference 1" in failed
    assert "FAIL 1 of 2" in failed


def test_constants_count_as_ram_of_an_avr(tmp_path: Path) -> None:
    weight = ir.Constant(np.ones((50, 50), np.float32))
    x = np.zeros((1, 50), np.float32)
    module = module_of({"x": x}, {"y": lambda v: ir.call("nn.dense", [v["x"], weight], units=50)})
    model = mlfc.export_model_library_format(mlfc.build(module, "c -mcpu=avr"), tmp_path / "dense.tar")
    with pytest.raises(BudgetError, match=r"arduino_mega.* exceed the 8,192 of 'ram' by .* bytes: constants 10,0\d\d"):
        project("arduino", Path(model), tmp_path / "library", BOARD)
    assert not (tmp_path / "library").exists()


@pytest.mark.parametrize("project_type", ["standalone", "selftest"])
def test_odd_names_and_types_build_without_warnings(project_type: str, core: list[Path], tmp_path: Path) -> None:
    library = project("arduino", odd_archive(tmp_path, "c -mcpu=avr"), tmp_path / "library", BOARD, project_type)
    properties = dict(line.split("=", 1) for line in (library / "library.properties").read_text().splitlines())
    assert properties["name"] == "NArduinoString2Model"
    assert (library / "src" / properties["includes"]).is_file()
    assert all(properties[key] for key in REQUIRED)
    keywords = [line.split("\t") for line in (library / "keywords.txt").read_text().splitlines()[2:]]
    assert {len(words) for words in keywords} == {2}
    text = said(firmware(library, core, tmp_path), "of 1" if project_type == "selftest" else ": done")
    assert ("PASS 1 of 1" if project_type == "selftest" else "\n: ") in text
