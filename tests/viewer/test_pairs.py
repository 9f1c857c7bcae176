"""The strongest readable pairs: real tokens that look at other ones, more than the head's habits explain."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks
from headwise.models.checkpoint import default_model
from headwise.records import AttentionRecord, Seen
from headwise.text import Tokenizer
from headwise.viewer import inputs_of
from headwise.viewer.pairs import CELLS, Pair, find_pairs

WORDS = ["[CLS]", "the", "animal", "slept", "because", "it", "was", "tired", ".", "[SEP]"]
IT, ANIMAL, LENGTH = 5, 2, len(WORDS)


def scored(*scores: torch.Tensor, mask: masks.Mask | None = None) -> AttentionRecord:
    """A record with these scores, one matrix [Q, K] a head."""
    bias = torch.stack(scores)[None]
    nothing = torch.zeros(1, len(scores), bias.shape[2], 4)
    return headwise.attention(nothing, nothing, nothing, bias=bias, mask=mask, record=True)[1]


def even() -> torch.Tensor:
    return torch.zeros(LENGTH, LENGTH)


def looking(row: int, col: int, score: float = 3.0) -> torch.Tensor:
    found = even()
    found[row, col] = score
    return found


def pairs(*records: AttentionRecord, words: list[str] = WORDS) -> list[Pair]:
    seen = Seen(records)
    seen.tokens = [words] * records[0].shape[0]
    return find_pairs(inputs_of(seen)[0].stacks)[0]


def test_the_strongest_pair_comes_first() -> None:
    found = pairs(scored(even(), looking(IT, ANIMAL, 2)), scored(looking(7, ANIMAL), even()))
    expected = torch.tensor([0.0] * (LENGTH - 1) + [3.0]).softmax(0)[-1]
    assert found[0] == Pair(1, 0, 7, ANIMAL, pytest.approx(float(expected)), LENGTH)
    assert (found[1].layer, found[1].head, found[1].row, found[1].col) == (0, 1, IT, ANIMAL)
    assert len(found) == 2  # the even heads have none


@pytest.mark.parametrize(
    ("row", "col"),
    [(IT, 0), (0, ANIMAL), (IT, 9), (IT, 8), (8, IT), (IT, IT), (IT, 1), (4, ANIMAL)],
    ids=[
        *("to [CLS]", "from [CLS]", "to [SEP]", "to a full stop", "from a full stop", "to itself"),
        *("to an article", "from a linking word"),
    ],
)
def test_what_is_no_pair(row: int, col: int) -> None:
    assert pairs(scored(looking(row, col, 9))) == []


def test_the_first_token_is_the_sink_also_where_it_is_a_word() -> None:
    words = ["Once", *WORDS[1:]]
    assert pairs(scored(looking(IT, 0, 9), mask=masks.causal()), words=words) == []
    assert pairs(scored(looking(IT, ANIMAL, 9), mask=masks.causal()), words=words)[0].keys == IT + 1


def test_a_token_does_not_look_at_its_own_kind() -> None:
    words = [*WORDS[:3], "The", *WORDS[4:]]
    assert pairs(scored(looking(3, 1, 9)), words=words) == []


def test_a_lone_latin_letter_is_a_piece_of_a_word() -> None:
    assert pairs(scored(looking(IT, ANIMAL, 9)), words=[*WORDS[:ANIMAL], "t", *WORDS[ANIMAL + 1 :]]) == []
    assert pairs(scored(looking(IT, ANIMAL, 9)), words=[*WORDS[:ANIMAL], "猫", *WORDS[ANIMAL + 1 :]])


def test_a_model_that_reads_letters_has_pairs_of_letters() -> None:
    (found,) = pairs(scored(looking(IT, ANIMAL, 9)), words=list("the animal"))
    assert (found.row, found.col) == (IT, ANIMAL)


def test_a_habit_opens_a_page_if_there_is_nothing_better() -> None:
    """All queries attend to one word more or less; the one that does so most is shown, not the first head."""
    scores = even()
    scores[:, ANIMAL] = 1.5
    scores[7, ANIMAL] = 2.0
    assert [(each.row, each.col) for each in pairs(scored(even(), scores))] == [(7, ANIMAL)]


def test_near_words_count_less() -> None:
    near, far = looking(7, IT, 3.2), looking(IT, ANIMAL, 3)  # 2 and 3 words apart
    found = pairs(scored(near, far))
    assert [(each.row, each.col) for each in found] == [(IT, ANIMAL), (7, IT)]
    assert found[1].weight > found[0].weight


def test_particles_and_prepositions_of_chinese_say_nothing_either() -> None:
    words = ["[CLS]", "在", "猫", "的", "很", "它", "累", "了", "。", "[SEP]"]
    assert pairs(scored(looking(IT, ANIMAL, 9)), words=words)[0].col == ANIMAL
    for row, col in ((IT, 1), (3, ANIMAL), (7, ANIMAL)):
        assert pairs(scored(looking(row, col, 9)), words=words) == []


def test_a_bert_opens_on_the_noun_that_a_pronoun_stands_for() -> None:
    bert, tokenizer = headwise.Bert.from_pretrained(default_model()), Tokenizer.from_pretrained(default_model())
    tokens = tokenizer.encode("The animal didn't cross the street because it was too tired")
    with torch.no_grad(), headwise.watch(bert, tokens=tokens) as seen:
        bert(torch.tensor([tokens.ids]))
    first, *_ = find_pairs(inputs_of(seen)[0].stacks)[0]
    assert (tokens.labels[first.row], tokens.labels[first.col]) == ("it", "animal")
    assert first.weight == pytest.approx(float(seen[first.layer, first.head, first.row, first.col][0]), abs=1e-6)


def test_habits_count_less_than_one_strong_pair() -> None:
    previous = even()
    previous[range(1, LENGTH), range(LENGTH - 1)] = 6
    stripe = even()
    stripe[:, ANIMAL] = 6
    found = pairs(scored(previous, stripe, looking(IT, ANIMAL, 3)))
    assert [(each.head, each.row, each.col) for each in found] == [(2, IT, ANIMAL)]  # the habits are not worth a look


def test_nearly_even_attention_has_none() -> None:
    assert pairs(scored(0.3 * torch.randn(LENGTH, LENGTH), even())) == []


def test_each_example_of_a_batch_has_its_own() -> None:
    scores = torch.stack([looking(IT, ANIMAL), looking(7, 3)])[:, None]
    nothing = torch.zeros(2, 1, LENGTH, 4)
    seen = Seen([headwise.attention(nothing, nothing, nothing, bias=scores, record=True)[1]])
    seen.tokens = [WORDS, WORDS]
    found = find_pairs([stack for each in inputs_of(seen) for stack in each.stacks])
    assert [(first.row, first.col) for first, *_ in found] == [(IT, ANIMAL), (7, 3)]


def test_of_long_inputs_some_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[int]] = []
    weights = AttentionRecord.weights

    def watched(record: AttentionRecord, rows: list[int]) -> torch.Tensor:
        looked.append(rows)
        return weights(record, rows)

    monkeypatch.setattr(AttentionRecord, "weights", watched)
    length = int((CELLS / 2) ** 0.5)
    q = torch.randn(1, 3, length, 2)
    seen = Seen([headwise.attention(q, q, q, record=True)[1]])
    find_pairs(inputs_of(seen)[0].stacks)
    assert looked == [list(range(1, length, 2))]


def test_a_pair_farther_apart_than_any_other_is_found() -> None:
    words = [*WORDS[1:-1], "now"]
    scores = torch.zeros(len(words), len(words))
    scores[-1, 1] = 3
    assert [(pair.row, pair.col) for pair in pairs(scored(scores), words=words)] == [(len(words) - 1, 1)]
