"""Experiments on models whose heads are known, because they were written down."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import edits
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.experiments import ablation, knockout, patching
from headwise.experiments.blocks import replacing_inputs
from tests.edits.test_generate import llama


class Carrier(nn.Module):
    """Each token is a number. Head `which` of `heads` adds that of the token before to each token; the others add 0."""

    def __init__(self, heads: int, which: int) -> None:
        super().__init__()
        self.heads, self.which = heads, which

    def forward(self, x: Tensor) -> Tensor:  # [B, N]
        n = x.shape[1]
        places = torch.eye(n).expand(len(x), self.heads, n, n)
        queries = 40.0 * places.roll(-1, -1)  # the query at i looks for i - 1
        values = torch.zeros(len(x), self.heads, n, 1)
        values[:, self.which, :, 0] = x
        out = scaled_dot_product_attention(queries, places.contiguous(), values, scale=1.0)
        moved = out[..., 0].sum(1)
        return x + torch.cat([torch.zeros_like(moved[:, :1]), moved[:, 1:]], 1)


class Chain(nn.Module):
    """Three tokens: head 1 of layer 0 carries the first number to the second token, head 0 of layer 1 to the third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Carrier(2, 1), Carrier(2, 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def last(out: Tensor) -> Tensor:
    return out[:, -1]


CLEAN, OTHER = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), torch.zeros(2, 3)


def test_patching_finds_the_heads_that_carry_the_number() -> None:
    model = Chain()
    assert model(CLEAN)[:, -1].tolist() == [1.0, 3.0]  # through both layers
    found = patching(model, CLEAN, OTHER, last)
    assert found.layers == ("first", "second")
    torch.testing.assert_close(found.effects, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(found.attributed, found.effects)  # the model is linear in its values
    assert found.correlation == pytest.approx(1.0)
    assert (found.clean, found.corrupted) == (2.0, 0.0)
    assert "1.000  first, head 1" in str(found)


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_patching_over_positions(batch: int) -> None:
    found = patching(Chain(), CLEAN, OTHER, last, over="positions", batch=batch)
    expected = torch.zeros(2, 2, 3)
    expected[0, 1, 1] = expected[1, 0, 2] = 1.0
    torch.testing.assert_close(found.effects, expected)
    torch.testing.assert_close(found.attributed, expected)
    assert sorted(found.strongest(2), key=str) == [(1.0, "first", 1, 1), (1.0, "second", 0, 2)]


def difference(out: Any) -> Tensor:
    return out.logits[:, -1, 3] - out.logits[:, -1, 4]


def test_patching_is_the_edit_of_each_head() -> None:
    model = llama("sdpa")
    clean, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 6, 7, 8]])
    found = patching(model, {"input_ids": clean}, {"input_ids": other}, difference, where="layers.1", batch=3)
    with torch.no_grad(), headwise.watch(model, values=True) as seen:
        best = difference(model(clean))
    with torch.no_grad():
        worst = difference(model(other))
    for head in range(4):
        with torch.no_grad(), headwise.edit(model, edits.patch("layers.1", seen, "output", heads=head)):
            m = difference(model(other))
        assert float(found.effects[0, head]) == pytest.approx(float((m - worst) / (best - worst)), abs=1e-4)


def test_patching_over_residual_is_a_hook_of_each_block_by_hand() -> None:
    model = llama("sdpa")
    clean, other = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 6, 7, 8]])
    found = patching(model, clean, other, difference, over="residual", batch=3, tokens=[list("abcd")])
    assert found.layers == tuple(f"model.layers.{i}" for i in range(len(model.model.layers)))
    assert found.effects.shape == (len(found.layers), 1, 4)

    def measure(ids: Tensor, hook: Any, layer: int) -> Tensor:
        handle = model.model.layers[layer].register_forward_pre_hook(hook)
        with torch.no_grad():
            out = difference(model(ids))
        handle.remove()
        return out

    for layer in range(len(found.layers)):
        kept: list[Tensor] = []
        best = measure(clean, lambda _, args, kept=kept: kept.append(args[0].clone()), layer)
        worst = measure(other, lambda *_: None, layer)
        for position in range(4):

            def put(_: Any, args: Any, position: int = position, kept: list[Tensor] = kept) -> tuple[Any, ...]:
                x = args[0].clone()
                x[:, position] = kept[0][:, position]
                return (x, *args[1:])

            effect = (measure(other, put, layer) - worst) / (best - worst)
            assert float(found.effects[layer, 0, position]) == pytest.approx(float(effect), abs=1e-4)
    assert found.effects[0, 0].tolist() == pytest.approx([1, 0, 0, 0], abs=1e-4)  # they differ in the first token alone
    assert "1.000  model.layers.0, position 0" in str(found)


