"""The parts of a profile: classes, pairs, examples, windows, kinds."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.profiles import windows
from headwise.profiles.bins import BINS, MEASURES
from headwise.profiles.classes import CLASSES, classify_tokens
from headwise.profiles.examples import Example, TopExamples, Window
from headwise.profiles.kinds import KINDS, choose_kind
from headwise.profiles.pairs import PairSketch
from headwise.profiles.windows import cut_windows, make_batches
from headwise.text import Tokens

from .tiny import encode


def test_each_token_has_one_class() -> None:
    labels = ("[CLS]", "The", "[MASK]", "play", "##ing", "cats", ",", "3.5", "x2", "[SEP]")
    special = tuple(label.startswith("[") for label in labels)
    words = (None, 0, None, 1, 1, 2, 3, 4, 5, None)
    tokens = Tokens(tuple(range(10)), labels, ((0, 0),) * 10, special, "", word_ids=words)
    assert [CLASSES[place] for place in classify_tokens(tokens)] == [
        *(
            "start",
            "function word",
            "separator",
            "word",
            "word piece",
            "word",
            "punctuation",
            "number",
            "word",
            "separator",
        )
    ]


def test_a_sketch_with_room_is_exact() -> None:
    sketch = PairSketch(2, capacity=3)
    sketch.add(1, torch.tensor([5, 7, 5]), torch.tensor([1.0, 0.5, 2.0]))
    sketch.add(1, torch.tensor([7]), torch.tensor([4.0]))
    assert sketch.strongest(1, 5) == [(7, 4.5), (5, 3.0)]
    assert (sketch.strongest(0, 5), sketch.error.tolist(), sketch.total.tolist()) == ([], [0, 0], [0, 7.5])


def test_a_sketch_without_room_takes_the_next_weight_from_all() -> None:
    sketch = PairSketch(1, capacity=2)
    sketch.add(0, torch.tensor([1, 2, 3]), torch.tensor([3.0, 2.0, 0.5]))
    assert (sketch.strongest(0, 5), sketch.error.tolist()) == ([(1, 2.5), (2, 1.5)], [0.5])


def test_histograms_have_fixed_bins() -> None:
    share = next(each for each in MEASURES if each.name == "special")
    counts = share.counts(torch.tensor([[0.0, 1 / BINS, 0.999, 1.0]]), 128)
    assert counts.nonzero().tolist() == [[0, 0], [0, 1], [0, BINS - 1]]
    assert counts[0, BINS - 1] == 2
    distance = next(each for each in MEASURES if each.name == "distance")
    edges = distance.edges(63)  # log2(1 + 63) = 6: four bins to an octave
    assert [edges[place] for place in (0, 4, 8, 24)] == pytest.approx([0, 1, 3, 63])
    assert distance.counts(torch.tensor([[1.01, 3.01, 500.0]]), 63).nonzero()[:, 1].tolist() == [4, 8, 23]


@given(st.integers(1, 8), st.integers(0, 10_000))
def test_a_sketch_keeps_its_promise(capacity: int, seed: int) -> None:
    """Every weight lies between what is kept and that plus the error; the error is bounded, and so is the memory."""
    draw, sketch, true = random.Random(seed), PairSketch(1, capacity=capacity), Counter()
    for _ in range(draw.randrange(1, 12)):
        codes = [min(19, int(draw.expovariate(0.3))) for _ in range(draw.randrange(1, 30))]
        weights = [draw.random() for _ in codes]
        for code, weight in zip(codes, weights, strict=True):
            true[code] += weight
        sketch.add(0, torch.tensor(codes), torch.tensor(weights, dtype=torch.float64))
        assert len(sketch.codes[0]) == len(sketch.weights[0]) <= capacity
    error, kept = float(sketch.error[0]), dict(sketch.strongest(0, capacity))
    assert error <= sum(true.values()) / (capacity + 1) + 1e-9
    for code, weight in true.items():
        assert kept.get(code, 0.0) - 1e-9 <= weight <= kept.get(code, 0.0) + error + 1e-9


def example(text: int, query: int, key: int, score: float) -> Example:
    ids = (query, key)
    tokens = Tokens(ids, ("q", "k"), ((0, 1), (2, 3)), (False, False), "q k")
    return Example(Window(text, 0, tokens), 0, 1, score, (0.0, 1.0))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), max_size=30), st.integers(0, 99))
def test_top_examples_do_not_depend_on_the_order(rows: list[tuple[int, int, int]], seed: int) -> None:
    """The best of each pair, of these the best three."""
    examples = [example(number, *row) for number, row in enumerate(rows)]
    best: dict[tuple[int, int], Example] = {}
    for each in sorted(examples, key=lambda each: each.order):
        best.setdefault(each.pair, each)
    random.Random(seed).shuffle(examples)
    top = TopExamples(3)
    for each in examples:
        top.add(each)
    assert top.examples == list(best.values())[:3]


@given(st.text(alphabet="ab ,\n", max_size=300), st.integers(4, 9))
def test_windows_hold_every_word_once(text: str, length: int) -> None:
    found = list(cut_windows(text, 7, encode, length))
    whole = [label for label in encode(text, None).labels[1:-1] if label]
    if all(len(word) < 12 for word in text.split()):  # a longer one is cut, as no window could hold it
        assert [label for each in found for label in each.tokens.labels[1:-1]] == whole
    for each in found:
        assert len(each.tokens.ids) <= length
        assert text[each.start :].startswith(each.tokens.text)


def test_a_window_ends_at_the_end_of_a_word() -> None:
    def letters(text: str, limit: int | None) -> Tokens:  # each letter is a token, as of byte-level models
        places = [(i, i + 1) for i, letter in enumerate(text) if letter.strip()]
        kept = places[:limit]
        labels = tuple(text[a:b] for a, b in kept)
        return Tokens((1,) * len(kept), labels, tuple(kept), (False,) * len(kept), text, len(places) - len(kept))

    found = list(cut_windows("one two three", 0, letters, 5))
    assert ["".join(each.tokens.labels) for each in found] == ["one", "two", "three"]


def test_long_words_are_not_cut_where_a_piece_ends() -> None:
    text = " ".join(f"{'long' * 5}{number}" for number in range(30))
    found = list(cut_windows(text, 0, encode, 9))
    assert " ".join(label for each in found for label in each.tokens.labels[1:-1]) == text


def test_a_text_that_fills_the_memory_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LONGEST", 12)
    text = "one two three four\nfive sixsevenxeightxnine ten"
    pieces = list(windows.split_text(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 12
    assert pieces[:3] == ["one two", " three four", "\nfive"]
    assert list(windows.split_text("one two")) == ["one two"]


def test_batches_are_of_similar_length_and_not_too_large() -> None:
    found = [Window(i, 0, encode("w " * n, None)) for i, n in enumerate((9, 1, 5, 1, 2, 30))]
    batches = [[len(each.tokens.ids) for each in batch] for batch in make_batches(found, 12)]
    assert batches == [[3, 3, 4], [7], [11], [32]]


@pytest.mark.parametrize(
    ("shares", "special", "entropy", "kind"),
    [
        ({"previous token": 0.5, "itself": 0.4}, 0.9, 0.9, "previous token"),
        ({"same token": 0.31}, 0.9, 0.9, "same token"),
        ({"previous token": 0.29, "punctuation": 0.4}, 0.9, 0.9, "punctuation"),
        ({"neighbours": 0.5}, 0.9, 0.9, "neighbours"),
        ({}, 0.5, 0.9, "special tokens"),
        ({}, 0.4, 0.85, "even"),
        ({}, 0.4, 0.8, "mixed"),
        ({"induction": 0.4, "previous token": 0.39}, 0.9, 0.9, "induction"),
        ({"induction": 0.39}, 0.4, 0.8, "mixed"),
        ({"induction": 0.4, "previous token": 0.41}, 0.9, 0.9, "previous token"),
    ],
)
def test_kinds(shares: dict[str, float], special: float, entropy: float, kind: str) -> None:
    names = ("previous token", "next token", "itself", "same token", "induction", "punctuation", "neighbours")
    given, even = {name: shares.get(name, 0.0) for name in names}, {"punctuation": 0.1, "induction": 0.2}
    assert choose_kind(given, even, special, entropy)[0] == kind
    assert kind in KINDS
    for chance in (0.3, math.nan):  # half of it is chance; not known, in a file of 0.2
        assert choose_kind(given, even | {"induction": chance}, special, entropy)[0] != "induction"
