"""Each edit on numbers that a reader can check by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise import edits, masks
from headwise.edits import Edit
from headwise.errors import ArgumentError, RecordError, ShapeError

LOG3 = math.log(3.0)
# Of each query the scores of the two keys: weights (1/4, 3/4) and (1/2, 1/2). The second head has them turned round.
SCORES = torch.tensor([[[[0.0, LOG3], [0.0, 0.0]], [[LOG3, 0.0], [0.0, 0.0]]]])
VALUES = torch.tensor([[[[1.0], [0.0]], [[1.0], [0.0]]]])  # so that the output is the weight on the first key


class Fused(nn.Module):
    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        keys = torch.eye(scores.shape[-1]).expand_as(scores)
        return functional.scaled_dot_product_attention(scores, keys, v, scale=1.0)


class ByHand(nn.Module):
    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        keys = torch.eye(scores.shape[-1]).expand_as(scores)
        return (scores @ keys.mT).softmax(-1) @ v


class Own(nn.Module):
    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        keys = torch.eye(scores.shape[-1]).expand_as(scores).contiguous()
        return headwise.attention(scores, keys, v, scale=1.0)


@pytest.fixture(params=[Fused, ByHand, Own])
def model(request: pytest.FixtureRequest) -> nn.Module:
    module: nn.Module = request.param()
    return module


def weights_on_the_first_key(model: nn.Module, edit: Edit | list[Edit], **more: Any) -> list[list[float]]:
    """[H][Q]"""
    with torch.no_grad(), headwise.edit(model, edit, **more):
        out = model(SCORES, VALUES)
    with torch.no_grad():
        assert torch.allclose(model(SCORES, VALUES)[0, :, :, 0], torch.tensor([[0.25, 0.5], [0.75, 0.5]]))
    found: list[list[float]] = out[0, :, :, 0].tolist()
    return found


HALF = [0.5, 0.5]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (edits.ablate("*"), [[0, 0], [0, 0]]),
        (edits.ablate("*", heads=1), [[0.25, 0.5], [0, 0]]),
        (edits.ablate("*", heads=[-1]), [[0.25, 0.5], [0, 0]]),
        (edits.ablate("*", heads=0, how="mean"), [[0.25, 0.375], [0.75, 0.5]]),  # the mean up to the query
        (edits.head_mask("*", 2.0), [[0.5, 1.0], [1.5, 1.0]]),
        (edits.head_mask("*", torch.tensor([1.0, 0.5])), [[0.25, 0.5], [0.375, 0.25]]),
        (edits.block("*", keys=1), [[1, 1], [1, 1]]),
        (edits.block("*", queries=0, keys=0), [[0, 0.5], [0, 0.5]]),
        (edits.block("*", queries=torch.tensor(0), keys=np.int64(0)), [[0, 0.5], [0, 0.5]]),
        (edits.block("*", queries=-1, keys=-1, heads=0), [[0.25, 1], [0.75, 0.5]]),
        (edits.block("*"), [[0, 0], [0, 0]]),
        (edits.only("*", keys=0), [[1, 1], [1, 1]]),
        (edits.only("*", queries=slice(0, 1), keys=range(1, 2)), [[0, 0.5], [0, 0.5]]),
        (edits.steer("*", keys=0, by=3.0), [[0.5, 0.75], [0.9, 0.75]]),
        (edits.steer("*", keys=0, by=1 / 3, heads=1), [[0.25, 0.5], [0.5, 0.25]]),
        (edits.steer("*", keys=0, queries=1, by=3.0), [[0.25, 0.75], [0.75, 0.75]]),
        (edits.steer("*", keys=0, to=0.9), [[0.9, 0.9], [0.9, 0.9]]),
        (edits.steer("*", keys=[0, 1], to=0.5), [[0.25, 0.5], [0.75, 0.5]]),  # they have all of it
        (edits.temperature("*", 0.5), [[0.1, 0.5], [0.9, 0.5]]),
        (edits.temperature("*", 0.5, heads=0), [[0.1, 0.5], [0.75, 0.5]]),
        (edits.topk("*", 1), [[0, 1], [1, 1]]),
        (edits.topk("*", 5), [[0.25, 0.5], [0.75, 0.5]]),
        (edits.window("*", 0), [[1, 0], [1, 0]]),
        (edits.window("*", 1), [[1, 0.5], [1, 0.5]]),
        (edits.window("*", 0, first=1, heads=1), [[0.25, 0.5], [1, 0.5]]),
        (edits.weights("*", lambda w, at, rows: 1 - w), [[0.75, 0.5], [0.25, 0.5]]),
        (edits.weights("*", lambda w, at, rows: 1 - w, heads=0), [[0.75, 0.5], [0.75, 0.5]]),
        (edits.output("*", lambda out, at: out + 1, heads=0), [[1.25, 1.5], [0.75, 0.5]]),
    ],
    ids=lambda x: x.name if isinstance(x, Edit) else "",
)
def test_an_edit(model: nn.Module, edit: Edit, expected: list[list[float]]) -> None:
    found = torch.tensor(weights_on_the_first_key(model, edit))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_a_function_of_the_call(model: nn.Module) -> None:
    import dataclasses

    def colder(call: Any, at: Any) -> Any:
        assert (at.kind, at.step, at.batch, at.heads) == ("self", 0, 1, 2)
        assert at.queries.tolist() == at.keys.tolist() == [[0, 1]]
        return dataclasses.replace(call, scale=2 * call.scale)

    found = weights_on_the_first_key(model, edits.call("*", colder))
    torch.testing.assert_close(torch.tensor(found), torch.tensor([[0.1, 0.5], [0.9, 0.5]]))


def test_several_edits_are_applied_in_their_order(model: nn.Module) -> None:
    found = weights_on_the_first_key(
        model, [edits.steer("*", keys=0, by=3.0), edits.temperature("*", 0.5), edits.ablate("*", heads=1)]
    )
    torch.testing.assert_close(torch.tensor(found), torch.tensor([[0.5, 0.9], [0.0, 0.0]]))


def test_texts(model: nn.Module) -> None:
    names = [["The", "animal"]]
    found = weights_on_the_first_key(model, edits.block("*", queries="The", keys="animal"), tokens=names)
    assert found == [[1.0, 0.5], [1.0, 0.5]]
    found = weights_on_the_first_key(model, edits.block("*", keys=lambda label, i: label[0] == "a"), tokens=names)
    assert found == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("what", ["weights", "output", "q", "k", "v"])
def test_a_patch_takes_what_another_run_had(model: nn.Module, what: Any) -> None:
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        other = model(SCORES.flip(-1), 2 * VALUES)
    with torch.no_grad(), headwise.edit(model, edits.patch("*", seen, what, heads=0)):
        found = model(SCORES, VALUES)
    with torch.no_grad():
        plain = model(SCORES, VALUES)
    assert torch.equal(found[:, 1], plain[:, 1])
    expected = {"weights": other / 2, "output": other, "q": other / 2, "k": plain, "v": 2 * plain}[what]
    torch.testing.assert_close(found[:, 0], expected[:, 0])


def test_a_patch_of_some_keys_of_cross_attention() -> None:
    class Cross(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v)

    model, (q, k, v) = Cross(), (torch.randn(1, 2, n, 4) for n in (2, 5, 5))
    other = torch.randn(2, 1, 2, 5, 4)
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        model(q, *other)
    several = [edits.patch("*", seen, what, positions=[0, 4], heads=1) for what in ("k", "v")]
    with torch.no_grad(), headwise.edit(model, several):
        found = model(q, k, v)
    k, v = k.clone(), v.clone()
    k[:, 1, [0, 4]], v[:, 1, [0, 4]] = other[:, :, 1, [0, 4]]
    torch.testing.assert_close(found, model(q, k, v))

    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        model(q, *other[:, :, :, :3])
    with torch.no_grad(), headwise.edit(model, edits.patch("*", seen, "v", align=[2, -1, -1, -1, 0], heads=0)):
        found = model(q, k, v)
    v[:, 0, 0], v[:, 0, 4] = other[1, :, 0, 2], other[1, :, 0, 0]
    torch.testing.assert_close(found, model(q, k, v))
    with (
        pytest.raises(ShapeError, match=r"has 5 keys\. Received: a source with 3\. Pass align="),
        headwise.edit(model, edits.patch("*", seen, "v")),
    ):
        model(q, k, v)


def test_a_patch_of_some_positions_of_a_run_of_another_length() -> None:
    model = Fused()
    long = torch.randn(1, 2, 3, 3)
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        other = model(long, torch.randn(1, 2, 3, 1))
    edit = edits.patch("*", seen[0], "output", align=[2, -1])
    with torch.no_grad(), headwise.edit(model, edit):
        found = model(SCORES, VALUES)
    torch.testing.assert_close(found[:, :, 0], other[:, :, 2])
    torch.testing.assert_close(found[:, :, 1], model(SCORES, VALUES)[:, :, 1])
    with (
        pytest.raises(ShapeError, match=r"has 2 queries\. Received: a source with 3\. Pass align="),
        headwise.edit(model, edits.patch("*", seen[0], "output")),
    ):
        model(SCORES, VALUES)
    with (
        pytest.raises(RecordError, match="may be rotated to its position"),
        headwise.edit(model, edits.patch("*", seen[0], "q", align=[2, 0])),
    ):
        model(SCORES, VALUES)


def test_rows_without_keys_are_counted(model: nn.Module) -> None:
    with torch.no_grad(), headwise.edit(model, edits.block("*", queries=0)) as changed:
        out = model(SCORES, VALUES)
    assert out[0, :, 0, 0].tolist() == [0.0, 0.0]
    assert changed.emptied == 1


@pytest.mark.parametrize("kind", [Fused, ByHand])
def test_key_heads_are_all_the_query_heads_that_read_them(kind: type[nn.Module]) -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if kind is Fused:
                return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
            return (q @ k.mT).softmax(-1) @ v

    model, given = Grouped(), [torch.randn(1, heads, 3, 8) for heads in (4, 2, 2)]
    plain = model(*given)
    with headwise.edit(model, edits.ablate("*", key_heads=1)):
        found = model(*given)
    assert torch.equal(found[:, :2], plain[:, :2])
    assert not found[:, 2:].any()
    with (
        pytest.raises(ArgumentError, match=r"key_heads of \w+ are numbered 0 … 1\. Received: key_heads=2"),
        headwise.edit(model, edits.ablate("*", key_heads=2)),
    ):
        model(*given)


BAD: list[tuple[Any, str]] = [
    (lambda: edits.ablate(-1), r"which layer is the last is not known .*where=-1"),
    (lambda: edits.ablate("*", heads=0, key_heads=0), r"give heads= or key_heads=\. Received: heads=0, key_heads=0"),
    (lambda: edits.ablate([]), r"expected at least one layer"),
    (lambda: edits.ablate("*", how="off"), r'how must be "zero", "mean" or "resample"\. Received: how=\'off\''),
    (lambda: edits.ablate("*", steps="later"), r'steps must be "prompt", "decode", a range or None'),
    (lambda: edits.steer("*", keys=0), r"give either by= .* or to="),
    (lambda: edits.steer("*", keys=0, by=0.0), r"by must be a finite number above 0; to forbid keys use block"),
    (lambda: edits.steer("*", keys=0, to=1.5), r"to must be a number between 0 and 1\. Received: to=1\.5"),
    (lambda: edits.block("*", keys=1.5), r"block: keys must be a position.*Received: 1\.5"),
    (lambda: edits.temperature("*", 0), r"t must be a finite number above 0"),
    (lambda: edits.topk("*", 0), r"k must be an int of at least 1"),
    (lambda: edits.window("*", -1), r"before must be an int of at least 0"),
    (lambda: edits.patch("*", "x", "q"), r"source must be a record or a Seen\. Received: str"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=range(len(BAD)))
def test_arguments_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


INSIDE: list[tuple[Edit | list[Edit], str]] = [
    (edits.ablate("*", heads=2), r"heads of \w+ are numbered 0 … 1\. Received: heads=2"),
    (edits.ablate("*", examples=[0, 3]), r"examples of \w+ are numbered 0 … 0"),
    (edits.block("*", keys=2), r"the longest prompt of \w+ has 2 tokens, numbered 0 … 1\. Received: 2"),
    (edits.block("*", keys="animal"), r"the tokens that \w+ reads are not known\. Received: 'animal'\. Pass tokens="),
    (edits.ablate("*", how="resample"), r"takes the next example of the batch"),
    (edits.head_mask("*", torch.ones(3)), r"expected a number, \[2\] or \[1, 2\]"),
    (
        [edits.ablate("*", heads=0), edits.ablate("*", heads=[0, 1], how="mean")],
        r"two edits set the output of one head",
    ),
    (edits.weights("*", lambda w, at, rows: w[..., :1]), r"must return a tensor \[1, 2, 2, 2\]\. Received: \["),
    (edits.call("*", lambda call, at: None), r"must return an AttentionCall\. Received: NoneType"),
]


@pytest.mark.parametrize(("edit", "message"), INSIDE, ids=range(len(INSIDE)))
def test_what_does_not_fit_the_model(model: nn.Module, edit: Edit, message: str) -> None:
    before = model(SCORES, VALUES)
    with pytest.raises(ArgumentError, match=message), headwise.edit(model, edit):
        model(SCORES, VALUES)
    assert torch.equal(model(SCORES, VALUES), before)


def test_resampling_takes_the_next_example(model: nn.Module) -> None:
    scores = torch.stack([SCORES[0], SCORES[0].flip(-1), SCORES[0].flip(0)])
    values = torch.cat([VALUES, VALUES, VALUES])
    with torch.no_grad(), headwise.edit(model, edits.ablate("*", how="resample", heads=0)):
        found = model(scores, values)
    with torch.no_grad():
        plain = model(scores, values)
    torch.testing.assert_close(found[:, 0], plain[[1, 2, 0], 0])
    assert torch.equal(found[:, 1], plain[:, 1])


def test_a_text_that_is_not_there_is_told_with_the_nearest(model: nn.Module) -> None:
    with (
        pytest.raises(ArgumentError, match=r"block: keys: 'animals' is not among the tokens\. The nearest: 'animal'"),
        headwise.edit(model, edits.block("*", keys="animals"), tokens=[["The", "animal"]]),
    ):
        model(SCORES, VALUES)


def test_the_means_of_a_data_set(model: nn.Module) -> None:
    batches = [(SCORES, VALUES), (SCORES, 3 * VALUES)]
    means = edits.mean_outputs(model, batches)
    (mean,) = means.values()
    torch.testing.assert_close(mean, torch.tensor([[0.75], [1.25]]))  # twice the means 3/8 and 5/8
    found = weights_on_the_first_key(model, edits.ablate("*", heads=0, how="mean", means=means))
    torch.testing.assert_close(torch.tensor(found), torch.tensor([[0.75, 0.75], [0.75, 0.5]]))
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        model(SCORES, VALUES)
    found = weights_on_the_first_key(model, edits.ablate("*", heads=1, how="mean", means=seen))
    torch.testing.assert_close(torch.tensor(found), torch.tensor([[0.25, 0.5], [0.625, 0.625]]))
    with pytest.raises(ArgumentError, match=r"expected a mean output \[2, 1\] for \w+\. Received: none"):
        weights_on_the_first_key(model, edits.ablate("*", how="mean", means={}))
    with pytest.raises(ArgumentError, match="expected at least one batch"):
        edits.mean_outputs(model, [])


@pytest.mark.parametrize("hides", ["padding", "causal"])
@pytest.mark.parametrize("place", [1, 2], ids=["key", "value"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_reaches_the_queries_that_see_it_alone(hides: str, place: int, bad: float) -> None:
    """Also of an edit of the weights, in the output and in the gradients; unless the edit gives it a weight."""
    mask = masks.causal() if hides == "causal" else masks.padding(torch.arange(6) != 4)
    rows = ~mask.to_bool(6)[0, 0, :, 4]

    class Attend(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return headwise.attention(q, k, v, mask=mask)

    given = list(torch.randn(3, 1, 2, 6, 4).unbind())
    given[place][:, :, 4, 1] = bad
    module, leaves = Attend(), [x.clone().requires_grad_() for x in given]
    expected = module(*leaves)
    with headwise.edit(module, edits.weights("*", lambda weights, at, rows: weights)):
        out = module(*leaves)
    torch.testing.assert_close(out, expected, equal_nan=True)
    assert out[:, :, rows].isfinite().all()
    wanted, found = (torch.autograd.grad(x[:, :, rows].square().sum(), leaves) for x in (expected, out))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert found[0][:, :, rows].isfinite().all()
    if place == 2:
        with headwise.edit(module, edits.weights("*", lambda weights, at, rows: torch.full_like(weights, 1 / 6))):
            assert not module(*given)[..., 1].isfinite().any()
