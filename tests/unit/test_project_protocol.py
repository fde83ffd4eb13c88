"""Unchecked lines of the Project API: each one gets a reply, and none ends the server."""

from __future__ import annotations

import ast
import io
import json
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlfc.micro.project_server import protocol
from mlfc.micro.project_server.server import serve

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | VALUES,
        "id": st.integers() | VALUES,
        "method": st.sampled_from([*protocol.METHODS, "reset", "__init__"]) | VALUES,
        "params": st.dictionaries(st.sampled_from(["options", "n", "timeout_sec", "data", "tvm_version"]), VALUES)
        | VALUES,
    },
).map(lambda request: json.dumps(request).encode() + b"\n")
LINES = st.binary(max_size=64).map(lambda data: data.replace(b"\n", b"") + b"\n") | REQUESTS


class Device:
    """A handler that does nothing and fails like real ones."""

    def __getattr__(self, name: str) -> Any:
        def method(**params: Any) -> Any:
            if params.get("n") == 7:
                raise protocol.IoTimeoutError("nothing came")
            return b"" if name.startswith("read") else None

        return method


@given(st.lists(LINES, min_size=1, max_size=5))
def test_every_line_has_its_reply(lines: list[bytes]) -> None:
    replies = io.BytesIO()
    serve(Device(), io.BytesIO(b"".join(lines)), replies)  # type: ignore[arg-type]  # it has every method
    answers = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert len(answers) == len(lines)
    for answer in answers:
        assert ("result" in answer) != ("error" in answer)
        if "error" in answer:
            assert answer["error"]["code"] in (-32700, -32600, -32601, -32602, -32603, -32000)
            assert isinstance(answer["error"]["message"], str)


@given(st.binary(max_size=300))
def test_bytes_travel_as_the_standard_library_writes_them(data: bytes) -> None:
    assert protocol.decode_bytes(protocol.encode_bytes(data)) == data


def test_a_line_without_end_is_skipped_and_answered(monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE", 100)
    good = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "close_transport", "params": {}}).encode() + b"\n"
    replies = io.BytesIO()
    serve(Device(), io.BytesIO(b"x" * 200_000 + b"\n" + good), replies)  # type: ignore[arg-type]
    first, second = (json.loads(line) for line in replies.getvalue().splitlines())
    assert first["error"]["code"] == -32600
    assert second == {"jsonrpc": "2.0", "id": 2, "result": None}


def test_the_server_stands_alone() -> None:
    allowed = {*sys.stdlib_module_names, "serial"}
    for path in sorted(Path(protocol.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in allowed, path.name