def test_knockout_finds_the_layers_through_which_the_number_flows() -> None:
    found = knockout(Chain(), CLEAN, last, queries=1, keys=0)
    assert found.layers == ("first", "second")
    # The query then attends to the two other keys alike, whose numbers are 0.
    torch.testing.assert_close(found.changes, torch.tensor([-2.0, 0.0]))
    # Here one of the two others is the first token: half of its number arrives.
    torch.testing.assert_close(knockout(Chain(), CLEAN, last, queries=2, keys=1).changes, torch.tensor([1.0, -1.0]))
    both = knockout(Chain(), CLEAN, last, queries="c", keys="b", window=3, tokens=[["a", "b", "c"]] * 2)
    torch.testing.assert_close(both.changes, torch.tensor([0.5, 0.5]))
    assert str(both).splitlines() == ["metric: 2; blocked in a window around", "first   +0.5", "second  +0.5"]


def test_ablation_finds_the_heads_that_are_needed() -> None:
    model = Chain()
    found = ablation(model, CLEAN, last)
    torch.testing.assert_close(found.changes, torch.tensor([[0.0, -2.0], [-2.0, 0.0]]))
    assert found.plain == 2.0
    assert str(found).splitlines()[:2] == ["metric: 2", "-2 without head 1 of first"]
    by_position = ablation(model, CLEAN, last, over="positions").changes
    assert by_position.flatten().nonzero().flatten().tolist() == [
        4,
        8,
    ]  # layer 0, head 1, token 1; layer 1, head 0, token 2
    means = {"first": torch.tensor([[0.0], [1.0]]), "second": torch.zeros(2, 1)}
    changed = ablation(model, CLEAN, last, means=means).changes
    torch.testing.assert_close(changed, torch.tensor([[0.0, 0.0], [-2.0, 0.0]]))  # 1 arrives twice
    with pytest.raises(ArgumentError, match=r"expected a mean \[2, 1\] of second in means"):
        ablation(model, CLEAN, last, means={"first": torch.zeros(2, 1)})


def test_what_does_not_fit() -> None:
    model = Chain()
    with pytest.raises(
        ArgumentError, match=r'over must be "heads", "positions", "edges" or "residual"\. Received: over=\'mlps\''
    ):
        patching(model, CLEAN, OTHER, last, over="mlps")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r'over must be "heads" or "positions"\. Received: over=\'edges\''):
        ablation(model, CLEAN, last, over="edges")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"the weights of first are \[2, 2, 3, 3\]"):
        patching(model, CLEAN, torch.zeros(2, 4), last, over="edges")
    with pytest.raises(ArgumentError, match="the metric is the same for both inputs"):
        patching(model, CLEAN, CLEAN, last)
    with pytest.raises(ShapeError, match=r"metric: expected a number for each example, \[2\]\. Received: \[2, 3\]"):
        patching(model, CLEAN, OTHER, lambda out: out)
    with pytest.raises(
        ShapeError, match=r"the outputs of first are \[2, 2, 3, 1\] in the clean run\. Received: \[2, 2, 4, 1\]"
    ):
        patching(model, CLEAN, torch.zeros(2, 4), last)
    with pytest.raises(ArgumentError, match=r"expected blocks with attention.*Received: Chain"):
        patching(model, CLEAN, OTHER, last, over="residual")
    with pytest.raises(ArgumentError, match=r"that 0 reads the residual stream first"):
        patching(nn.Sequential(Carrier(2, 1)), CLEAN, OTHER, last, over="residual")
    with pytest.raises(ArgumentError, match="window must be an odd number of layers"):
        knockout(model, CLEAN, last, queries=1, keys=0, window=2)


def test_each_run_of_a_layer_is_patched_on_its_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.carrier = Carrier(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.carrier(self.carrier(x))

    clean, other = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0, 2.0, 3.0]])
    found = patching(Twice(), clean, other, last)
    assert found.layers == ("carrier", "carrier (run 2)")
    # x3 + 2 x2 + x1: the first run carries x1 to the second token, and the second run carries that to the third.
    torch.testing.assert_close(found.effects, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))


def test_a_metric_that_cannot_be_asked() -> None:
    given = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0, 2.0, 3.0]])
    with pytest.raises(ArgumentError, match="attribution patching needs its gradient"):
        patching(Chain(), *given, lambda out: out[:, -1].detach())
    with pytest.raises(DtypeError, match=r"expected floating-point numbers\. Received: torch\.bool"):
        patching(Chain(), *given, lambda out: out[:, -1] > 0)
    with pytest.raises(ArgumentError, match=r"drops out at random\. Call model\.eval\(\) first"):
        patching(nn.Sequential(Chain(), nn.Dropout(0.5)), *given, last)
    with pytest.raises(ArgumentError, match="There was none"):
        patching(nn.Identity(), *given, last)


def test_what_writes_over_the_residual_stream_does_not_reach_what_came_before() -> None:
    block, x = nn.Linear(4, 4), torch.ones(1, 2, 4)
    with replacing_inputs({"block": block}, lambda given, _: given.zero_()):
        assert torch.equal(block(x), block.bias.expand(1, 2, 4))
    assert bool((x == 1).all())
