"""The steps of a generation put together by hand: one head of width 1, so that every number can be followed."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.capture.sequence import Sequence
from headwise.errors import RecordError
from headwise.records import AttentionRecord


def column(*numbers: list[float]) -> Tensor:
    """[B, 1, length, 1], a list an example."""
    return torch.tensor(numbers)[:, None, :, None]


def step(q: Tensor, k: Tensor, bias: Tensor | None = None, mask: masks.Mask | Tensor | None = None) -> AttentionCall:
    return make_call(q, k, k, bias=bias, mask=mask, scale=1.0)


def test_rows_and_keys_follow_one_another() -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0]), mask=masks.causal()), values=True)
    assert not sequence.continued
    assert sequence.extend(step(column([5.0]), column([3.0, 4.0, 6.0]))) is not None
    assert sequence.extend(step(column([7.0]), column([4.0, 6.0, 8.0]))) is not None  # a window of three
    call = sequence.call()
    assert call.q.flatten().tolist() == [1.0, 2.0, 5.0, 7.0]
    assert call.k.flatten().tolist() == call.v.flatten().tolist() == [3.0, 4.0, 6.0, 8.0]
    allowed = AttentionRecord(call).weights()[0, 0] > 0
    assert allowed.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]


def test_steps_on_the_disk(tmp_path: Path) -> None:
    """Room is made for twice as many rows as there are, so that few bytes are written again; none count as memory."""
    made: list[torch.Size] = []

    def empty(shape: torch.Size, dtype: torch.dtype) -> Tensor:
        made.append(shape)
        return torch.from_file(str(tmp_path / str(len(made))), shared=True, size=shape.numel(), dtype=dtype).view(shape)

    torch.manual_seed(0)
    x = torch.randn(1, 1, 40, 2)
    calls = [step(x[:, :, i : i + 4], x[:, :, : i + 4], mask=masks.causal()) for i in range(0, 40, 4)]
    kept, on_disk = (Sequence(calls[0], values=False, empty=each) for each in (None, empty))
    for call in calls[1:]:
        assert kept.extend(call)
        assert on_disk.extend(call)
    found, expected = on_disk.call(), kept.call()
    assert torch.equal(found.q, expected.q)
    assert torch.equal(found.k, expected.k)
    assert [shape[2] for shape in made[::2]] == [8, 16, 32, 64]
    assert (kept.nbytes > 0, on_disk.nbytes) == (True, 0)


@pytest.mark.parametrize("keys", [[9.0, 4.0, 6.0], [3.0]], ids=["other", "fewer"])
def test_what_is_no_next_step(keys: list[float]) -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0])), values=False)
    assert sequence.extend(step(column([5.0]), column(keys))) is None
    assert not sequence.continued


def test_another_scale_is_no_next_step() -> None:
    sequence = Sequence(step(column([1.0, 2.0]), column([3.0, 4.0])), values=False)
    keys = column([3.0, 4.0, 6.0])
    assert sequence.extend(make_call(column([5.0]), keys, keys, scale=2.0)) is None


def test_slopes_go_on_where_the_keys_grow() -> None:
    slopes, keys = torch.tensor([0.5]), column([3.0, 4.0, 6.0])
    first = make_call(column([1.0, 2.0]), keys[:, :, :2], keys[:, :, :2], slopes=slopes, mask=masks.causal(), scale=1.0)
    sequence = Sequence(first, values=False)
    following = make_call(column([5.0]), keys, keys, slopes=slopes, scale=1.0)
    assert Sequence(first, values=False).extend(dataclasses.replace(following, slopes=2 * slopes)) is None
    assert sequence.extend(following) is not None
    scores = AttentionRecord(sequence.call()).scores()[0, 0]
    assert scores[:2, :2].equal(first.scores()[0, 0])
    assert scores[2:].equal(following.scores()[0, 0])
    # Another sequence that the steps of this one read: each query stands at its last key, none behind the one before.
    reads = [make_call(column([x]), keys, keys, slopes=slopes, scale=1.0) for x in (1.0, 2.0)]
    assert Sequence(reads[0], values=False).extend(reads[1], among=torch.ones(1, 1, dtype=torch.bool)) is None


def test_a_first_step_that_was_changed_meanwhile() -> None:
    q = column([1.0, 2.0])
    sequence = Sequence(step(q, column([3.0, 4.0])), values=False)
    q.add_(1)
    with pytest.raises(RecordError, match="changed in place before the next step"):
        sequence.extend(step(column([5.0]), column([3.0, 4.0, 6.0])))


def beams() -> Sequence:
    """Two beams; at the third step both go on from the second one."""
    bias = torch.zeros(1, 1, 2, 2)
    sequence = Sequence(
        step(column([1.0, 2.0], [1.0, 2.0]), column([3.0, 4.0], [3.0, 4.0]), bias, masks.causal()), values=False
    )
    sequence.extend(step(column([5.0], [6.0]), column([3.0, 4.0, 7.0], [3.0, 4.0, 8.0]), torch.full((1, 1, 1, 3), 0.1)))
    both = column([3.0, 4.0, 8.0, 9.0], [3.0, 4.0, 8.0, 9.5])
    assert sequence.extend(step(column([10.0], [11.0]), both, torch.full((1, 1, 1, 4), 0.2))) is not None
    return sequence


def test_beams_are_followed() -> None:
    call = beams().call()
    assert call.q.squeeze().tolist() == [[1.0, 2.0, 6.0, 10.0], [1.0, 2.0, 6.0, 11.0]]
    assert call.k.squeeze().tolist() == [[3.0, 4.0, 8.0, 9.0], [3.0, 4.0, 8.0, 9.5]]


def test_chosen_beams() -> None:
    call = beams().call(torch.tensor([[0, 1, 1], [0, 0, -1]]))
    assert call.q.squeeze().tolist()[0] == [1.0, 2.0, 6.0, 11.0]
    assert call.k.squeeze().tolist()[0] == [3.0, 4.0, 8.0, 9.5]
    assert call.q.squeeze().tolist()[1][:3] == [1.0, 2.0, 5.0]
    allowed = AttentionRecord(call).weights()[1, 0] > 0
    assert not allowed[:, 3].any()  # the second beam ended: it has no fourth key


def test_chosen_beams_that_all_ended_before_the_last_step() -> None:
    call = beams().call(torch.tensor([[0, 0], [0, 1]]))
    assert call.shape == (2, 1, 3, 3)
    assert call.q.squeeze().tolist() == [[1.0, 2.0, 5.0], [1.0, 2.0, 6.0]]
    assert call.k.squeeze().tolist() == [[3.0, 4.0, 7.0], [3.0, 4.0, 8.0]]
    assert call.bias.shape == (1, 1, 3, 3)
    assert call.bias[0, 0, 2].tolist() == pytest.approx([0.1, 0.1, 0.1])
    allowed = AttentionRecord(call).weights()[0, 0] > 0
    assert allowed.int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@dataclass(frozen=True)
class Beam:
    """What one beam went through, written out."""

    beams: tuple[int, ...]  # its example of each step
    queries: tuple[float, ...]
    keys: tuple[float, ...]
    allowed: Tensor  # [Q, K]
    bias: Tensor  # [Q, K]


NOTHING = Beam((), (), (), torch.zeros(0, 0).bool(), torch.zeros(0, 0))


def some_mask(rng: random.Random, batch: int, q_len: int, k_len: int) -> masks.Mask | Tensor | None:
    shape = (rng.choice([1, batch]), 1, q_len, k_len)
    real = torch.tensor([[rng.random() < 0.8 for _ in range(k_len)] for _ in range(shape[0])])
    causal, window = (mask.aligned(q_len, k_len) for mask in (masks.causal(), masks.window(rng.randrange(3), 0)))
    anything = torch.tensor([rng.random() < 0.7 for _ in range(shape[0] * q_len * k_len)]).view(shape)
    ones = [None, causal, window, window & causal, masks.padding(real), causal & masks.padding(real), anything]
    return rng.choice(
        [*ones, masks.recognise(anything), masks.recognise(window.cells(torch.arange(q_len), torch.arange(k_len)))]
    )


def beam_search(rng: random.Random) -> tuple[Sequence, list[Beam], list[Beam]]:
    """(the sequence, the beams that still run, all beams that there were) of a search at random."""
    batch, sequence = rng.randint(1, 3), None
    running, all_beams = [NOTHING] * batch, []
    padded = rng.random() < 0.5  # its masks are all causal, and some of its keys are padding
    for at in range(rng.randint(2, 5)):
        new = rng.randint(1, 4) if at == 0 else rng.choice([1, 1, 2])
        parents = [running[rng.randrange(batch)] for _ in range(batch)]
        q, more = ([tuple(rng.random() for _ in range(new)) for _ in range(batch)] for _ in range(2))
        total = len(parents[0].keys) + new
        k_len = total if at == 0 or rng.random() < 0.6 else rng.randint(new + 1, total)
        keys = [(*parent.keys, *x) for parent, x in zip(parents, more, strict=True)]
        mask = some_mask(rng, batch, new, k_len)
        if padded:
            mask = masks.causal() & masks.padding(torch.tensor(keys)[:, total - k_len :] > 0.3)
        lead = rng.choice([1, batch])
        bias = rng.choice([None, torch.rand(lead, 1, new, 1), torch.rand(lead, 1, new, k_len), torch.rand(1, k_len)])
        call = step(column(*map(list, q)), column(*(list(x[total - k_len :]) for x in keys)), bias, mask)
        if sequence is None:
            sequence = Sequence(call, values=False)
        else:
            assert sequence.extend(call) is not None
        cells = torch.ones(batch, 1, new, k_len).bool()
        if call.mask is not None:
            cells = call.mask.cells(torch.arange(new), torch.arange(k_len)).expand(cells.shape)
        added = torch.zeros(cells.shape) + (0 if bias is None else bias)
        running = [
            Beam(
                (*parent.beams, b),
                (*parent.queries, *q[b]),
                keys[b],
                torch.cat([pad(parent.allowed, (0, new)), pad(cells[b, 0], (total - k_len, 0))]),
                torch.cat([pad(parent.bias, (0, new)), pad(added[b, 0], (total - k_len, 0))]),
            )
            for b, parent in enumerate(parents)
        ]
        all_beams += running
    assert sequence is not None
    return sequence, running, all_beams


def assert_beams(call: AttentionCall, beams: list[Beam]) -> None:
    q_len, k_len = call.shape[2:]
    allowed = torch.ones(1, 1, q_len, k_len).bool()
    if call.mask is not None:
        allowed = call.mask.cells(torch.arange(q_len), torch.arange(k_len))
    allowed = allowed.expand(len(beams), -1, -1, -1)[:, 0]
    bias = torch.zeros(allowed.shape) if call.bias is None else call.bias.expand(len(beams), 1, q_len, k_len)[:, 0]
    for b, beam in enumerate(beams):
        rows, cols = len(beam.queries), len(beam.keys)
        assert call.q[b].flatten().tolist()[:rows] == pytest.approx(beam.queries)
        assert call.k[b].flatten().tolist()[:cols] == pytest.approx(beam.keys)
        assert torch.equal(allowed[b, :rows, :cols], beam.allowed)
        assert not allowed[b, :, cols:].any()
        seen = beam.allowed
        assert torch.equal(bias[b, :rows, :cols][seen], beam.bias[seen])


@pytest.mark.parametrize("seed", range(40))
def test_any_masks_and_biases_in_a_beam_search(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sequence, running, all_beams = beam_search(rng)
    assert_beams(sequence.call(), running)
    chosen = [rng.choice(all_beams) for _ in range(rng.randint(1, 4))]
    longest = max(len(beam.beams) for beam in chosen)
    indices = [[*beam.beams, *[-1] * (longest - len(beam.beams))] for beam in chosen]
    assert_beams(sequence.call(torch.tensor(indices)), chosen)
