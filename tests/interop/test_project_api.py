"""Project API servers answer a client that uses only the protocol: JSON-RPC lines over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.micro.project_api import get_microtvm_template_projects
from tests.conftest import WATCHDOG

# a stand-in for host-driven firmware: a program that answers on its standard streams
ECHO = """\
import os
while data := os.read(0, 4096):
    os.write(1, data)
"""
SECONDS = 60


class Client:
    """The client's side, written from the description of the protocol."""

    def __init__(self, folder: Path) -> None:
        their_reader, self.to_server = os.pipe()
        self.from_server, their_writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "microtvm_api_server.py", "--read-fd", str(their_reader), "--write-fd", str(their_writer)],
            cwd=folder,
            pass_fds=(their_reader, their_writer),
            stderr=subprocess.DEVNULL,
        )
        os.close(their_reader)
        os.close(their_writer)
        self.next_id = 1

    def line(self, text: bytes) -> dict[str, Any]:
        while text:
            text = text[os.write(self.to_server, text) :]
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self.from_server], [], [], SECONDS)
            assert ready, "the server is silent"
            piece = os.read(self.from_server, 65536)
            assert piece, "the server is gone"
            answer += piece
        return json.loads(answer)

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "method": method, "params": params, "id": self.next_id}
        reply = self.line(json.dumps(message).encode() + b"\n")
        assert reply["jsonrpc"] == "2.0"
        assert reply["id"] == self.next_id
        self.next_id += 1
        return reply

    def result(self, method: str, **params: Any) -> Any:
        reply = self.request(method, **params)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def error(self, method: str, **params: Any) -> dict[str, Any]:
        return self.request(method, **params)["error"]

    def close(self) -> int:
        os.close(self.to_server)
        status = self.process.wait(SECONDS)
        os.close(self.from_server)
        return status


@pytest.fixture
def connect() -> Iterator[Any]:
    clients: list[Client] = []

    def connected(folder: Path) -> Client:
        clients.append(Client(folder))
        return clients[-1]

    yield connected
    for client in clients:
        client.process.kill()
        client.process.wait()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    mod, params = mlfc.import_model(digits)
    factory = mlfc.build(mod, params=params, module_name="digits")
    return mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("archive") / "digits.tar")


