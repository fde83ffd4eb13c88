"""Relay text from archives of TVM 0.14, compared with the text of the models themselves."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.relay import ir
from mlfc.relay.text import from_text, to_text
from mlfc.relay.text_literals import SECTION, metadata_text
from tests.verify_relay import verify


def archived(shared: Path, archive: str, name: str) -> str:
    with tarfile.open(shared / "fixtures" / "tvm-0.14" / f"{archive}.tar.xz") as tar:
        member = next(item for item in tar.getmembers() if item.name.endswith(f"src/{name}.relay"))
        file = tar.extractfile(member)
        assert file is not None
        return file.read().decode()


def operators_only(text: str) -> list[str]:
    """Return the lines without comments, metadata and the result type, which TVM omits before type inference."""
    plain = re.sub(r" /\*.*?\*/", "", text.partition(SECTION)[0])
    return [re.sub(r"\) -> [^{]*\{", ") {", line) for line in plain.splitlines() if line]


@pytest.mark.parametrize(("archive", "name"), [("multi", "ad"), ("kws_aot_c", "kws"), ("kws_graph_c", "kws")])
def test_tvm_text_is_read_and_printed_line_by_line_the_same(shared: Path, archive: str, name: str) -> None:
    text = '#[version = "0.0.5"]\n' + archived(shared, archive, name)
    # str(mod) omits the constants: restore the 64 scales of each, with other values
    count = 1 + max((int(number) for number in re.findall(r"meta\[relay\.Constant\]\[(\d+)\]", text)), default=-1)
    if count:
        scales = [ir.Constant(np.full(64, 0.5, np.float32)) for _ in range(count)]
        text += f"\n{SECTION}\n{metadata_text(scales)}\n"
    module = from_text(text)
    verify(module)
    assert operators_only(to_text(module)) == operators_only(text)


@pytest.mark.parametrize(
    "file", ["ad01_int8", "hello_world_int8", "kws_ref_model", "kws_ref_model_float32", "pretrainedResnet_quant"]
)
def test_real_models_survive_as_text(models: Path, file: str) -> None:
    module, _ = mlfc.import_model(models / f"{file}.tflite")
    verify(module)
    text = to_text(module)
    again = from_text(text)
    verify(again)
    assert to_text(again) == text
    assert to_text(from_text(to_text(module, spans=True))) == text
