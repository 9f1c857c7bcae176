"""Every experiment on an induction circuit whose weights are written down: what they find is known by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headwise
from headwise import edits
from headwise.errors import ArgumentError
from headwise.experiments import (
    ablation,
    circuits,
    composition,
    direct_logit_attribution,
    head_scores,
    patching,
    projections,
    retrieval_scores,
)
from tests.experiments.written import D, Induction, V

BOS = V - 1
MODEL = Induction().eval()
REPEATED = torch.stack([torch.cat([torch.tensor([BOS]), torch.randperm(11).repeat(2)]) for _ in range(3)])


def test_it_copies() -> None:
    assert MODEL(REPEATED)[:, 12:-1].argmax(-1).tolist() == REPEATED[:, 13:].tolist()


def test_scores() -> None:
    found = head_scores(MODEL, V, length=11, bos=BOS)
    # A query of the second block sees its token after itself: all the weight of head 0 of layer 1.
    torch.testing.assert_close(found.induction[1, 0], torch.tensor(1.0))
    torch.testing.assert_close(found.previous_token[0, 0], torch.tensor(1.0))
    assert found.strongest("induction", 1) == [(pytest.approx(1.0), "layers.1", 0)]
    others = [found.induction[0, 0], found.induction[0, 1], found.previous_token[1, 0], found.duplicate_token[0, 1]]
    assert max(map(float, others)) < 0.2  # what a head has that attends to all alike
    assert str(found).splitlines()[:2] == ["induction", "  1.000  layers.1, head 0"]
    with pytest.raises(ArgumentError, match=r"expected vocab_size=, for a model without nn\.Embedding"):
        head_scores(MODEL.unembed)
    torch.testing.assert_close(head_scores(MODEL, length=11, bos=BOS).induction, found.induction)  # V of its table


def test_projections_are_the_written_weights_with_all_their_zeros() -> None:
    for p, layer in zip(projections(MODEL, REPEATED).values(), MODEL.layers, strict=True):
        for role in "qkv":
            written = getattr(layer, role).weight.T.unflatten(1, (2, D)).movedim(1, 0).double()
            torch.testing.assert_close(p.weight(role), written.detach())
            assert p.sources[role] == f"{p.site}.{role}.weight"  # q is 30 times v in layer 1
        torch.testing.assert_close(p.weight("o"), layer.o.weight.T.unflatten(0, (2, D)).double().detach())


def test_copying() -> None:
    found = circuits(MODEL, REPEATED)
    # W_E W_OV W_U is the identity for the induction head, -0.05 of it for the head that speaks against copying; what
    # the previous-token head writes is not read out.
    torch.testing.assert_close(found.copying, torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64))
    values = found.ov[1, 0]
    assert values[values.abs() > 0.5].tolist() == [1.0] * V
    assert found.matching.abs().max() == 0
    assert str(found).splitlines()[1] == "  1.000  layers.1, head 0"


def test_composition() -> None:
    keys = composition(MODEL, REPEATED, "k")
    # W_OV of the first and W_QK of the second have rank V and one singular value each: √V / (√V √V).
    assert keys.strongest(1) == [(pytest.approx(V**-0.5), ("layers.0", 0), ("layers.1", 0))]
    assert int((keys.scores.nan_to_num() > 1e-6).sum()) == 1  # nothing else is read
    assert 0 < keys.baseline < V**-0.5
    assert str(keys).splitlines()[1] == "  0.289  layers.0, head 0 -> layers.1, head 0"
    for kind in ("q", "v"):
        assert float(composition(MODEL, REPEATED, kind).scores.nan_to_num().max()) < 1e-6
    assert bool(keys.scores[1].isnan().all())
    assert bool(keys.scores[:, :, 0].isnan().all())
    with pytest.raises(ArgumentError, match='kind must be "q", "k" or "v"'):
        composition(MODEL, REPEATED, "o")  # type: ignore[arg-type]


def test_direct_logit_attribution() -> None:
    found = direct_logit_attribution(MODEL, REPEATED[:, :-1], REPEATED[:, -1])
    # Its own token twice (but for the last, which is left out) among 22: head 1 of layer 0 gives -0.05 · 1 / 22.
    expected = torch.tensor([[0.0, -0.05 / 22], [1.0, 0.0]], dtype=torch.float64).expand(3, 2, 2)
    torch.testing.assert_close(found.heads, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.total, found.logit)
    assert found.strongest(1) == [(pytest.approx(1.0), "layers.1", 0)]


def test_knocking_out_the_head_removes_the_copy() -> None:
    tokens, answer = REPEATED[:, :-1], REPEATED[:, -1]

    def right(logits: Tensor) -> Tensor:
        return logits[:, -1].gather(1, answer.repeat(len(logits) // 3)[:, None])[:, 0]

    found = ablation(MODEL, tokens, right)
    torch.testing.assert_close(found.changes[1], torch.tensor([-1.0, 0.0]), atol=1e-5, rtol=0)
    # Without the previous token nothing matches: the induction head attends to all alike.
    torch.testing.assert_close(found.changes[0], torch.tensor([1 / 22 - 1, 0.05 / 22]), atol=1e-5, rtol=0)
    with torch.no_grad(), headwise.edit(MODEL, edits.ablate("layers.1", heads=0)):
        assert float(MODEL(tokens)[:, -1].max()) < 0  # nothing is copied any more


@pytest.mark.parametrize("batch", [1, 32])
def test_patching_names_the_edge(batch: int) -> None:
    clean, other = torch.tensor([[BOS, 0, 1, 2, 3, 0], [BOS, 4, 1, 5, 3, 4]]), torch.tensor([[BOS, 6, 1, 2, 3, 0]])
    other = torch.cat([other, torch.tensor([[BOS, 6, 1, 5, 3, 4]])])
    found = patching(MODEL, clean, other, lambda logits: logits[:, -1, 1], over="edges", batch=batch)
    # Both times 1 follows what stands again at the end: the last query attends to it, at place 2. In the other run
    # nothing matches, and the row is even.
    assert found.effects.shape == (2, 2, 6, 6)
    assert found.strongest(1) == [(pytest.approx(1.0, abs=1e-5), "layers.1", 0, (5, 2))]
    rest = found.effects.clone()
    rest[1, 0, 5, 2] = 0.0
    assert float(rest.abs().max()) < 1e-5
    assert found.correlation == pytest.approx(1.0)
    assert float(found.attributed[1, 0, 5, 2]) == pytest.approx(1.0, abs=1e-5)
    assert str(found).splitlines()[1] == "  1.000  layers.1, head 0, query 5 to key 2"


def test_retrieval() -> None:
    text = torch.tensor([[7, 8, 0, 1, 2, 3, 9, 10, 8]])  # the needle stands after an 8, with which the text ends
    found = retrieval_scores(MODEL, text, range(2, 6))
    assert found.answer.tolist() == [[0, 1, 2, 3]]
    torch.testing.assert_close(found.scores, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert found.heads() == [("layers.1", 0)]
    assert found.copied.tolist() == [1.0]
    assert str(found).splitlines() == [
        "retrieval heads: 1 of 4; copied 100%",
        "  1.000  layers.1, head 0",
        *(f"  0.000  layers.{layer}, head {head}" for layer, head in [(0, 0), (0, 1), (1, 1)]),
    ]
    # The 9 is no token of the needle; after it the head attends to what follows the 9 of the text.
    forced = retrieval_scores(MODEL, text, range(2, 6), answer=torch.tensor([[0, 1, 9, 3]]))
    assert float(forced.scores[1, 0]) == 0.5
    assert forced.copied.tolist() == [0.75]
    # What is copied from behind the needle, or from before it, does not count.
    behind = retrieval_scores(MODEL, text, range(2, 6), answer=torch.tensor([[0, 1, 2, 3, 9]]))
    assert float(behind.scores[1, 0]) == 1.0
    assert not bool(retrieval_scores(MODEL, text, range(2, 6), answer=torch.tensor([[7, 8]])).scores.any())
    half = retrieval_scores(MODEL, text, range(2, 6), tokens=2)
    assert float(half.scores[1, 0]) == 0.5
    assert half.answer.shape == (1, 2)


def test_what_does_not_fit_a_retrieval() -> None:
    text = torch.tensor([[7, 8, 0, 1]])
    for needle in (range(2, 6), range(0), range(0, 4, 2)):
        with pytest.raises(ArgumentError, match=r"needle must be a range of places in ids \[B, N\]"):
            retrieval_scores(MODEL, text, needle)
    with pytest.raises(ArgumentError, match=r"expected an answer \[1, A\], or tokens=, not both"):
        retrieval_scores(MODEL, text, range(1, 3), answer=torch.tensor([[1]]), tokens=1)
