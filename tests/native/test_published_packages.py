"""Packages ready to publish: they follow each publisher's rules, and their code builds."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
import yaml
from onnx import helper

import mlfc
from mlfc.errors import OptionError, OutputError
from mlfc.micro.project.publishing import Details, make_packages
from tests.conftest import need
from tests.unit.test_cli import mlfc as program

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"
DETAILS = Details("1.2.0", "Ada Lovelace", "https://example.org/digits/")
# required by Arduino's library specification
PROPERTIES = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
CATEGORIES = {
    "Display", "Communication", "Signal Input/Output", "Sensors", "Device Control", "Timing", "Data Storage",
    "Data Processing", "Other",
}  # fmt: skip
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O0", "-fsyntax-only")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with packages of all formats, for boards that support them."""
    folder = tmp_path_factory.mktemp("packages") / "out"
    made = make_packages(DIGITS, folder, "esp32c3", DETAILS)
    assert {*made} == {"arduino", "zephyr", "esp_idf"}
    assert {*make_packages(DIGITS, folder, "mps2-an386", DETAILS, ["cmsis_pack"])} == {"cmsis_pack"}
    return folder


def compiles(sources: list[Path], folders: list[Path]) -> None:
    command = [need("gcc", "gcc"), *STRICT, *(f"-I{folder}" for folder in folders), *sources]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_arduino_library_follows_the_rules_of_its_manager(packages: Path) -> None:
    """Check arduino-lint's rules for submissions: files, names, properties, the sketch; no superfluous files."""
    folder = packages / "arduino" / "DigitsInt8Model"
    lines = [line for line in (folder / "library.properties").read_text().splitlines() if line]
    properties = dict(line.split("=", 1) for line in lines)
    assert properties.keys() >= PROPERTIES
    assert all(value.strip() for value in properties.values())
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}", properties["name"])
    assert not properties["name"].lower().startswith("arduino")
    assert (properties["name"], properties["version"], properties["architectures"]) == (folder.name, "1.2.0", "esp32")
    assert properties["url"] == DETAILS.url
    assert properties["category"] in CATEGORIES
    assert not properties["paragraph"].startswith(properties["sentence"])
    assert (folder / "src" / properties["includes"]).is_file()
    assert {path.name for path in folder.iterdir()} == {
        "LICENSE", "README.md", "examples", "keywords.txt", "library.properties", "src",
    }  # fmt: skip
    assert [path.parent.name for path in (folder / "examples").rglob("*.ino")] == [folder.name]
    for line in (folder / "keywords.txt").read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"\w+\t(KEYWORD[12]|LITERAL[12])", line)
    with zipfile.ZipFile(packages / f"{folder.name}-1.2.0.zip") as archive:
        names = {name.removeprefix(f"{folder.name}/") for name in archive.namelist()}
        assert names == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert all(archive.read(f"{folder.name}/{name}") == (folder / name).read_bytes() for name in names)
    compiles(sorted((folder / "src").glob("*.c")), [folder / "src"])


def test_a_zephyr_module_has_what_west_and_twister_read(packages: Path) -> None:
    folder = packages / "zephyr" / "digits_int8"
    module = yaml.safe_load((folder / "zephyr" / "module.yml").read_text())
    assert module == {
        "name": "mlfc-digits-int8", "build": {"cmake": "zephyr", "kconfig": "zephyr/Kconfig"}, "samples": ["app"],
    }  # fmt: skip
    for path in ("zephyr/CMakeLists.txt", "zephyr/Kconfig", "app/sample.yaml", "app/prj.conf", "LICENSE", "README.md"):
        assert (folder / path).is_file()
    assert f"CONFIG_{'MLFC_DIGITS_INT8'}=y" in (folder / "README.md").read_text()
    sources = re.findall(r"(mod\w+/\S+\.c)\b", (folder / "zephyr" / "CMakeLists.txt").read_text())
    assert len(sources) == 3
    code = folder / "model" / "codegen" / "host"
    compiles([folder / path for path in sources], [code / "include", folder / "module"])


def test_an_esp_idf_component_has_its_manifest(packages: Path) -> None:
    """Check the fields that the component registry reads, as documented; compote accepted this one in a manual test."""
    folder = packages / "esp_idf" / "digits_int8"
    manifest = yaml.safe_load((folder / "idf_component.yml").read_text())
    assert manifest == {
        "version": "1.2.0", "description": "The model digits_int8, compiled to C by mlfc", "license": "0BSD",
        "url": DETAILS.url, "dependencies": {"idf": ">=5.0"},
    }  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {
        "CMakeLists.txt", "Kconfig", "LICENSE", "README.md", "examples", "idf_component.yml", "linker.lf.in", "model",
        "module",
    }  # fmt: skip


