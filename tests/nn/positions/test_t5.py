"""T5's buckets: by hand, equal to T5Attention in the encoder, the decoder and a step with a cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import attention, masks
from headwise.errors import ArgumentError
from headwise.nn.positions import T5Buckets
from tests.versions import since


def test_buckets_by_hand() -> None:
    # 8 buckets, 4 a side: distances 0 and 1 have one each, then 2 + floor(2 · ln(d/2) / ln(8/2)), at most 3.
    both = T5Buckets(1, num_buckets=8, max_distance=8)
    distances = torch.tensor([-100, -4, -3, -2, -1, 0, 1, 2, 3, 4, 100])
    assert both.buckets(distances).tolist() == [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]
    # 4 buckets, all for keys before the query
    back = T5Buckets(1, num_buckets=4, max_distance=8, bidirectional=False)
    assert back.buckets(distances).tolist() == [3, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0]


def test_bias_is_the_buckets_row() -> None:
    scheme = T5Buckets(2, num_buckets=4, max_distance=8, bidirectional=False)
    with torch.no_grad():
        scheme.relative_attention_bias.weight.copy_(torch.tensor([[0.0, 10], [1, 11], [2, 12], [3, 13]]))
    bias = scheme.bias(torch.empty(1, 2, 2, 4), torch.tensor([3, 4]), torch.arange(5))
    assert bias[0, 0].tolist() == [[2, 2, 1, 0, 0], [3, 2, 2, 1, 0]]
    assert torch.equal(bias[0, 1], bias[0, 0] + 10)


def test_rows_with_positions_of_their_own() -> None:
    scheme, q = T5Buckets(2), torch.empty(2, 2, 3, 4)
    ids = torch.tensor([[0, 0, 1], [0, 1, 2]])
    bias = scheme.bias(q, ids, ids)
    assert bias.shape == (2, 2, 3, 3)
    for row in range(2):
        assert torch.equal(bias[row : row + 1], scheme.bias(q[:1], ids[row], ids[row]))
    assert scheme.bias(q, ids[1], ids[1]).shape == (1, 2, 3, 3)


def test_the_table_learns_what_its_buckets_are_worth() -> None:
    scheme = T5Buckets(2, num_buckets=4, max_distance=8, bidirectional=False)
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    bias = scheme.bias(q, torch.arange(5), torch.arange(5))
    attention(q, k, v, bias=bias, mask=masks.causal(), scale=1.0).square().sum().backward()
    gradient = scheme.relative_attention_bias.weight.grad
    assert gradient is not None
    assert (gradient != 0).all()


# Hugging Face


def hugging_face(is_decoder: bool, **options: int):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    since("transformers", "5.20")
    config = T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=is_decoder, dropout_rate=0.0, **options)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.3)
    scheme = T5Buckets(
        4,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
        bidirectional=not is_decoder,
    )
    scheme.load_state_dict({"relative_attention_bias.weight": layer.relative_attention_bias.weight})
    return layer, scheme


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("options", [{}, {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 50}])
def test_bias_equals_t5s(is_decoder: bool, options: dict) -> None:
    layer, scheme = hugging_face(is_decoder, **options)
    q = torch.empty(1, 4, 300, 8)
    assert torch.equal(scheme.bias(q, torch.arange(300), torch.arange(300)), layer.compute_bias(300, 300))
    step = scheme.bias(q[:, :, :1], torch.tensor([299]), torch.arange(300))
    assert torch.equal(step, layer.compute_bias(1, 300, past_seen_tokens=299))


@given(st.integers(0, 1_000_000), st.booleans())
def test_no_distance_is_outside_the_table(distance: int, bidirectional: bool) -> None:
    scheme = T5Buckets(1, bidirectional=bidirectional)
    buckets = scheme.buckets(torch.tensor([-distance, distance]))
    assert 0 <= int(buckets.min()) <= int(buckets.max()) < 32


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads: expected a whole number of at least 1. Received: num_heads=0"),
        ({"num_heads": 2, "num_buckets": 7}, "num_buckets: expected an even number with bidirectional=True"),
        ({"num_heads": 2, "num_buckets": 2}, "num_buckets: expected a whole number of at least 4"),
        ({"num_heads": 2, "max_distance": 8}, "max_distance: expected more than 8.*Received: max_distance=8"),
        ({"num_heads": 2, "bidirectional": "yes"}, "bidirectional: expected one of False, True"),
        ({"num_heads": 2, "std": 0.0}, "std: expected a finite number above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        T5Buckets(**arguments)


def test_a_module_of_other_heads_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"num_heads=2. Received: num_heads=4"):
        T5Buckets(2).check(4, 8)


def test_state_and_description() -> None:
    scheme = T5Buckets(4)
    assert list(scheme.state_dict()) == ["relative_attention_bias.weight"]
    assert "4, num_buckets=32, max_distance=128, bidirectional=True" in repr(scheme)
    before = scheme.relative_attention_bias.weight.clone()
    scheme.reset_parameters()
    assert not torch.equal(scheme.relative_attention_bias.weight, before)
    assert T5Buckets(64, 256, std=0.5).relative_attention_bias.weight.std().item() == pytest.approx(0.5, rel=0.05)
