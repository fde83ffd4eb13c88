"""Pooling windows against a loop over every tap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.ops.pool import Slide, adaptive_axis


@st.composite
def slides(draw: st.DrawFn) -> Slide:
    kernel, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    reach = (kernel - 1) * dilation
    before, after = draw(st.integers(0, reach)), draw(st.integers(0, reach))
    size = draw(st.integers(max(1, reach + 1 - before - after), 20))
    return Slide(size, kernel, draw(st.integers(1, 4)), dilation, before, after, draw(st.booleans()))


@given(slides())
@settings(max_examples=200, deadline=None)
def test_segments_visit_each_tap_inside_once(slide: Slide) -> None:
    visited = {}
    for segment in slide.axis(count_padding=False).segments:
        for index in range(segment.count):
            first = segment.first + index * segment.stride
            taps = [first + tap * slide.dilation for tap in range(segment.taps)]
            assert segment.start + index not in visited
            assert segment.divisor == segment.taps
            visited[segment.start + index] = taps
    for output in range(slide.output):
        places = [output * slide.stride - slide.before + tap * slide.dilation for tap in range(slide.kernel)]
        assert visited.pop(output) == [place for place in places if 0 <= place < slide.size]
    assert not visited


@given(slides())
@settings(max_examples=100, deadline=None)
def test_windows_end_where_the_padding_ends(slide: Slide) -> None:
    last = (slide.output - 1) * slide.stride - slide.before
    if slide.ceil_mode:
        assert last < slide.size
    else:
        assert last + slide.extent <= slide.size + slide.after < last + slide.extent + slide.stride


@given(st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None)
def test_adaptive_windows_cover_everything(size: int, output: int) -> None:
    windows = adaptive_axis(size, output).windows
    assert len(windows) == output
    assert windows[0].first == 0
    assert windows[-1].first + windows[-1].taps == size
    assert all(b.first <= a.first + a.taps for a, b in pairwise(windows))
    assert {window.taps for window in windows} <= {w for w in range(size // output, size // output + 3) if w > 0}
