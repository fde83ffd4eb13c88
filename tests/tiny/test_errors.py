"""The error hierarchy: every class has a unique code and a line in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlfc import errors
from mlfc.registry import Registry

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def classes() -> list[type[errors.MlfcError]]:
    found = [errors.MlfcError]
    for cls in found:
        found.extend(cls.__subclasses__())
    # modules may define internal subclasses, which users do not see
    return [cls for cls in found if cls.__module__ == errors.__name__]


def test_codes_are_unique_and_documented() -> None:
    rows = dict(re.findall(r"^\| (MLF\d+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {cls.code: cls.__name__ for cls in classes()}
    assert len(rows) == len(classes())


def test_message_has_place_cause_and_next_step() -> None:
    error = errors.ModelError("the file is empty", place="a.onnx", next_step="Export it again")
    assert str(error) == "a.onnx: the file is empty. Export it again"


def test_problems_lists_every_one() -> None:
    found = errors.ProblemsError([errors.InputError("x is missing"), errors.InputError("y is extra")], place="in.npz")
    assert str(found).splitlines() == ["in.npz: 2 problems found", "  [MLF120] x is missing", "  [MLF120] y is extra"]


def test_registry_names_near_keys_and_refuses_duplicates() -> None:
    table: Registry[int] = Registry("number")
    table.add("seven", 7)
    with pytest.raises(errors.OptionError, match=r"^unknown number 'sevne'; nearest: 'seven'$"):
        table.get("sevne")
    with pytest.raises(errors.InternalError, match="number 'seven' is registered twice"):
        table.add("seven", 8)
