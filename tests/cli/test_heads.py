"""The numbers of the table of heads: by hand, then against the weights of an eager model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headwise.cli.heads import HeadSummary, summarise
from headwise.functional import attention, listening
from headwise.models.bert import Bert
from headwise.records import AttentionRecord
from headwise.text import Tokenizer, Tokens
from headwise.viewer import TextAttention


def see(q_HQD: Tensor, k_HKD: Tensor) -> list[HeadSummary]:
    """The summaries of one layer, number 5, with these queries and keys."""
    size = q_HQD.shape[1]
    _, record = attention(q_HQD[None], k_HKD[None], k_HKD[None], scale=1.0, record=True)
    names = tuple("abcdefgh"[:size])
    tokens = Tokens(ids=(0,) * size, labels=names, offsets=((0, 0),) * size, special=(False,) * size, text="")
    return summarise(TextAttention(tokens=tokens, records=[record], layers=[5]))


def test_a_head_that_looks_everywhere_alike() -> None:
    (head,) = see(torch.zeros(1, 3, 4), torch.randn(1, 3, 4))
    assert (head.layer, head.head) == (5, 0)
    assert head.entropy == pytest.approx(math.log(3), abs=1e-6)
    assert head.distance == pytest.approx((1 + 2 / 3 + 1) / 3, abs=1e-6)  # of 0 1 2, 1 0 1 and 2 1 0
    assert head.on_first == pytest.approx(1 / 3, abs=1e-6)
    assert head.strongest == pytest.approx(1 / 3, abs=1e-6)


def test_a_head_that_looks_one_back() -> None:
    keys = torch.eye(4)
    looks_at = torch.tensor([0, 0, 1, 2])
    (head,) = see(60 * keys[looks_at][None], keys[None])
    assert head.entropy == pytest.approx(0, abs=1e-6)
    assert head.distance == pytest.approx(3 / 4, abs=1e-6)
    assert head.on_first == pytest.approx(2 / 4, abs=1e-6)
    assert head.strongest == pytest.approx(1, abs=1e-6)


def test_the_strongest_pair_is_found_in_each_head() -> None:
    queries = torch.zeros(2, 4, 4)
    queries[0, 2, 1] = 9  # in head 0 token 2 looks at token 1, in head 1 token 0 at token 3: the rest look everywhere
    queries[1, 0, 3] = 9
    first, second = see(queries, torch.eye(4).expand(2, 4, 4))
    assert (first.looks, first.looked_at) == (2, 1)
    assert (second.looks, second.looked_at) == (0, 3)
    assert first.strongest == pytest.approx(math.exp(9) / (math.exp(9) + 3), abs=1e-5)


def test_agrees_with_the_weights_of_an_eager_model(tiny_bert: Path) -> None:
    from transformers import BertModel

    tokens = Tokenizer.from_pretrained(tiny_bert).encode("the cat sat on the mat. the cat running on.")
    ids = torch.tensor([tokens.ids])
    records: list = []
    with torch.no_grad(), listening(lambda call, _: records.append(AttentionRecord(call))):
        Bert.from_pretrained(tiny_bert)(ids)
        eager = BertModel.from_pretrained(tiny_bert, attn_implementation="eager").eval()
        attentions = eager(ids, output_attentions=True).attentions
    positions = torch.arange(len(tokens.ids))
    away_QK = (positions[:, None] - positions).abs()

    summaries = summarise(TextAttention(tokens=tokens, records=records, layers=[0, 1, 2]))

    assert [(each.layer, each.head) for each in summaries] == [(layer, head) for layer in range(3) for head in range(2)]
    for each in summaries:
        a_QK = attentions[each.layer][0, each.head].double()
        assert each.entropy == pytest.approx(-(a_QK * a_QK.log()).sum(-1).mean().item(), abs=1e-4)
        assert each.distance == pytest.approx((a_QK * away_QK).sum(-1).mean().item(), abs=1e-4)
        assert each.on_first == pytest.approx(a_QK[:, 0].mean().item(), abs=1e-5)
        assert each.strongest == pytest.approx(a_QK.max().item(), abs=1e-5)
        assert a_QK[each.looks, each.looked_at].item() == pytest.approx(a_QK.max().item(), abs=1e-5)
