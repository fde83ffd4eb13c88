"""Profiles as traces and pages: the format's rules, hostile names, bounds, and comparison with the machine."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.archive.describe import profile_page as pages
from mlfc.archive.describe.profile_page import Stage, profile_page, stages, trace_text
from mlfc.cli.tables import distinct
from mlfc.library import peaks
from mlfc.library.peaks import Peaks
from mlfc.runtime.executors import profile as profiles
from mlfc.runtime.executors.profile import OperatorTime, Profile, Recorder, Timeline
from mlfc.support.dim_walk import count_text, counted, tensor_in_call, tensor_text
from mlfc.support.dims import Symbol, maximum, substituted

PEAKS = Peaks("a processor", 1, float32=100e9, int8=400e9, bandwidth=((1 << 10, 200e9), (1 << 20, 50e9)))


def operator(index: int, name: str, nanoseconds: float = 1000.0, **known: Any) -> OperatorTime:
    return OperatorTime(index, f"f{index}", (name,), known.pop("macs", 0), nanoseconds, 0.5, **known)


def profile(*operators: OperatorTime, runs: int = 2) -> Profile:
    taken = np.array([[item.nanoseconds for item in operators]] * runs)
    starts = 10**15 + np.arange(taken.size).reshape(taken.shape) * 2000
    return Profile(operators, (1e-3,) * runs, {}, Timeline.of_rows(starts, taken))


HOSTILE = ['<script>alert("1")</script>', "</title><img src=x onerror=alert(1)>", "a\udc80\x1b[2J", "&quot;'\"`${x}"]


def test_a_trace_keeps_the_rules_of_the_format() -> None:
    found = profile(operator(0, HOSTILE[0], macs=5000, nbytes=1000, tensors=("int8[1,5]", "int8[5]")), operator(1, "b"))
    document = json.loads(trace_text("m", found, PEAKS))
    events = document["traceEvents"]
    # https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    for event in events:
        assert event["ph"] in ("X", "M")
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    assert {event["name"] for event in events if event["ph"] == "M"} == {"process_name", "thread_name"}
    calls = [event for event in events if event.get("cat") == "operator"]
    assert [(event["args"]["run"], event["ts"]) for event in calls] == [(0, 0), (0, 2), (1, 4), (1, 6)]
    assert calls[0]["args"]["shapes"] == ["int8[1,5]", "int8[5]"]
    assert (calls[0]["args"]["macs"], calls[0]["args"]["bytes"]) == (5000, 1000)
    # viewers drop events of one track that overlap without nesting
    runs = [event for event in events if event.get("cat") == "run"]
    for event in calls:
        (run,) = (item for item in runs if item["args"]["run"] == event["args"]["run"])
        assert run["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= run["ts"] + run["dur"]


def test_calls_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_EVENTS", 3)
    recorder = Recorder()
    for index in range(5):
        recorder.add(0, 0, 0, index, 1)
    for timeline in (recorder.timeline(), Timeline.of_rows(np.zeros((5, 1)), np.ones((5, 1)))):
        assert (len(timeline), timeline.left_out) == (3, 2)
    assert Recorder().timeline().left_out == 0


class _Page(HTMLParser):
    """A parsed page: its elements, and the cells of the table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attrs


def test_names_are_no_markup_and_nothing_comes_from_elsewhere() -> None:
    operators = [operator(index, name) for index, name in enumerate(HOSTILE)]
    text = profile_page(HOSTILE[0], profile(*operators), PEAKS)
    page = _Page(text)
    assert page.tags["script"] == 1
    assert "img" not in page.tags
    assert not {name for name, _ in page.attributes} & {"src", "href", "onerror", "onclick"}
    assert page.tags["tr"] == 1 + len(HOSTILE)
    assert "\x1b" not in text
    text.encode()
    assert "default-src 'none'" in text


def test_a_page_of_many_operators_is_bounded() -> None:
    count = 10_000
    operators = [
        operator(index, f"/s{index // 100}/b{index // 10}/op{index}", 10.0 + index % 7) for index in range(count)
    ]
    text = profile_page("m", profile(*operators, runs=1), PEAKS)
    page = _Page(text)
    assert page.tags["tr"] == 1 + pages.MOST_ROWS
    assert page.tags["rect"] < 5 * 1200
    assert len(text) < 3 << 20
    assert f"{pages.MOST_ROWS:,} of 10,000 operators" in text


