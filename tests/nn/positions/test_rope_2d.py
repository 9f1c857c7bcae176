"""2-D RoPE: by hand, relative in both directions, equal to Pixtral."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.nn.positions import Rope2D
from tests.versions import since


def test_the_first_pairs_turn_by_row_the_others_by_column() -> None:
    x = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 1, 1, 4)
    # D 4, base 100: θ_0 = 1 for rows, θ_1 = 0.1 for columns; pairs (x0, x2) and (x1, x3)
    turned = Rope2D(4, base=100.0).rotate(x, torch.tensor([[2, 3]])).flatten()
    torch.testing.assert_close(turned, torch.tensor([math.cos(2), math.cos(0.3), math.sin(2), math.sin(0.3)]))


def test_scores_depend_on_the_offset_alone() -> None:
    rope = Rope2D(16)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64).unbind()
    q, k = q.expand(1, 1, 12, 16), k.expand(1, 1, 12, 16)
    places = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    scores = (rope.rotate(q, places + torch.tensor([2, 5])) * rope.rotate(k, places)).sum(-1)
    torch.testing.assert_close(scores, scores[..., :1].expand_as(scores), atol=1e-5, rtol=0)


def test_it_equals_pixtral() -> None:
    since("transformers", "5.20")
    from transformers import PixtralVisionConfig
    from transformers.models.pixtral import modeling_pixtral as hf

    config = PixtralVisionConfig(hidden_size=64, num_attention_heads=4)
    rope = Rope2D(16, base=10_000.0)
    x = torch.randn(1, 4, 30, 16)
    places = torch.cartesian_prod(torch.arange(5), torch.arange(6))
    cos, sin = hf.PixtralVisionRotaryEmbedding(config)(x, places)
    expected, _ = hf.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=0)
    torch.testing.assert_close(rope.rotate(x, places), expected, atol=1e-5, rtol=0)


def test_rows_of_a_batch_may_have_images_of_their_own() -> None:
    rope, x = Rope2D(8), torch.randn(2, 3, 6, 8)
    places = torch.stack([torch.cartesian_prod(torch.arange(a), torch.arange(6 // a)) for a in (2, 3)])
    turned = rope.rotate(x, places)
    for row in range(2):
        torch.testing.assert_close(turned[row : row + 1], rope.rotate(x[row : row + 1], places[row]))


def test_frequencies_stay_float32_when_a_module_is_cast() -> None:
    rope = Rope2D(16).half()
    assert torch.equal(rope.inverse_frequencies, Rope2D(16).inverse_frequencies)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"head_dim: expected a multiple of 4.*Received: head_dim=6"):
        Rope2D(6)
    with pytest.raises(ArgumentError, match=r"head_dim: expected a whole number of at least 1. Received: head_dim=0"):
        Rope2D(0)
    rope, x = Rope2D(8), torch.randn(2, 3, 6, 8)
    with pytest.raises(ShapeError, match=r"\(row, column\) \[6, 2\] or \[2, 6, 2\]. Received: position_ids=\[6\]"):
        rope.rotate(x, torch.arange(6))
    with pytest.raises(DtypeError, match="expected an integer tensor"):
        rope.rotate(x, torch.zeros(6, 2))
    with pytest.raises(ArgumentError, match=r"head_dim=8. Received: head_dim=4"):
        rope.check(2, 4)
