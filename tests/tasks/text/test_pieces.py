"""Pieces of a text while it is written: never half a character, nothing that changes later, together the whole."""

from __future__ import annotations

import random

import pytest

from headwise.tasks.text.pieces import pieces
from headwise.tasks.text.subwords import Subwords
from headwise.tasks.text.vocabulary import Vocabulary

TEXTS = ["Zwei Hunde spielen.", "Das Café ist schön, nicht?", "日本語 🙂 ok", "two dogs don't play"] * 3


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(TEXTS, 320)


def growing(ids: list[int]) -> list[list[int]]:
    return [ids[:end] for end in range(len(ids) + 1)]


def test_a_character_of_several_tokens_comes_when_it_is_whole(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode(["a 語é"])[0][1:-1]
    found = list(pieces(growing(ids), vocabulary.decode))
    assert found == ["a", " ", "語", "é"]
    assert len(ids) > len(found)


def test_bytes_that_never_become_a_character_come_at_the_end_or_before_the_next(vocabulary: Vocabulary) -> None:
    half = vocabulary.encode(["é"])[0][1:-1]
    half = [id_ for id_ in half if "\ufffd" in vocabulary.decode([id_])][:1]
    letter = vocabulary.encode(["x"])[0][-2]
    assert list(pieces(growing([letter, *half]), vocabulary.decode)) == ["x", "\ufffd"]
    assert list(pieces(growing([letter, *half, letter]), vocabulary.decode)) == ["x", "\ufffdx"]


def test_what_is_certain_may_stand_still_and_grow_by_several(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode(["Zwei Hunde spielen."])[0][1:-1]
    found = list(pieces([[], ids[:1], ids[:1], ids], vocabulary.decode))
    assert "".join(found) == "Zwei Hunde spielen."
    assert len(found) == 2


def test_nothing_written_is_no_piece(vocabulary: Vocabulary) -> None:
    assert list(pieces([[], []], vocabulary.decode)) == []
    assert list(pieces([], vocabulary.decode)) == []


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_any_ids_in_any_order_give_the_text_that_they_give_at_once(kind: str, vocabulary: Vocabulary) -> None:
    if kind == "words":
        vocabulary = Vocabulary(Subwords.train(TEXTS, 200, lowercase=False).backend())
    draw = random.Random(0)
    for _ in range(200):
        ids = draw.choices(range(len(vocabulary)), k=draw.randrange(12))
        found = list(pieces(growing(ids), vocabulary.decode))
        assert "".join(found) == vocabulary.decode(ids)
        assert all(found)
