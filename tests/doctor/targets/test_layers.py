"""Every attention layer of a model: which modules those are, which are alike, and what they are called together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.targets.layers import diagnose_model, find_layers, group, together
from headwise.errors import DoctorError


class Attend(nn.Module):
    """The bare computation, as a module of its own."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, layer_idx: int, power: float = 0.5) -> None:
        super().__init__()
        self.heads, self.layer_idx, self.power = heads, layer_idx, power
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.attend = Attend()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q = q * q.shape[-1] ** (0.5 - self.power)  # what the computation divides by is then d ** power
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.mix = attention, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.attention(x))


def model(*powers: float) -> nn.Sequential:
    return nn.Sequential(*(Block(Attention(8, 2, i, power)) for i, power in enumerate(powers))).eval()


def test_a_layer_is_what_holds_the_projections_with_the_arguments_of_its_first_call() -> None:
    stack, x = model(0.5, 0.5), torch.randn(2, 3, 8)
    before = x.clone()

    def run() -> None:
        stack(x)
        stack(x + 1)

    layers = find_layers(stack, run)
    assert [layer.path for layer in layers] == ["0.attention", "1.attention"]
    assert all(isinstance(layer.module, Attention) for layer in layers)
    x.zero_()
    ((given,), kwargs) = layers[0].example
    assert kwargs == {}
    assert torch.equal(given, before)  # a copy
    assert stack[0].attention._forward_pre_hooks == {}


def test_layers_of_one_kind_differ_in_their_place_alone() -> None:
    stack, x = model(0.5, 0.5, 1.0, 0.5), torch.randn(2, 3, 8)
    kinds = group(find_layers(stack, lambda: stack(x)))
    assert [[layer.path for layer in kind] for kind in kinds] == [
        ["0.attention", "1.attention", "3.attention"],
        ["2.attention"],
    ]


def test_each_kind_is_diagnosed_once() -> None:
    stack, x = model(0.5, 1.0, 0.5), torch.randn(2, 3, 8)
    heard: list[tuple[str, int, int]] = []
    healthy, wrong = diagnose_model(stack, lambda: stack(x), say=lambda *each: heard.append(each))
    assert heard == [("0.attention", 1, 2), ("1.attention", 2, 2)]
    assert (healthy.subject, healthy.healthy) == ("Attention ({0, 2}.attention)", True)
    assert (wrong.subject, [x.name for x in wrong.bugs]) == ("Attention (1.attention)", ["wrong-scale"])


def test_a_model_without_attention() -> None:
    stack = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(DoctorError, match="no attention was seen in Sequential while it ran"):
        diagnose_model(stack, lambda: stack(torch.randn(2, 3, 8)))


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ([""], "the model"),
        (["h.0.attn", "h.1.attn", "h.2.attn"], "h.{0-2}.attn"),
        (["h.0.attn", "h.2.attn", "h.3.attn"], "h.{0, 2-3}.attn"),
        (["a.0.b.1.c", "a.1.b.2.c"], "a.0.b.1.c and 1 similar"),
        (["encoder.0.self", "encoder.1.self", "decoder.0.self"], "encoder.{0-1}.self, decoder.0.self"),
        (["conv2d.0", "conv2d.1"], "conv2d.{0-1}"),
    ],
)
def test_paths_in_a_few_words(paths: list[str], name: str) -> None:
    assert together(paths) == name
