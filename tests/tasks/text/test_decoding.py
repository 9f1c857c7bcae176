"""Decoding: hand-computed searches over a table of probabilities, and the cache against the whole computed anew."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from headwise.tasks.text import decoding as module
from headwise.tasks.text.decoding import write
from headwise.tasks.text.searches import Asked, drawn, search_for
from headwise.tasks.text.steps import Decoding, Steps, Written, without_repeats
from headwise.tasks.text.writing import Stepped, Writing, written

BEGIN, END = 0, 1
GREEDY = Decoding(BEGIN, END)


class Table:
    """`Steps` of a model whose next token depends on the last one alone: log p = log table[last]."""

    def __init__(self, table: list[list[float]], rows: int = 1) -> None:
        self.logits = torch.tensor(table, dtype=torch.float64).log()
        self.rows, self.asked = rows, 0

    def __call__(self, ids: Tensor) -> Tensor:
        assert len(ids) == self.rows
        self.asked += 1
        return self.logits[ids]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        assert not same_sources or len(order) == self.rows
        self.rows = len(order)


class Anew:
    """`Steps` of an encoder-decoder without a cache: everything is computed anew at each step."""

    def __init__(self, model: EncoderDecoder, source_ids: Tensor, source_real: Tensor) -> None:
        self.model, self.source_ids, self.source_real = model, source_ids, source_real
        self.ids = torch.empty(len(source_ids), 0, dtype=torch.int64)

    def __call__(self, ids: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, ids[:, None]], 1)
        return self.model(self.source_ids, self.ids, self.source_real)[:, -1]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self.ids = self.ids[order]
        if not same_sources:
            self.source_ids, self.source_real = self.source_ids[order], self.source_real[order]


def writing(steps: Steps, limits: list[int], decoding: Decoding) -> Writing:
    """The beginning of as many texts as the steps have rows."""
    cpu = torch.device("cpu")
    found = Writing(Stepped(lambda sources: steps, decoding, cpu), search_for(decoding, cpu))
    found.join([Asked([BEGIN], limit) for limit in limits])
    return found


# After the beginning 2 is likelier than 3, but all that follows 2 is unlikely, and 3 ends for certain.
#             begin end  2    3
GARDEN_PATH = [[0.0, 0.0, 0.6, 0.4], [0.25] * 4, [0.0, 0.4, 0.3, 0.3], [0.0, 1.0, 0.0, 0.0]]


def search(steps: list[list[float]] | Steps, limit: int = 5, alpha: float = 0.0, **options: Any) -> Written:
    """What a search with two beams finds."""
    decoding = Decoding(BEGIN, END, beams=2, length_penalty=alpha, **options)
    steps = Table(steps) if isinstance(steps, list) else steps
    (found,) = written(writing(steps, [limit], decoding))
    return found


def greedily(table: list[list[float]], limit: int = 5, **options: Any) -> Written:
    (found,) = written(writing(Table(table), [limit], Decoding(BEGIN, END, **options)))
    return found


class TestByHand:
    def test_greedy_takes_the_likeliest_token_and_two_beams_find_the_likeliest_text(self) -> None:
        greedy = greedily(GARDEN_PATH)
        assert greedy.ids == [2]
        assert greedy.log_probability == pytest.approx(math.log(0.6 * 0.4))
        found = search(GARDEN_PATH)
        assert found.ids == [3]
        assert found.is_finished
        assert found.score == found.log_probability == pytest.approx(math.log(0.4))

    def test_the_length_penalty_is_that_of_gnmt(self) -> None:
        found = search(GARDEN_PATH, alpha=0.6)
        assert found.score == pytest.approx(math.log(0.4) / (7 / 6) ** 0.6)  # |Y| = 2: the token and the end

    def test_it_stops_when_nothing_better_is_possible(self) -> None:
        steps = Table(GARDEN_PATH)
        search(steps, limit=50)
        assert steps.asked == 2  # after "3 end", 0.4, what goes on from 2 has at most 0.6 · 0.3

    def test_at_the_limit_an_unfinished_text_is_returned_only_where_none_ended(self) -> None:
        never_ends = [[0.0, 0.0, 0.9, 0.1], [0.25] * 4, [0.0, 0.0, 0.8, 0.2], [0.0, 0.0, 0.5, 0.5]]
        found = search(never_ends, limit=3)
        assert found.ids == [2, 2, 2]
        assert not found.is_finished
        assert found.log_probability == pytest.approx(math.log(0.9 * 0.8 * 0.8))
        greedy = greedily(never_ends, limit=3)
        assert greedy.ids == [2, 2, 2]
        assert not greedy.is_finished

    def test_what_is_never_chosen_leaves_its_probability_to_the_others(self) -> None:
        found = search(GARDEN_PATH, never=[3])
        assert found.ids == [2]
        assert found.log_probability == pytest.approx(math.log(1.0 * 0.4 / 0.7))

    def test_logits_that_are_no_numbers_are_an_error(self) -> None:
        with pytest.raises(ArgumentError, match="not numbers"):
            search([[math.nan] * 4] * 4)


class TestRepeats:
    #      begin end  2    3     After 2 comes 3, after 3 comes 2, and seldom the end.
    TABLE = ([0.0, 0.0, 0.9, 0.1], [0.25] * 4, [0.0, 0.1, 0.2, 0.7], [0.0, 0.1, 0.8, 0.1])

    def test_a_run_is_not_written_twice(self) -> None:
        found = [greedily([*self.TABLE], limit=9, no_repeat=size).ids for size in range(4)]
        # Once each token; 2 3 2 and not again 2 3, but 2, then not 2 2 nor 2 3, but the end; at last 2 would end 2 3 2
        # again, and the end is as likely as 3.
        assert found == [[2, 3] * 4 + [2], [2, 3], [2, 3, 2, 2], [2, 3, 2, 3]]

    def test_a_beam_search_keeps_to_it_too_and_its_probability_is_the_models(self) -> None:
        decoding = Decoding(BEGIN, END, beams=3, length_penalty=3.0, no_repeat=2)
        for each in written(writing(Table([*self.TABLE], 2), [9, 4], decoding)):
            pairs = list(itertools.pairwise(each.ids))
            assert len(pairs) == len(set(pairs))
            steps = itertools.pairwise([BEGIN, *each.ids, *([END] if each.is_finished else [])])
            assert each.log_probability == pytest.approx(sum(math.log(self.TABLE[a][b]) for a, b in steps))

    @given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
    def test_what_would_be_a_repeat(self, before: list[int], size: int) -> None:
        found = without_repeats(
            torch.zeros(1, 4), torch.tensor([before], dtype=torch.int64), size, torch.tensor([len(before)])
        )
        runs = {tuple(before[i : i + size]) for i in range(len(before) - size + 1)}
        for token in range(4):
            again = tuple([*before, token][-size:])
            assert (found[0, token] == -math.inf) == (again in runs)


class TestDraws:
    P = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()

    def draw(self, at: float, **options: float) -> int:
        draws = torch.tensor([at], dtype=torch.float64)
        return int(drawn(self.P, draws, Decoding(BEGIN, END, sample=True, **options)))  # type: ignore[arg-type]

    def test_a_draw_falls_among_tokens_that_lie_side_by_side(self) -> None:
        # The likeliest first: 1 up to 0.4, 3 up to 0.7, 2 up to 0.9, 0 up to 1.
        assert [self.draw(at) for at in (0.0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 0.999)] == [1, 1, 3, 3, 2, 2, 0, 0]

    def test_top_k_keeps_the_likeliest(self) -> None:
        # 1 and 3 are left, with 4/7 = 0.571 and 3/7.
        assert [self.draw(at, top_k=2) for at in (0.56, 0.58, 0.999)] == [1, 3, 3]
        assert self.draw(0.999, top_k=1) == 1

    def test_top_p_keeps_the_fewest_that_have_so_much_together(self) -> None:
        assert self.draw(0.999, top_p=0.4) == 1
        assert [self.draw(at, top_p=0.41) for at in (0.56, 0.58, 0.999)] == [1, 3, 3]  # 0.4 is too little: 1 and 3
        assert self.draw(0.999, top_p=0.69) == 3
        assert self.draw(0.999, top_p=0.71) == 2

    def test_a_low_temperature_is_greedy_and_a_high_one_even(self) -> None:
        assert self.draw(0.999, temperature=0.01) == 1
        assert [self.draw(at, temperature=1e6) for at in (0.2, 0.4, 0.6, 0.9)] == [1, 3, 2, 0]


@pytest.mark.parametrize(
    "options",
    [
        *({"beams": 0}, {"length_penalty": -0.1}, {"sample": True, "beams": 2}, {"temperature": 0.0}),
        *({"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}),
    ],
)
def test_options_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=next(reversed(options))):
        Decoding(BEGIN, END, **options)  # type: ignore[arg-type]


def test_nothing_to_write_and_nothing_to_read() -> None:
    model = random_model(0)
    assert write(model, [], [], GREEDY) == []
    with pytest.raises(ArgumentError, match="sources"):
        write(model, [[2], []], [3, 3], GREEDY)
    with pytest.raises(ArgumentError, match="limits"):
        write(model, [[2]], [0], GREEDY)


def random_model(seed: int, vocabulary: int = 12, positions: str = "rope", *, copies: bool = False) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = EncoderDecoder(
        EncoderDecoderConfig(
            *(vocabulary, None, 16, 2),
            encoder_layers=1,
            decoder_layers=2,
            positions=positions,  # type: ignore[arg-type]
            copies=copies,
        )
    )
    return model.double().eval()


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=7),
    options=st.sampled_from([{"no_repeat": 1}, {"beams": 3}, {"beams": 4, "length_penalty": 1.0, "no_repeat": 2}])
    | st.builds(dict, sample=st.just(True), temperature=st.floats(0.5, 2.0), top_k=st.integers(0, 5)),
    positions=st.sampled_from(["rope", "sinusoidal", "learned"]),
    copies=st.booleans(),
)
def test_the_cache_writes_what_is_written_without_one(
    seed: int, lengths: list[int], options: dict[str, Any], positions: str, copies: bool
) -> None:
    model = random_model(seed, positions=positions, copies=copies)
    sources = [torch.randint(2, 12, (length,)).tolist() for length in lengths]
    limits = [2 + i % 6 for i in range(len(sources))]
    decoding = Decoding(BEGIN, END, [BEGIN], **options)
    cached = write(model, sources, limits, decoding)
    anew = write(model, sources, limits, decoding, steps=Anew)
    alone = [write(model, [source], [limit], decoding)[0] for source, limit in zip(sources, limits, strict=True)]
    for one, other in zip(cached, anew, strict=True):
        assert one.ids == other.ids
        assert one.is_finished == other.is_finished
        assert one.log_probability == pytest.approx(other.log_probability)
    if not decoding.sample:  # a draw depends on the place of its source
        assert [each.ids for each in cached] == [each.ids for each in alone]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), alpha=st.floats(0.0, 2.0), limit=st.integers(1, 4))
def test_with_beams_for_everything_it_finds_what_trying_everything_finds(seed: int, alpha: float, limit: int) -> None:
    model = random_model(seed, vocabulary=4)
    source = torch.randint(0, 4, (1, 3))
    scores: dict[tuple[int, ...], float] = {}
    for length in range(limit):
        texts = list(itertools.product([0, 2, 3], repeat=length))
        ids = torch.tensor([[BEGIN, *text] for text in texts])
        log_p = model(source.expand(len(texts), -1), ids).detach().log_softmax(-1)
        following = torch.tensor([[*text, END] for text in texts])
        totals = log_p.gather(-1, following[..., None]).sum((1, 2)).tolist()
        scores |= {text: total / ((5 + length + 1) / 6) ** alpha for text, total in zip(texts, totals, strict=True)}
    best = max(scores, key=lambda text: scores[text])
    (found,) = write(model, source.tolist(), [limit], Decoding(BEGIN, END, beams=4**limit, length_penalty=alpha))
    assert tuple(found.ids) == best
    assert found.score == pytest.approx(scores[best])


def test_more_sources_than_a_batch_holds_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(3)
    sources = [[2 + i % 9] * (1 + i % 4) for i in range(11)]
    whole = write(model, sources, [5] * 11, Decoding(BEGIN, END, beams=2))
    monkeypatch.setattr(module, "ROWS", 6)
    parts = write(model, sources, [5] * 11, Decoding(BEGIN, END, beams=2))
    assert [each.ids for each in whole] == [each.ids for each in parts]
