"""Reports on memory, operators and weights of archives, against independent counts."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.archive.describe.inspect import MAX_LISTED, live_during, span_bytes
from mlfc.archive.describe.memory_map import memory_picture
from mlfc.errors import ArchiveError
from mlfc.relay.text import from_text
from mlfc.support.module_info import BlockInfo
from tests.show_archive import document, write_archive
from tests.unit.test_cli import mlfc as program
from tests.unit.test_cli import succeeded

FIXTURES = "fixtures/tvm-0.14"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def kws(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    mod, params = mlfc.import_model(models / "kws_ref_model.tflite")
    factory = mlfc.build(mod, params=params, module_name="kws")
    return mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("inspect") / "kws.tar")


def covered(tensors: list[dict[str, Any]]) -> int:
    """Count the bytes that tensors occupy, one by one."""
    return len({byte for item in tensors for byte in range(item["offset"], item["offset"] + item["bytes"])})


def test_layers_of_a_real_model_have_the_bytes_of_their_tensors_and_the_models_macs(kws: Path) -> None:
    module = mlfc.inspect(kws)["modules"]["kws"]
    operators, memory = module["operators"], module["memory"]
    # the count for MLPerf Tiny's keyword spotting in shared/peers.md
    assert sum(operator["macs"] for operator in operators) == 2_656_768
    assert [covered(operator["tensors"]) for operator in operators] == [item["live_bytes"] for item in operators]
    assert max(item["live_bytes"] for item in operators) == memory["workspace_lower_bound_bytes"]
    peak = module["peak"]
    assert operators[peak["call"]]["live_bytes"] == peak["live_bytes"]
    assert sum(item["bytes"] for item in module["constants"]) == memory["constants_bytes"]
    assert module["untold"] == []
    assert [item["bytes"] for item in module["constants"]] == sorted(
        (item["bytes"] for item in module["constants"]), reverse=True
    )


def test_storages_of_tvms_graph_and_its_scratch_are_tvms_workspace(shared: Path) -> None:
    module = mlfc.inspect(shared / FIXTURES / "kws_graph_c.tar.xz")["modules"]["kws"]
    memory = module["memory"]
    assert memory["storages_bytes"] + memory["scratch_bytes"] == memory["workspace_bytes"] == 105_348
    assert sum(item["bytes"] for item in module["constants"]) == memory["constants_bytes"] == 53_304
    assert [tensor["shape"] for tensor in (*module["inputs"], *module["outputs"])] == [[1, 49, 10, 1], [1, 12]]
    assert len(module["operators"]) == 14
    # two 16-bit activations of 25 x 5 x 64, and the scratch of a convolution
    assert module["peak"]["live_bytes"] == 2 * 25 * 5 * 64 * 2 + 56_192
    assert module["untold"] == ["nodes of the model", "MACs"]


def test_what_tvm_does_not_tell_is_said(shared: Path, tmp_path: Path) -> None:
    path = shared / FIXTURES / "kws_aot_c.tar.xz"
    found = mlfc.inspect(path)
    assert found["writer"] == "TVM 0.14.0"
    assert found["modules"]["kws"]["constants"] is None
    text = succeeded("inspect", path, "--layers", "--weights", "--files", cwd=tmp_path)
    assert "does not record: shapes, nodes of the model, MACs, which tensors live when, weights." in text
    assert re.search(r"input\s+input_1\s+int8\[\?\]\s+490\n", text)
    assert "codegen/host/include/tvmgen_kws.h" in text


def test_live_tensors_are_those_whose_life_spans_the_call(tmp_path: Path) -> None:
    operators = mlfc.inspect(write_archive(tmp_path / "net.tar"))["modules"]["net"]["operators"]
    assert [[tensor["name"] for tensor in operator["tensors"]] for operator in operators] == [
        ["conv_1/out", "(scratch)"],
        ["conv_1/out", "add_1/<out>"],
        ["add_1/<out>", "dense_1/sum"],
    ]
    assert [operator["intensity"] for operator in operators] == [round(4096 / 288, 3), 0, round(512 / 656, 3)]


def test_bytes_that_two_blocks_share_count_once() -> None:
    blocks = [
        BlockInfo("a", 8, 0, 0, 1, None),
        BlockInfo("b", 8, 4, 0, 1, None),
        BlockInfo("c", 2, 5, 0, 0, None),
        BlockInfo("d", 1, 20, 0, 0, None),
    ]
    assert span_bytes(blocks) == 13
    assert span_bytes([]) == 0


def test_lives_that_nobody_could_list_are_not_listed() -> None:
    assert live_during([BlockInfo("a", 1, 0, 0, 9, None)] * 3, 10) == [[BlockInfo("a", 1, 0, 0, 9, None)] * 3] * 10
    assert live_during([BlockInfo("a", 1, 0, 0, MAX_LISTED, None)], MAX_LISTED + 1) is None


def rectangles(text: str) -> dict[str, ET.Element]:
    root = ET.fromstring(text)
    found = {}
    for item in root.iter(f"{SVG}rect"):
        title = item.find(f"{SVG}title")
        if title is not None and title.text:
            found[title.text] = item
    return found


def test_the_picture_has_a_rectangle_for_each_block_where_it_lies(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "net.tar")
    module = mlfc.inspect(path)["modules"]["net"]
    text = memory_picture(module, "net")
    assert text == memory_picture(mlfc.inspect(path)["modules"]["net"], "net")
    found = rectangles(text)
    assert set(found) == {
        "conv_1/out: 128 bytes at 0, calls 0 to 1",
        "(scratch): 96 bytes at 128, call 0",
        "add_1/<out>: 128 bytes at 0, calls 1 to 2",
        "dense_1/sum: 16 bytes at 128, call 2",
        "peak of 224 live bytes in call 0: conv_1, relu_1",
    }
    conv, scratch, peak = (
        {key: float(item.get(key, "nan")) for key in ("x", "y", "width", "height")}
        for name in ("conv_1/out", "(scratch)", "peak")
        for title, item in found.items()
        if title.startswith(name)
    )
    assert conv["width"] == 2 * scratch["width"] == 2 * peak["width"]
    assert conv["x"] == scratch["x"] == peak["x"]
    assert conv["height"] / scratch["height"] == pytest.approx(128 / 96, rel=1e-3)
    assert scratch["y"] + scratch["height"] == pytest.approx(conv["y"], abs=0.02)


def test_names_cannot_break_the_picture(tmp_path: Path) -> None:
    metadata = document()
    names = ["</svg>", '"&amp;', "\x1b[31m\x00", "x" * 5000]
    for block, name in zip(metadata["modules"]["net"]["mlfc"]["plan"], names, strict=True):
        block["name"] = name
    module = mlfc.inspect(write_archive(tmp_path / "net.tar", metadata))["modules"]["net"]
    text = memory_picture(module, "net")
    text.encode()
    titles = rectangles(text)
    assert sum(title.startswith(("</svg>:", '"&amp;:', "?[31m?:", "xxxx")) for title in titles) == 4


def test_names_are_no_commands_to_a_terminal(tmp_path: Path) -> None:
    metadata = document()
    details = metadata["modules"]["net"]["mlfc"]
    details["source"]["name"] = details["operators"][0]["nodes"][0] = details["peak"]["nodes"][0] = "\x1b[2Jgone\r"
    path = write_archive(tmp_path / "net.tar", metadata)
    shown = succeeded("inspect", path, "--layers", cwd=tmp_path)
    assert shown.replace("\n", "").isprintable()
    assert shown.count(r"\x1b[2Jgone\r") >= 3
    refused = program("inspect", "\x1b[m.tar", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith(r"error: \x1b[m.tar")


def test_the_command_draws_or_says_why_not(tmp_path: Path, shared: Path) -> None:
    succeeded("inspect", write_archive(tmp_path / "net.tar"), "--picture", "net.svg", cwd=tmp_path)
    assert len(rectangles((tmp_path / "net.svg").read_text())) == 5
    for name, message in (("kws_aot_c", "no tensor lifetimes to draw"), ("multi", "Name one of: ad, kws")):
        done = program("inspect", shared / FIXTURES / f"{name}.tar.xz", "--picture", "no.svg", cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
    assert not (tmp_path / "no.svg").exists()


def test_one_module_of_several_can_be_asked_for(tmp_path: Path, shared: Path) -> None:
    path = shared / FIXTURES / "multi.tar.xz"
    text = succeeded("inspect", path, "--module", "ad", cwd=tmp_path)
    assert "module ad:" in text
    assert "module kws:" not in text
    assert "unknown module 'x'" in program("inspect", path, "--module", "x", cwd=tmp_path).stderr


def test_a_broken_graph_is_refused_with_its_place(tmp_path: Path) -> None:
    metadata = document()
    module = metadata["modules"]["net"]
    module["executors"] = ["graph"]
    del module["mlfc"], metadata["mlfc"]
    files = {"executor-config/graph/net.graph": '{"nodes": []}'}
    with pytest.raises(ArchiveError, match=r"executor-config/graph/net\.graph"):
        mlfc.inspect(write_archive(tmp_path / "net.tar", metadata, files))


def test_a_model_is_shown_as_the_archive_that_it_compiles_to(tmp_path: Path) -> None:
    model = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    archive = mlfc.compile(model, target="c", module_name="digits").export(tmp_path / "digits.tar")

    def shown(*given: object) -> str:
        return succeeded("inspect", *given, cwd=tmp_path)

    assert shown(model, "--layers").partition("\n")[2] == shown(archive, "--layers").partition("\n")[2]
    assert "target c -mcpu=cortex-m4" in shown(model, "--target", "c -mcpu=cortex-m4")
    for given in (["--target", "c"], ["--shape", "image=1,1,8,8"]):
        result = program("inspect", archive, *given, cwd=tmp_path)
        assert result.returncode == 2
        assert f"option {given[0]} requires a model" in result.stderr


def test_a_text_that_tvm_cannot_parse_is_named(kws: Path, tmp_path: Path) -> None:
    assert mlfc.inspect(kws)["modules"]["kws"]["not_in_tvm"] == []
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(8), float32]) {\n  signal.rfft(%x)\n}\n'
    archive = tmp_path / "spectrum.tar"
    mlfc.export_model_library_format(mlfc.build(from_text(text), module_name="spectrum"), archive)
    assert "  Relay text: needs mlfc (TVM lacks signal.rfft)\n" in succeeded("inspect", archive, cwd=tmp_path)
    shown = json.loads(succeeded("inspect", archive, "--json", cwd=tmp_path))
    assert shown["modules"]["spectrum"]["not_in_tvm"] == ["signal.rfft"]
