"""Every file of the hostile corpus is rejected with a coded error, or its fault is listed, in bounded steps and memory.

Nothing is written: not next to the file, nor in the working, home, cache or temporary folder.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hostile import (  # noqa: F401  (each registers its files)
    corpus_graph,
    corpus_json,
    corpus_metadata,
    corpus_params,
    corpus_size,
    corpus_tar,
    corpus_text,
    corpus_vm,
)
from tests.hostile.corpus import FAULTS, Fault, packed
from tests.hostile.good_archives import compiled, graph_files
from tests.hostile.reading import ACTIONS, Reader, Reading

# all actions open archives in the same way, so where opening must fail, one of these beside `validate` is enough
OPENING = ("inspect", "load")
# for files that are slow to read, the reader that does most of the work; together they cover every reader that does
# more than open
AT_LIMITS = {
    "plan_of_many_blocks_in_one_place": ("validate", "diff"),
    "many_functions_up_to_the_limit": ("validate", "migrate"),
    "many_inputs_up_to_the_limit": ("validate", "load"),
    "files_of_no_module_by_the_thousand": ("validate",),
    "many_heads_up_to_the_limit": ("validate", "inspect"),
    "graph_many_tensors_in_one_storage": ("validate",),
    # readers only open these
    "tar_million_members": ("load",),
    "tar_more_members_than_allowed": ("validate",),
    "many_modules": ("validate",),
    "relay_tokens_up_to_the_limit": ("validate", "load", "diff", "migrate"),
    "many_modules_with_code_in_common": ("validate",),
    # only `validate` parses code; all readers read the file with many words
    **dict.fromkeys((f"code_of_many_{name}" for name in corpus_size.CODES if name != "words"), ("validate",)),
}
# the costliest file needs 7.2 million; 10 million take about 2 s on a slow core
MAX_CALLS = 10_000_000
MAX_MEGABYTES = 256


@pytest.mark.parametrize("build", [compiled, lambda: packed(graph_files())], ids=["compiled", "graph"])
def test_what_the_corpus_spoils_is_good(build, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "good.tar"
    path.write_bytes(build())
    assert reader.read("validate", path).text == ""
    assert reader.read("inspect", path).error is None


def test_the_reader_has_imported_what_lists_faults(reader: Reader, tmp_path: Path) -> None:
    """Check that faults are listed without a first import in each reading, which takes seven million calls."""
    path = tmp_path / "faulty.tar"
    FAULTS["metadata_no_executor"].write(path)
    reading = reader.read("validate", path)
    assert "too short" in reading.text
    assert reading.calls < 100_000


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str, reader: Reader, place: Path, tmp_path: Path) -> None:
    fault = FAULTS[name]
    path = tmp_path / f"{name}.tar"
    fault.write(path)
    before = sorted(place.iterdir())
    for action, reading in reader.read_all(actions_of(name), path).items():
        check(fault, action, reading)
    assert list(tmp_path.iterdir()) == [path]
    assert sorted(place.iterdir()) == before
    path.unlink()


def actions_of(name: str) -> tuple[str, ...]:
    """Return the actions for a file: `validate` and every third other one if the fault need not be rejected."""
    turn = list(FAULTS).index(name)
    if name in AT_LIMITS or FAULTS[name].refused:
        return AT_LIMITS.get(name, ("validate", OPENING[turn % 2]))
    others = [action for action in ACTIONS if action != "validate"]
    return ("validate", *others[turn % 3 :: 3])


def check(fault: Fault, action: str, reading: Reading) -> None:
    """Assert that one reading of one file ended as expected."""
    said = f"{action}: {reading.error}: {reading.text[:600]}"
    assert reading.error is None or (reading.code is not None and reading.code != "MLF900"), said
    assert reading.calls < MAX_CALLS, f"{reading.calls:,} calls, {said}"
    assert reading.megabytes < MAX_MEGABYTES, f"{reading.megabytes:.0f} MiB, {said}"
    if fault.refused and action != "validate":
        assert reading.error == "ArchiveError", said
    if action == "validate":
        assert re.search(fault.expected, reading.text), said
    if reading.code == "MLF140":
        # the message must name the file
        assert f"{fault.name}.tar" in reading.text, said