def shape_of(stage: Stage) -> list[Any]:
    return [*(shape_of(part) for part in stage.parts.values()), *(item.index for item in stage.operators)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/l1/a/conv", "/l1/a/relu", "/l1/b/conv", "/l2/conv", "/out"], [[[0, 1], 2], 3, 4]),
        (["m_stage1_conv0_fwd", "m_stage1_conv1_fwd", "m_stage2_conv0", "m_stage2_conv1"], [[0, 1], [2, 3]]),
        (["Conv_0", "Relu_1", "Conv_2"], [0, 1, 2]),
        (["/" * 5000, "." * 5000, ""], [0, 1, 2]),
    ],
)
def test_stages_follow_from_names(names: list[str], expected: list[Any]) -> None:
    root = stages("m", [operator(index, name) for index, name in enumerate(names)])
    assert shape_of(root) == expected
    assert root.nanoseconds == 1000 * len(names)


def test_an_operator_is_compared_with_what_bounds_it() -> None:
    product = operator(0, "a", macs=20_000, nbytes=1000, tensors=("int8[4,8]", "int8[8]"))
    limit = PEAKS.limit(product)
    assert limit is not None
    assert limit.bound == "compute"
    assert (limit.compute, limit.memory) == pytest.approx((0.05, 0.005))
    floats = PEAKS.limit(operator(0, "a", macs=20_000, nbytes=1000, tensors=("float32[4,8]", "float32[8]")))
    assert floats is not None
    assert floats.share == pytest.approx(0.2)
    copied = PEAKS.limit(operator(0, "a", nbytes=25_000, tensors=("int8[25000]",)))
    assert copied is not None
    assert copied.bound == "memory"
    assert copied.share == pytest.approx(0.5)
    assert PEAKS.limit(operator(0, "a")) is None
    assert PEAKS.limit(operator(0, "a", 0.0, nbytes=5)) is None


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured: list[int] = []

    def measure(processor: str, threads: int) -> Peaks:
        measured.append(threads)
        return Peaks(processor, threads, 1e9, 4e9 * len(measured), ((64, 1e9), (128, 5e8)))

    monkeypatch.setattr(peaks, "measured_peaks", measure)
    first = peaks.machine_peaks(1)
    assert peaks.machine_peaks(1) == first
    assert peaks.machine_peaks(2) == peaks.machine_peaks(2) != first
    assert measured == [1, 2]
    for entry in (tmp_path / "mlfc").iterdir():
        entry.write_text("{}")  # the content does not match the file name
    assert peaks.machine_peaks(1).int8 == 12e9


def test_balance_is_the_mean_by_the_longest() -> None:
    assert operator(0, "a", threads=(100.0, 50.0)).balance == pytest.approx(0.75)
    assert operator(0, "a", threads=(100.0,)).balance is None


def test_numbers_of_a_call_are_what_they_are_in_it() -> None:
    n, m = Symbol("n"), Symbol("m")
    places = {n: 0, m: 1}
    for extent in (n.dim * 64, n.dim * m.dim + 3, maximum(n.dim - 2, m.dim) // 3, (n.dim * 5) % 7, 12):
        assert counted(count_text(extent, places), [4, 9]) == substituted(extent, {n: 4, m: 9})
    assert tensor_in_call(tensor_text("float32", (1, n.dim * 2), places), [8, 1]) == "float32[1,16]"
    assert tensor_text("int8", (n.dim,), {}) == "int8[?]"
    for hostile in ("", "n9", "+", "1 2", "1 0 //", "x", "2 " + "n0 * " * 300):
        assert counted(hostile, [1 << 40]) is None
    assert tensor_in_call("nonsense", []) == "nonsense"


def test_different_names_stay_different() -> None:
    names = ["/m/" + "a" * 90 + str(index) + "b" * 90 for index in range(12)]
    shown = distinct([*names, names[0]], 20)
    assert len({*shown}) == 12
    assert shown[0] == shown[-1]
    assert max(map(len, shown)) <= 20
    assert distinct(["/m/a", "/m/b"], 20) == ["/m/a", "/m/b"]