def test_a_cmsis_pack_has_the_files_that_it_names(packages: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packages / "Ada-Lovelace.digits_int8.1.2.0.pack") as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    package = ElementTree.parse(tmp_path / "Ada-Lovelace.digits_int8.pdsc").getroot()
    assert [package.findtext(tag) for tag in ("vendor", "name", "license")] == [
        "Ada-Lovelace",
        "digits_int8",
        "LICENSE",
    ]
    assert package.findtext("url") == DETAILS.url
    assert [item.get("version") for item in package.iter("release")] == ["1.2.0"]
    assert [item.get("Cversion") for item in package.iter("component")] == ["1.2.0"]
    files = [(item.get("category"), str(item.get("name"))) for item in package.iter("file")]
    assert all((tmp_path / name).exists() for _, name in files)
    named = {name for category, name in files if category != "include"}
    assert {*names} - named == {"Ada-Lovelace.digits_int8.pdsc", "LICENSE", "README.md"}
    folders = [tmp_path / name for category, name in files if category == "include"]
    compiles([tmp_path / name for category, name in files if category == "source"], folders)


def test_older_packages_are_left_alone(packages: Path) -> None:
    with pytest.raises(OutputError, match=r"out/arduino/DigitsInt8Model: exists already\. Remove it"):
        make_packages(DIGITS, packages, "esp32c3", Details("1.3.0", "Ada", DETAILS.url))


def test_packages_are_the_same_every_time(packages: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    make_packages(DIGITS, again, "esp32c3", DETAILS)
    for path in again.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (packages / path.relative_to(again)).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "1.2"}, "expected a value like 1.2.3, got '1.2'"),
        ({"version": "1.2.03"}, "expected a value like 1.2.3"),
        ({"url": "ftp://x"}, "expected a value like https://"),
        ({"url": 'https://x/"><script>'}, "expected a value like https://"),
        ({"licence": "MIT"}, "option --license MIT requires --license-file"),
        ({"author": "!"}, "expected a name with letters or digits, got '!'"),
    ],
)
def test_details_that_publishers_refuse(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    given = {"version": "1.0.0", "author": "Ada", "url": "https://example.org", **changes}
    with pytest.raises(OptionError, match=re.escape(message)):
        make_packages(DIGITS, tmp_path / "out", "esp32c3", Details(**given))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("board", "forms", "message"),
    [
        ("esp32c3", ["cmsis_pack"], "form cmsis_pack does not support board 'esp32c3': CMSIS knows Arm's"),
        ("esp32c3", ["conan"], "unknown form 'conan'; known: arduino, zephyr, esp_idf, cmsis_pack"),
        ("mps2-an386", ["arduino"], "form arduino does not support board 'mps2-an386'"),
        ("qemu-riscv32", ["esp_idf"], "does not support board"),
    ],
)
def test_forms_that_a_board_does_not_have(tmp_path: Path, board: str, forms: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        make_packages(DIGITS, tmp_path / "out", board, DETAILS, forms)


def test_names_of_tensors_are_text_and_other_licences_are_kept(tmp_path: Path) -> None:
    name = "a|b\n<script>`*"
    graph = helper.make_graph(
        [helper.make_node("Relu", [name], ["y"])], "g",
        [helper.make_tensor_value_info(name, 1, [1, 4])], [helper.make_tensor_value_info("y", 1, [1, 4])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    details = Details("1.0.0", "Ada", "https://example.org", "MIT", "MIT License\n")
    folder = make_packages(tmp_path / "m.onnx", tmp_path / "out", "esp32c3", details, ["esp_idf"])["esp_idf"]
    assert (folder / "LICENSE").read_text() == "MIT License\n"
    text = (folder / "README.md").read_text()
    assert "a\\|b" in text
    assert "<script>" not in text.replace("\\<script>", "")
    assert yaml.safe_load((folder / "idf_component.yml").read_text())["license"] == "MIT"


def test_the_command_lists_what_it_made(tmp_path: Path) -> None:
    mlfc.compile(DIGITS, target="c -mcpu=cortex-m4").export(tmp_path / "digits.tar")
    words = ("--version", "2.0.0", "--author", "Ada", "--url", "https://example.org")
    archive = str(tmp_path / "digits.tar")
    done = program("project", "package", archive, "out", "--board", "arduino_nano_33_ble", *words, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "arduino: out/DigitsInt8Model-2.0.0.zip",
        "zephyr: out/zephyr/digits_int8",
        "cmsis_pack: out/Ada.digits_int8.2.0.0.pack",
    ]
    done = program("project", "package", archive, "other", "--board", "esp32c3", *words, "--json", cwd=tmp_path)
    assert [*json.loads(done.stdout)] == ["arduino", "zephyr", "esp_idf"]
    assert "warning: " in done.stderr  # the archive is for another core
