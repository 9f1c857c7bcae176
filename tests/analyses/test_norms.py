"""Norm-based weights against vectors written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise import masks
from headwise.analyses import norm_based, summed_norm_based, value_norms
from headwise.errors import ArgumentError, DtypeError, RecordError, ShapeError
from tests.analyses.dense import Layer, by_hand, tiny_encoder

close = torch.testing.assert_close


def weighted(layer: Layer) -> Tensor:
    """α f(x), [B, H, Q, K, M], as the paper has it: no shortcut."""
    vectors = torch.einsum("bhke,hem->bhkm", layer.values, layer.projection)
    return torch.einsum("bhqk,bhkm->bhqkm", layer.weights, vectors)


def test_two_tokens_by_hand() -> None:
    # A = [[1/2, 1/2], [1/4, 3/4]]; f(x) = v W_O = (3, 4) and -2 · (3, 4), of lengths 5 and 10.
    seen = by_hand()
    seen.extras.v = torch.tensor([1.0, -2.0], dtype=torch.float64)[None, None, :, None]
    seen.extras.output_weight = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)
    expected = torch.tensor([[2.5, 5.0], [1.25, 7.5]], dtype=torch.float64)
    close(value_norms(seen)[0, 0], torch.tensor([5.0, 10.0], dtype=torch.float64))
    close(norm_based(seen)[0, 0], expected)
    close(summed_norm_based(seen)[0], expected)  # one head: nothing to sum


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.lengths([7, 3])], ids=["full", "causal", "padding"])
def test_every_tile_equals_the_vectors_written_out(mask: masks.Mask | None, block_bytes: int) -> None:
    layer = tiny_encoder(n_layers=1, mask=mask)[0]
    seen, vectors = layer.record, weighted(layer)
    close(norm_based(seen), vectors.norm(dim=-1))
    close(summed_norm_based(seen), vectors.sum(1).norm(dim=-1))
    tile = vectors[:, [3, 0]][:, :, [6, 1]][:, :, :, 2:5]
    close(norm_based(seen, [6, 1], slice(2, 5), [-1, 0]), tile.norm(dim=-1))
    close(summed_norm_based(seen, [6, 1], slice(2, 5), [-1, 0]), tile.sum(1).norm(dim=-1))
    close(norm_based(seen, rows=2, heads=1), vectors[:, [1]][:, :, [2]].norm(dim=-1))
    close(summed_norm_based(seen, cols=-1), vectors[:, :, :, -1:].sum(1).norm(dim=-1))


def test_value_norms_and_nan_behind_the_mask() -> None:
    layer = tiny_encoder(n_layers=1, mask=masks.lengths([7, 3]))[0]
    expected = torch.einsum("bhke,hem->bhkm", layer.values, layer.projection).norm(dim=-1)
    expected[1, :, 3:] = 0.0
    whole = norm_based(layer.record), summed_norm_based(layer.record)
    v = layer.record.v.clone()
    v[1, :, 3:] = float("nan")
    layer.record.extras.v = v
    close(value_norms(layer.record), expected)
    close(norm_based(layer.record), whole[0])
    close(summed_norm_based(layer.record), whole[1])


def test_an_output_weight_may_be_given_as_that_of_a_linear_layer() -> None:
    layer = tiny_encoder(n_layers=1)[0]
    linear = torch.nn.Linear(12, 6, dtype=torch.float64)
    given = linear.weight.T.unflatten(0, (4, 3))
    layer.record.extras.output_weight = None
    expected = (layer.values[0, 2, 5] @ linear.weight[:, 6:9].T).norm()
    close(value_norms(layer.record, output_weight=given)[0, 2, 5], expected.detach())
    assert not norm_based(layer.record, output_weight=given).requires_grad


def test_bad_arguments() -> None:
    layer = tiny_encoder(n_layers=1)[0]
    seen = layer.record
    with pytest.raises(ShapeError, match=r"\[4, 3, M\]. Received: output_weight=\[12, 6\]. That of a torch.nn.Linear"):
        norm_based(seen, output_weight=torch.zeros(12, 6))
    with pytest.raises(ShapeError, match=r"Received: output_weight=\[4, 3\]"):
        norm_based(seen, output_weight=torch.zeros(4, 3))
    with pytest.raises(DtypeError, match=r"output_weight must be a float tensor"):
        value_norms(seen, output_weight=torch.zeros(4, 3, 6, dtype=torch.long))
    with pytest.raises(DtypeError, match=r"Received: output_weight=list"):
        value_norms(seen, output_weight=[1.0])  # type: ignore[arg-type]
    for function in (norm_based, summed_norm_based):
        for choice in ("rows", "cols"):
            with pytest.raises(ArgumentError, match=choice + r" must lie in 0 … 6"):
                function(seen, **{choice: 7})
        with pytest.raises(ArgumentError, match=r"heads must lie in 0 … 3"):
            function(seen, heads=[4])
    seen.extras.output_weight = None
    with pytest.raises(RecordError, match=r"layer\.0 does not have the output projection.*values=True"):
        norm_based(seen)
    seen.extras.v = None
    with pytest.raises(RecordError, match=r"layer\.0 does not have values.*values=True"):
        summed_norm_based(seen, output_weight=layer.projection)
