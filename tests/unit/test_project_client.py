"""The client of the Project API against servers that exit, hang, or reply nonsense: one error, and no server left."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from mlfc import errors
from mlfc.micro.project_api import GeneratedProject, TemplateProject
from mlfc.micro.project_api import client as client_module
from mlfc.micro.project_api.client import ServerConnection
from mlfc.micro.project_server import protocol

HEAD = """\
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--read-fd", type=int)
parser.add_argument("--write-fd", type=int)
given, _ = parser.parse_known_args()
requests, replies = os.fdopen(given.read_fd, "rb"), os.fdopen(given.write_fd, "wb")

def answer(text):
    replies.write(text if isinstance(text, bytes) else json.dumps(text).encode() + b"\\n")
    replies.flush()

INFO = {"protocol_version": 1, "platform_name": "fake", "is_template": False,
        "model_library_format_path": "model.tar", "project_options": []}

def reply(request, result):
    answer({"jsonrpc": "2.0", "id": request["id"], "result": result})

"""
RESULT = 'json.dumps({"jsonrpc": "2.0", "id": 1, "result": None}).encode()'


def server(folder: Path, text: str) -> Path:
    (folder / "microtvm_api_server.py").write_text(HEAD + text)
    return folder


FAULTS = {
    "dies_at_once": ("sys.exit(3)", errors.ConnectionShutdownError, "status 3"),
    "dies_when_asked": ("requests.readline(); os._exit(4)", errors.ConnectionShutdownError, "status 4"),
    "is_killed": ("requests.readline(); os.kill(os.getpid(), 9)", errors.ConnectionShutdownError, "status -9"),
    "answers_garbage": ("requests.readline(); answer(b'\\xff{{\\n')", errors.MalformedReplyError, "not JSON"),
    "answers_nothing": ("requests.readline(); answer(b'\\n')", errors.MalformedReplyError, "not JSON"),
    "nests_beyond_sense": ("requests.readline(); answer(b'['*100000+b'\\n')", errors.MalformedReplyError, "not JSON"),
    "answers_a_list": ("requests.readline(); answer([1])", errors.MalformedReplyError, "result or an error"),
    "answers_neither": ("requests.readline(); answer({'id': 1})", errors.MalformedReplyError, "result or an error"),
    "answers_a_bare_error": (
        "requests.readline(); answer({'id': 1, 'error': 7})",
        errors.MalformedReplyError,
        "must have a message",
    ),
    "answers_another": (
        "requests.readline(); answer({'jsonrpc': '2.0', 'id': 7, 'result': 1})",
        errors.MismatchedIdError,
        "request 1 was answered as 7",
    ),
    "says_nothing_of_itself": (
        "reply(json.loads(requests.readline()), {})",
        errors.MalformedReplyError,
        "description is incomplete",
    ),
    "has_options_without_names": (
        "reply(json.loads(requests.readline()), {**INFO, 'project_options': [7, {'type': 'str'}]})",
        errors.MalformedReplyError,
        "options without names",
    ),
    "speaks_another_version": (
        "reply(json.loads(requests.readline()), {**INFO, 'protocol_version': 2})",
        errors.ProjectError,
        "version 2 of the protocol",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_server_gives_one_error(tmp_path: Path, name: str) -> None:
    text, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message) as caught:
        GeneratedProject(server(tmp_path, text))
    assert type(caught.value) is kind


def test_a_line_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE", 1000)
    with pytest.raises(errors.MalformedReplyError, match="too long"):
        GeneratedProject(server(tmp_path, "requests.readline(); answer(b'x' * 70000 + b'\\n'); time.sleep(60)"))


KEPT_OPEN = """\
import subprocess
child = subprocess.Popen(["sleep", "600"], pass_fds=[given.write_fd])
open("part", "w").write(str(child.pid))
os.rename("part", "child")
time.sleep(600)
"""


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(600)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        "requests.readline(); answer(b'{'); time.sleep(600)",
        KEPT_OPEN,
    ],
    ids=["silent", "stubborn", "half_a_line", "survived_by_what_it_started"],
)
def test_a_server_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(client_module, "_GRACE_SECONDS", 0.2)
    connection = ServerConnection(server(tmp_path, text))
    with pytest.raises(errors.ProjectError, match="did not answer build within 1 seconds"):
        connection.call("build", {"options": {}}, 1.0)
    # by a signal, long before it would have exited
    assert connection._process.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    with pytest.raises(errors.ConnectionShutdownError, match="closed"):
        connection.call("build", {"options": {}}, 1.0)
    with suppress(FileNotFoundError):  # the server's child, if it was started, may still run
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_server_that_takes_nothing_is_ended(tmp_path: Path) -> None:
    connection = ServerConnection(server(tmp_path, "time.sleep(600)"))
    with pytest.raises(errors.ProjectError, match="did not answer write_transport"):
        connection.call("write_transport", {"data": "x" * 1_000_000, "timeout_sec": None}, 1.0)


@pytest.mark.parametrize("seconds", ["float('nan')", "float('inf')", "-1", "1e308", "10**400", "None"])
def test_times_that_nobody_can_wait_are_refused(tmp_path: Path, seconds: str) -> None:
    names = "'session_start_retry_timeout_sec', 'session_start_timeout_sec', 'session_established_timeout_sec'"
    text = f"""reply(json.loads(requests.readline()), INFO)
