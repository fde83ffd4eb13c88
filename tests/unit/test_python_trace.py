"""The source line that created an ONNX node: PyTorch's exporters record it, and messages show it."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

import mlfc
from mlfc.frontend.python_trace import TRACE, line_in_trace
from tests.onnx_models import model

OWN = 'File "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", line 134, in forward\n  return F.linear()'


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ('File "/home/me/net.py", line 7, in forward\n    return x', "net.py, line 7"),
        (f'File "net.py", line 7, in forward\n  x\nFile "/me/block.py", line 9, in f\n  y\n{OWN}', "block.py, line 9"),
        ('File "C:\\nets\\net.py", line 7, in forward', "net.py, line 7"),
        (OWN, None),
        ("", None),
        ("no trace", None),
        ('File "<eval_with_key>.1", line 7', None),
        ('File "\x1b[31mred.py", line 7', "\\x1b[31mred.py, line 7"),
        ('File "' + "a" * 100 + '", line 7', "a" * 30),
        ('File "net.py", line ' + "9" * 100, "net.py, line 999999999"),
        ("File " * 100_000 + 'File "net.py", line 7', None),
    ],
)  # fmt: skip
def test_the_innermost_line_of_the_user_is_found(trace: str, line: str | None) -> None:
    found = line_in_trace(trace)
    assert found == line or (line is not None and found is not None and found.startswith(line) and len(found) < 90)


def refused(trace: str | None) -> str:
    nodes = [helper.make_node("Foo", ["x"], ["y"], "the_node")]
    proto = model(nodes, {"x": (1,)}, ["y"], {})
    if trace is not None:
        proto.graph.node[0].metadata_props.append(onnx.StringStringEntryProto(key=TRACE, value=trace))
    (problem,) = mlfc.check(proto)
    return str(problem.place)


def test_messages_name_the_line_of_a_node() -> None:
    assert refused(None) == "node 'the_node'"
    assert refused('File "/home/me/net.py", line 7, in forward') == "node 'the_node' (net.py, line 7)"
    assert refused("\x1b]") == "node 'the_node'"
