"""Weights that were arranged anew before they are used, as those of TransformerLens, are still weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headwise
from headwise import edits


class Layer(nn.Module):
    """Its weights [H, M, D] become [H · D, M] at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2, 16, 8) / 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = [w.permute(0, 2, 1).reshape(16, 16) for w in self.weight[:3]]
        q, k, v = (nn.functional.linear(x, w).unflatten(-1, (2, 8)).transpose(1, 2) for w in flat)
        out = ((q @ k.clone().mT) * 8**-0.5).softmax(
            -1
        ) @ v.contiguous()  # copies of activations are none of parameters
        back = self.weight[3].permute(1, 0, 2).reshape(16, 16).contiguous()
        return nn.functional.layer_norm(x + nn.functional.linear(out.transpose(1, 2).flatten(2), back), (16,))


def test_a_second_layer_misses_nothing_and_can_be_edited() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Layer(), Layer()).eval(), torch.randn(2, 5, 16)
    with torch.no_grad(), headwise.watch(model) as seen:
        model(x)
    assert seen.layers == ["0", "1"]
    assert {line.status for line in seen.coverage()} == {"seen"}
    with torch.no_grad(), headwise.edit(model, edits.ablate("*")):
        out = model(x)
    expected = nn.functional.layer_norm(nn.functional.layer_norm(x, (16,)), (16,))
    torch.testing.assert_close(out, expected)