reply(json.loads(requests.readline()), {{'timeouts': {{name: {seconds} for name in ({names})}}}})
requests.readline()
"""
    with (
        GeneratedProject(server(tmp_path, text)) as project,
        pytest.raises(errors.MalformedReplyError, match="timeouts"),
    ):
        project.transport().open()


def told(folder: Path, error: dict[str, object]) -> errors.MlfcError:
    answer = f"request = json.loads(requests.readline()); answer({{'jsonrpc': '2.0', 'id': 1, 'error': {error!r}}})"
    connection = ServerConnection(server(folder, answer))
    with pytest.raises(errors.MlfcError) as caught:
        connection.call("build", {"options": {}}, 60.0)
    connection.close()
    return caught.value


def test_errors_of_servers_become_ours(tmp_path: Path) -> None:
    plain = told(tmp_path, {"code": -32000, "message": "it broke", "data": {"traceback": "Traceback ..."}})
    assert (type(plain), plain.cause) == (errors.ProjectError, "it broke")
    timeout = told(tmp_path, {"code": -32000, "message": "IoTimeoutError", "data": {"text": "no byte came"}})
    assert (type(timeout), timeout.cause) == (errors.IoTimeoutError, "no byte came")
    assert type(told(tmp_path, {"code": -32000, "message": "TransportClosedError"})) is errors.TransportClosedError
    assert type(told(tmp_path, {"code": -32000, "message": "ValueError"})) is errors.OptionError
    # only the code of server errors turns the message into an error class
    assert type(told(tmp_path, {"code": -32603, "message": "ValueError"})) is errors.ProjectError


def test_an_error_without_end_is_cut(tmp_path: Path) -> None:
    assert len(str(told(tmp_path, {"code": -32000, "message": "x" * 10_000_000}))) < 100_000


def test_projects_and_templates_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(errors.ProjectAPIServerNotFoundError, match=r"microtvm_api_server\.py does not exist"):
        GeneratedProject(tmp_path)
    with pytest.raises(errors.NotATemplateProjectError):
        TemplateProject(server(tmp_path, "reply(json.loads(requests.readline()), INFO)"))
    answer = "reply(json.loads(requests.readline()), {**INFO, 'is_template': True})"
    with pytest.raises(errors.TemplateProjectError, match="Generate a project from it"):
        GeneratedProject(server(tmp_path, answer))


ANSWERS = """
for line in requests:
    request = json.loads(line)
    method, params = request["method"], request["params"]
    if method == "server_info_query":
        options = [{"name": "speed", "default": 9}, {"name": "port", "default": None}]
        reply(request, {**INFO, "project_options": options})
    elif method == "open_transport":
        assert params == {"options": {"speed": 9, "port": "COM3"}}, params
        reply(request, {"timeouts": {"session_start_retry_timeout_sec": 1, "session_start_timeout_sec": 2,
                                     "session_established_timeout_sec": 0}})
    elif method == "read_transport":
        reply(request, {"data": "{r"} if params == {"n": 1, "timeout_sec": 3.5} else {"data": ""})
    elif method == "write_transport":
        assert params == {"data": "{r", "timeout_sec": None}, params
        reply(request, None)
    else:
        reply(request, None)
"""


def test_servers_of_others_are_driven_in_the_protocols_words(tmp_path: Path) -> None:
    with GeneratedProject(server(tmp_path, ANSWERS), {"port": "COM3"}) as project:
        project.build()
        project.flash()
        line = project.transport()
        timeouts = line.open()
        assert (timeouts.session_start_retry_timeout_sec, timeouts.session_established_timeout_sec) == (1.0, 0.0)
        # such a server returns exactly the requested number of bytes, so the client reads streams byte by byte
        assert line.read(100, 3.5) == b"\xfe"
        line.write(b"\xfe", None)
        with pytest.raises(errors.TransportClosedError, match="0 bytes arrived"):
            line.read(100, 1.0)
        line.close()


def test_an_option_that_the_project_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.OptionError, match="Option 'sped' is invalid"):
        GeneratedProject(server(tmp_path, ANSWERS), {"sped": 11})
