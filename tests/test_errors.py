"""What a message shows of a value that may be long."""

from __future__ import annotations

from headwise.errors import brief, shortened


def test_what_is_cut_ends_in_an_ellipsis() -> None:
    assert brief("a" * 78) == "'" + "a" * 78 + "'"
    assert brief("a" * 79) == "'" + "a" * 78 + "…"
    assert brief([1, 2, 3], 8) == "[1, 2, …"
    assert (shortened("four", 4), shortened("seven", 4)) == ("four", "sev…")
