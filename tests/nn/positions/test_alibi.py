"""ALiBi: slopes by hand, equal to BLOOM and MPT; the bias that is linear in the length gives the same weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwise import attention, masks
from headwise.errors import ArgumentError, ShapeError
from headwise.masks import Mask
from headwise.nn.positions import Alibi


def queries(batch: int, heads: int, length: int, **options: object) -> Tensor:
    return torch.empty(batch, heads, length, 4, **options)  # type: ignore[arg-type]


def test_slopes_by_hand() -> None:
    assert Alibi(8).slopes.tolist() == [2.0**-h for h in range(1, 9)]  # the paper's example
    assert Alibi(2).slopes.tolist() == [2.0**-4, 2.0**-8]
    assert Alibi(1).slopes.tolist() == [2.0**-8]
    assert Alibi(3).slopes.tolist() == [2.0**-4, 2.0**-8, 2.0**-2]  # two of 2 heads, then every other of 4
    assert Alibi(6).slopes.tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


def test_bias_is_the_distance_times_the_slope() -> None:
    bias = Alibi(2).bias(queries(1, 2, 3), torch.arange(3), torch.arange(3))
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    torch.testing.assert_close(bias, -torch.stack([distance / 16, distance / 256])[None])


def test_backwards_the_bias_is_one_row() -> None:
    bias = Alibi(1).bias(queries(1, 1, 3), torch.arange(3), torch.arange(3), mask=masks.causal())
    torch.testing.assert_close(bias, torch.tensor([-2.0, -1.0, 0.0]).view(1, 1, 1, 3) / 256)


PADDING = torch.tensor([[False, False, True, True, True], [True, True, True, True, True]])


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (None, 5),
        (masks.causal(), 1),
        (masks.causal() & masks.padding(PADDING), 1),
        (masks.padding(PADDING) & masks.window(3, 0), 1),
        (masks.causal(offset=0), 1),
        (masks.window(2, 2), 5),
        (masks.causal(offset=1), 5),
        (masks.padding(PADDING), 5),
        (masks.causal() | masks.global_tokens([0]), 5),
        (masks.causal().to_bool(5), 5),
    ],
    ids=lambda value: repr(value) if isinstance(value, Mask) else None,
)
def test_one_row_exactly_where_the_mask_looks_backwards(mask: Mask | Tensor | None, rows: int) -> None:
    bias = Alibi(2).bias(queries(2, 2, 5), torch.arange(5), torch.arange(5), mask=mask)
    assert bias.shape == (1, 2, rows, 5)


def test_an_aligned_mask_looks_backwards_from_the_last_key() -> None:
    alibi, ids = Alibi(2), torch.arange(5)
    for mask in (masks.causal(), masks.causal().aligned(2, 5)):
        assert alibi.bias(queries(1, 2, 2), ids[3:], ids, mask=mask).shape == (1, 2, 1, 5)
    ahead = masks.causal(offset=4).aligned(2, 5)  # the first query, at position 3, sees key 4
    assert alibi.bias(queries(1, 2, 2), ids[3:], ids, mask=ahead).shape == (1, 2, 2, 5)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 12), st.booleans())
def test_one_row_gives_the_same_output_as_the_whole_matrix(heads: int, q_len: int, past: int, padded: bool) -> None:
    k_len = q_len + past
    q, k, v = (torch.randn(2, heads, n, 4, dtype=torch.float64) for n in (q_len, k_len, k_len))
    key_ids, mask = torch.arange(k_len), masks.causal()
    if padded:
        real = torch.ones(2, k_len, dtype=torch.bool)
        real[0, : k_len // 2] = False
        key_ids = (real.cumsum(-1) - 1) * real
        mask = mask & masks.padding(real)
    alibi = Alibi(heads)
    query_ids = key_ids[..., past:]
    dense = alibi.bias(q, query_ids, key_ids)
    linear = alibi.bias(q, query_ids, key_ids, mask=mask)
    torch.testing.assert_close(
        attention(q, k, v, mask=mask, bias=linear), attention(q, k, v, mask=mask, bias=dense), atol=1e-7, rtol=0
    )


def test_far_positions_are_told_apart() -> None:
    ids = torch.arange(1_000_000, 1_000_004)
    bias = Alibi(8).bias(queries(1, 8, 4, dtype=torch.bfloat16), ids, ids)
    torch.testing.assert_close(bias, Alibi(8).bias(queries(1, 8, 4), torch.arange(4), torch.arange(4)))
    one = queries(1, 1, 1, dtype=torch.bfloat16)
    first = Alibi(1).bias(one, torch.tensor([1_000_000]), torch.tensor([0, 1]))
    assert (first * 256).flatten().tolist() == [-1_000_000.0, -999_999.0]


def test_slopes_stay_float32_when_a_module_is_cast() -> None:
    alibi = Alibi(12)
    alibi.to(torch.bfloat16)
    assert torch.equal(alibi.slopes, Alibi(12).slopes)
    assert alibi.bias(queries(1, 12, 2, dtype=torch.bfloat16), torch.arange(2), torch.arange(2)).dtype == torch.float32


# Hugging Face


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 7, 8, 12, 16, 20, 71])
def test_slopes_equal_blooms_and_mpts(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(1, heads, 1, 9)
    mpt = build_mpt_alibi_tensor(heads, 9)[None]
    bias = Alibi(heads).bias(queries(1, heads, 9), torch.arange(9), torch.arange(9), mask=masks.causal())
    torch.testing.assert_close(bias, mpt)
    torch.testing.assert_close(bias, bloom - bloom[..., -1:])  # BLOOM counts from the first key


def test_another_max_bias_equals_mpts() -> None:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bias = Alibi(6, max_bias=4.0).bias(queries(1, 6, 5), torch.arange(5), torch.arange(5), mask=masks.causal())
    torch.testing.assert_close(bias, build_mpt_alibi_tensor(6, 5, alibi_bias_max=4)[None])


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"num_heads: expected a whole number of at least 1. Received: num_heads=0"):
        Alibi(0)
    with pytest.raises(ArgumentError, match="max_bias: expected a finite number above 0"):
        Alibi(8, max_bias=-8.0)
    with pytest.raises(ArgumentError, match=r"num_heads=8. Received: num_heads=4"):
        Alibi(8).check(4, 64)
    with pytest.raises(ShapeError, match=r"query_ids: expected \[3\] or \[1, 3\]. Received: query_ids=\[4\]"):
        Alibi(2).bias(queries(1, 2, 3), torch.arange(4), torch.arange(4))


def test_it_says_what_it_is() -> None:
    assert repr(Alibi(8)) == "Alibi(8)"
    assert repr(Alibi(8, 4.0)) == "Alibi(8, max_bias=4.0)"
    assert Alibi(8).state_dict() == {}