@pytest.fixture(scope="module")
def generated(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that a client generated from a template."""
    folder = tmp_path_factory.mktemp("made") / "project"
    client = Client(get_microtvm_template_projects("makefile"))
    options = {"project_type": "standalone", "board": "host", "verbose": False}
    client.result(
        "generate_project",
        model_library_format_path=str(archive),
        standalone_crt_dir=str(folder.parent),
        project_dir=str(folder),
        options=options,
    )
    assert client.close() == 0
    return folder


@pytest.fixture
def echoing(generated: Path, tmp_path: Path) -> Path:
    """Return a project whose firmware echoes its input."""
    folder = Path(shutil.copytree(generated, tmp_path / "echo"))
    (folder / "echo.py").write_text(ECHO)
    (folder / "firmware.elf").write_text("built")
    record = json.loads((folder / "project.json").read_text())
    record["steps"]["run"] = [{"arguments": [sys.executable, "echo.py"], "install": ""}]
    (folder / "project.json").write_text(json.dumps(record))
    return folder


def test_a_template_says_what_it_is(connect: Any) -> None:
    client = connect(get_microtvm_template_projects("makefile"))
    info = client.result("server_info_query", tvm_version="0.14.0")
    assert info["protocol_version"] == 1
    assert info["platform_name"] == "makefile"
    assert info["is_template"] is True
    assert info["model_library_format_path"] == ""
    options = {option["name"]: option for option in info["project_options"]}
    for option in options.values():
        assert set(option) == {"name", "help", "choices", "default", "type", "required", "optional"}
        assert option["type"] in ("str", "int", "bool")
        assert option["required"] or option["optional"]
    assert "standalone" in options["project_type"]["choices"]
    assert options["project_type"]["required"] == ["generate_project"]
    assert "mps2-an386" in options["board"]["choices"]
    assert "generated projects" in client.error("build", options={})["message"]
    assert client.close() == 0


def test_a_generated_project_holds_what_microtvms_do(generated: Path, archive: Path) -> None:
    assert (generated / "model.tar").read_bytes() == archive.read_bytes()
    assert (generated / "model" / "metadata.json").is_file()
    assert (generated / "model" / "codegen" / "host" / "include" / "tvmgen_digits.h").is_file()
    assert (generated / "microtvm_api_server.py").is_file()


def test_a_project_is_built_and_spoken_to_in_the_protocols_order(connect: Any, generated: Path, echoing: Path) -> None:
    client = connect(generated)
    info = client.result("server_info_query", tvm_version="0.14.0")
    assert info["is_template"] is False
    assert info["model_library_format_path"] == str(generated.resolve() / "model.tar")
    # clients send all options with each call
    options = {option["name"]: option["default"] for option in info["project_options"]}
    assert client.result("build", options=options) is None
    assert (generated / "firmware.elf").stat().st_mode & 0o100
    assert client.result("flash", options=options) is None
    assert client.close() == 0

    client = connect(echoing)
    timeouts = client.result("open_transport", options=options)["timeouts"]
    assert set(timeouts) == {
        "session_start_retry_timeout_sec",
        "session_start_timeout_sec",
        "session_established_timeout_sec",
    }
    # the example of the protocol's description: byte fe is encoded as {r
    assert client.result("write_transport", data="{r", timeout_sec=WATCHDOG) is None
    assert client.result("read_transport", n=1, timeout_sec=WATCHDOG) == {"data": "{r"}
    payload = bytes(range(256)) * 8
    client.result("write_transport", data=base64.b85encode(payload).decode(), timeout_sec=None)
    halves = [client.result("read_transport", n=1024, timeout_sec=None)["data"] for _ in range(2)]
    assert b"".join(map(base64.b85decode, halves)) == payload
    assert client.result("close_transport") is None
    assert client.result("close_transport") is None
    assert client.close() == 0


def test_what_does_not_come_is_a_timeout_and_is_not_lost(connect: Any, echoing: Path) -> None:
    client = connect(echoing)
    client.result("open_transport", options={})
    client.result("write_transport", data=base64.b85encode(b"abc").decode(), timeout_sec=0)
    assert base64.b85decode(client.result("read_transport", n=1, timeout_sec=WATCHDOG)["data"]) == b"a"
    error = client.error("read_transport", n=3, timeout_sec=0.5)
    assert (error["code"], error["message"]) == (-32000, "IoTimeoutError")
    assert "IoTimeoutError" in error["data"]["traceback"]
    assert client.error("read_transport", n=3, timeout_sec=0)["message"] == "IoTimeoutError"
    assert base64.b85decode(client.result("read_transport", n=2, timeout_sec=WATCHDOG)["data"]) == b"bc"


def test_what_nobody_takes_is_a_timeout(connect: Any, echoing: Path) -> None:
    (echoing / "echo.py").write_text("import time\ntime.sleep(600)")
    client = connect(echoing)
    client.result("open_transport", options={})
    data = base64.b85encode(bytes(4 << 20)).decode()
    assert client.error("write_transport", data=data, timeout_sec=1.0)["message"] == "IoTimeoutError"
    # the number of bytes sent is unknown, so the line is no longer usable
    assert client.error("write_transport", data="{r", timeout_sec=1.0)["message"] == "TransportClosedError"


def test_a_line_that_is_not_open_is_closed(connect: Any, echoing: Path) -> None:
    client = connect(echoing)
    for method, params in (("read_transport", {"n": 1}), ("write_transport", {"data": "{r"})):
        error = client.error(method, timeout_sec=1.0, **params)
        assert (error["code"], error["message"]) == (-32000, "TransportClosedError")


def test_a_serial_port_is_a_line_too(connect: Any, generated: Path) -> None:
    device, port = os.openpty()
    client = connect(generated)
    client.result("open_transport", options={"port": os.ttyname(port)})
    client.result("write_transport", data=base64.b85encode(b"\xff\r\n\x00").decode(), timeout_sec=WATCHDOG)
    assert os.read(device, 100) == b"\xff\r\n\x00"
    os.write(device, b"\x03\xfe\n")
    assert base64.b85decode(client.result("read_transport", n=3, timeout_sec=WATCHDOG)["data"]) == b"\x03\xfe\n"
    assert client.error("read_transport", n=1, timeout_sec=0.2)["message"] == "IoTimeoutError"
    client.result("close_transport")
    assert client.error("open_transport", options={"port": "/dev/no-such-port"})["message"].startswith(
        "the serial port"
    )
    assert client.close() == 0
    os.close(device)
    os.close(port)


def test_firmware_that_ends_closes_the_line(connect: Any, echoing: Path) -> None:
    (echoing / "echo.py").write_text("print('ok', end='', flush=True)")
    client = connect(echoing)
    client.result("open_transport", options={})
    assert base64.b85decode(client.result("read_transport", n=2, timeout_sec=WATCHDOG)["data"]) == b"ok"
    error = client.error("read_transport", n=1, timeout_sec=WATCHDOG)
    assert error["message"] == "TransportClosedError"
    assert "status 0" in error["data"]["text"]


def test_the_server_ends_what_it_started(connect: Any, echoing: Path) -> None:
    (echoing / "echo.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    client = connect(echoing)
    client.result("open_transport", options={})
    number = b""
    while not number.endswith(b"\n"):
        number += base64.b85decode(client.result("read_transport", n=1, timeout_sec=WATCHDOG)["data"])
    assert client.close() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


REQUEST = {"jsonrpc": "2.0", "method": "close_transport", "params": {}, "id": 1}
FAULTS = {
    "not_json": (b"{nonsense\n", -32700),
    "nested_beyond_sense": (b"[" * 100_000 + b"\n", -32700),
    "not_text": (b"\xff\xfe\n", -32700),
    "not_an_object": (b"[1, 2]\n", -32600),
    "no_version": ({**REQUEST, "jsonrpc": "1.0"}, -32600),
    "no_id": ({**REQUEST, "id": None}, -32600),
    "a_method_that_is_no_name": ({**REQUEST, "method": "../x"}, -32600),
    "params_that_are_a_list": ({**REQUEST, "params": []}, -32600),
    "unknown_method": ({**REQUEST, "method": "reset"}, -32601),
    "a_private_method": ({**REQUEST, "method": "_opened"}, -32601),
    "an_extra_parameter": ({**REQUEST, "params": {"n": 1}}, -32602),
    "a_missing_parameter": ({**REQUEST, "method": "read_transport", "params": {"n": 1}}, -32602),
    "a_wrong_type": ({**REQUEST, "method": "read_transport", "params": {"n": True, "timeout_sec": None}}, -32602),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_request_is_answered_by_its_code_and_the_server_goes_on(connect: Any, echoing: Path, name: str) -> None:
    sent, code = FAULTS[name]
    client = connect(echoing)
    reply = client.line(sent if isinstance(sent, bytes) else json.dumps(sent).encode() + b"\n")
    assert reply["error"]["code"] == code, reply
    assert client.result("close_transport") is None


def test_options_that_do_not_exist_are_refused(connect: Any, archive: Path, generated: Path, tmp_path: Path) -> None:
    client = connect(get_microtvm_template_projects("makefile"))
    params = {
        "model_library_format_path": str(archive),
        "standalone_crt_dir": "",
        "project_dir": str(tmp_path / "made"),
        "options": {"project_type": "standalone", "board": "host", "speed": 11},
    }
    error = client.error("generate_project", **params)
    assert (error["code"], error["message"]) == (-32000, "ValueError")
    assert "Option 'speed' is invalid" in error["data"]["text"]
    assert list(tmp_path.iterdir()) == []
    assert "already exists" in client.error("generate_project", **{**params, "project_dir": str(tmp_path)})["message"]
    project = connect(generated)
    assert project.error("build", options={"speed": 11})["message"] == "ValueError"
    assert "generated one" in project.error("generate_project", **params)["message"]


def test_a_step_that_fails_says_why(connect: Any, echoing: Path) -> None:
    (echoing / "main.c").write_text("int main(void) { return undeclared; }\n")
    client = connect(echoing)
    error = client.error("build", options={})
    assert error["code"] == -32000
    assert "undeclared" in error["message"]
    assert "make ended with status 2" in error["message"]


def test_a_launcher_beside_the_server_starts_it(echoing: Path) -> None:
    from mlfc.micro.project_api import GeneratedProject

    launcher = echoing / "launch_microtvm_api_server.sh"
    launcher.write_text(f'#!/bin/sh\ntouch launched\nexec "{sys.executable}" "$@"\n')
    launcher.chmod(0o755)
    with GeneratedProject.from_directory(echoing) as project:
        assert project.info()["platform_name"] == "makefile"
    assert (echoing / "launched").exists()
