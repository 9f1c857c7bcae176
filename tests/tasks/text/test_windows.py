"""Windows over a long text: nothing is lost at an edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.tasks.text.windows import windows


def test_windows_share_their_ends_and_the_last_is_full() -> None:
    assert windows(10, room=6, overlap=3) == [(0, 6), (3, 9), (4, 10)]
    assert windows(6, room=6, overlap=3) == [(0, 6)]
    assert windows(0, room=6, overlap=3) == [(0, 0)]


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_each_answer_that_fits_lies_whole_in_a_window(length: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    found = windows(length, room, overlap)
    assert all(0 <= low < high <= length and high - low <= room for low, high in found)
    assert len(set(found)) == len(found)
    for start in range(length):
        for end in range(start + 1, min(start + overlap + 1, length) + 1):  # up to overlap + 1 tokens
            assert any(low <= start and end <= high for low, high in found)


def test_an_overlap_as_large_as_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap < room"):
        windows(10, room=3, overlap=3)
