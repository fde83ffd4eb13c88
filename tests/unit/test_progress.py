"""Progress: a spinner or a bar on a terminal, one output that is updated in a notebook, no output in a log."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlfc.support import progress


class Notebook:
    """The interface of IPython in a notebook's kernel."""

    def __init__(self, kernel: object) -> None:
        self.outputs: list[list[dict[str, str]]] = []
        self.module, self.display_module = ModuleType("IPython"), ModuleType("IPython.display")
        self.module.get_ipython = lambda: SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        self.display_module.display = self.display  # type: ignore[attr-defined]

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        output = [data]
        self.outputs.append(output)
        return SimpleNamespace(update=lambda data, raw: output.append(data))


@pytest.fixture(params=["kernel", None])
def notebook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook(request.param)
    monkeypatch.setitem(sys.modules, "IPython", made.module)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display_module)
    return made


def show_everything() -> None:
    with progress.stage("compiling <x>"):
        pass
    with progress.stage("quantizing") as say:
        say("reading")
    with progress.bar("tuning") as show:
        show(1, 2, "best <so> far")


def test_a_notebook_gets_one_output_for_each(notebook: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    show_everything()
    assert capsys.readouterr() == ("", "")
    if notebook.module.get_ipython().kernel is None:  # IPython on a terminal, with captured standard error
        assert notebook.outputs == []
        return
    texts = [[data["text/plain"] for data in output] for output in notebook.outputs]
    assert texts == [["compiling <x>"], ["quantizing", "quantizing: reading"], ["tuning: 1 of 2 best <so> far"]]
    htmls = [data["text/html"] for output in notebook.outputs for data in output]
    assert htmls[0] == "compiling &lt;x&gt;"
    assert htmls[-1] == 'tuning <progress value="1" max="2"></progress> 1/2 best &lt;so&gt; far'


def test_a_terminal_gets_a_bar_and_a_log_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (False, True):
        stream = io.StringIO()
        stream.isatty = lambda answer=is_terminal: answer  # type: ignore[method-assign]
        with monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm")
            patch.setattr(sys, "stderr", stream)
            show_everything()
        assert ("1/2" in stream.getvalue()) == ("quantizing: reading" in stream.getvalue()) == is_terminal
        assert stream.getvalue() or not is_terminal


def test_progress_is_shown_or_handed_on() -> None:
    def own(text: str) -> None:
        raise AssertionError(text)

    def stages() -> Any:
        return progress.stage("x")

    with progress.reported(own, stages) as report:
        assert report is own
    for wanted in (None, False, True):
        with progress.reported(wanted, stages) as report:
            report("reading")
