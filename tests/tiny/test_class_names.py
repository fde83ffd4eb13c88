"""Every class of mlfc has a unique name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import mlfc

# names shared by several classes, by reason
SHARED = {
    "the graph, loop and host IR and programs have the same construct; code names its module or imports one of them": {
        "Assign", "Body", "Call", "Cast", "Comment", "Element", "For", "Function", "If", "Jump", "Label", "Return",
        "Var",
    },
    "TVM's names": {"GraphModule", "IoTimeoutError", "Target", "TransportClosedError"},
    "ONNX Runtime's names": {"RunOptions"},
    "the importers of ONNX and TFLite have the same interface": {"Importer", "Node"},
    "a function while it is imported, and while it is inlined": {"Frame"},
    "constraints of JSON values, and of a run": {"Limits"},
}  # fmt: skip


def test_no_two_classes_share_a_name() -> None:
    texts = (path.read_text(encoding="utf-8") for path in Path(mlfc.__file__).parent.rglob("*.py"))
    names = (name.lstrip("_") for text in texts for name in re.findall(r"^ *class (\w+)[:(]", text, re.MULTILINE))
    shared = {name for name, count in Counter(names).items() if count > 1}
    assert shared <= set().union(*SHARED.values())
