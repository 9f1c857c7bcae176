"""Where a text stands among tokens: one place, or a sentence that says why not."""

from __future__ import annotations

import pytest

from headwise.errors import ArgumentError
from headwise.text import Patches, Tokens
from headwise.text.places import find_position, find_positions, occurrences

# 0 [CLS]  1 It  2 didn  3 '  4 t  5 play  6 ##ing  7 ,  8 it  9 , 10 it
TEXT = "It didn't playing, it, it"
SPANS = [(0, 0), (0, 2), (3, 7), (7, 8), (8, 9), (10, 14), (14, 17), (17, 18), (19, 21), (21, 22), (23, 25)]
LABELS = ("[CLS]", "It", "didn", "'", "t", "play", "##ing", ",", "it", ",", "it")
TOKENS = Tokens((0,) * 11, LABELS, tuple(SPANS), (True, *[False] * 10), TEXT)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("It", 1),  # as it is written comes before any other case
        ("DIDN", 2),  # else the case does not count
        ("[CLS]", 0),
        ("play", 5),  # no word, but the label of a token
        ("##ing", 6),
        ("it:1", 8),
        ("it:2", 10),
        (7, 7),
        (-1, -1),  # numbers are not looked at
    ],
)
def test_one_place(given: int | str, expected: int) -> None:
    assert find_position(given, TOKENS, "row") == expected


@pytest.mark.parametrize(
    ("given", "name", "said"),
    [
        (
            "it",
            "row",
            "row: 'it' occurs at 8 and 10. Choose one: row=8, the same as row='it:1'; or row=10, the same",
        ),
        (
            "it",
            "--row",
            "--row: 'it' occurs at 8 and 10. Choose one: --row 8, the same as --row it:1; or --row 10, ",
        ),
        ("it:3", "row", "row: 'it' occurs 2 times. Received: row='it:3'"),
        ("didn't", "col", "col: \"didn't\" is 3 tokens (didn, ', t), at 2, 3 and 4. Choose one: col=2"),
        ("plying", "row", "row: 'plying' is not among the tokens. The nearest: 'playing,'"),
        ("zz:1", "row", "row: 'zz:1' is not among the tokens"),
    ],
)
def test_no_place_or_several(given: str, name: str, said: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        find_position(given, TOKENS, name)
    assert str(raised.value).startswith(said)


def test_of_many_places_the_first_are_listed() -> None:
    with pytest.raises(ArgumentError, match="occurs at 0, 1, 2, 3, 4, 5, 6, 7 and 992 more places"):
        find_position("a", ["a"] * 1000, "row")


def test_labels_alone_are_enough() -> None:
    assert find_position("latent 1", ["latent 0", "latent 1"], "row") == 1
    assert find_position("3:1", ["1", "3"], "row") == 1  # a token that is a number
    assert find_position("a:1", ["a", "a:1"], "row") == 1  # a token that is written so comes first
    assert find_position("(0, 1)", Patches(1, 2).tokens(), "row") == 2
    with pytest.raises(ArgumentError, match=r"expected a number, because the tokens are not known. Received: row='it'"):
        find_position("it", None, "row")


def test_all_positions_of_a_text_or_one_of_its_occurrences() -> None:
    assert (find_positions("it", TOKENS), find_positions("it:2", TOKENS), find_positions("it:3", TOKENS)) == (
        [8, 10],
        [10],
        [],
    )


def test_a_text_of_several_tokens_is_one_occurrence() -> None:
    assert occurrences("didn't playing", TOKENS) == [[2, 3, 4, 5, 6]]
    assert occurrences("it", TOKENS) == [[8], [10]]
