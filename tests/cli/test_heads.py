"""The table of heads of one text: its labels, and its numbers against the weights of an eager model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headwise.call import make_call
from headwise.capture import watch
from headwise.cli.heads import summarise
from headwise.models.bert import Bert
from headwise.records import AttentionRecord, Seen, Site
from headwise.text import Tokenizer, Tokens


def test_layers_keep_their_numbers_and_tokens_their_names() -> None:
    queries = torch.zeros(1, 2, 4, 4)
    queries[0, 0, 2, 1] = queries[0, 1, 0, 3] = 9  # in head 0 token 2 looks at token 1, in head 1 token 0 at token 3
    keys = torch.eye(4).expand(1, 2, 4, 4)
    call = make_call(queries, keys, keys, scale=1.0)
    tokens = Tokens(ids=(0,) * 4, labels=tuple("abcd"), offsets=((0, 0),) * 4, special=(False,) * 4, text="")
    seen = Seen([AttentionRecord(call, site=Site(str(i), i, "self", False, 2, 2)) for i in range(6)])
    seen.tokens = [tokens]
    first, second = summarise(seen, [5])
    assert [(each.index, each.head) for each in (first, second)] == [(5, 0), (5, 1)]
    assert (first.looks_label, first.looked_at_label) == ("c", "b")
    assert (second.looks_label, second.looked_at_label) == ("a", "d")


def test_agrees_with_the_weights_of_an_eager_model(tiny_bert: Path) -> None:
    from transformers import BertModel

    tokens = Tokenizer.from_pretrained(tiny_bert).encode("the cat sat on the mat. the cat running on.")
    ids = torch.tensor([tokens.ids])
    bert = Bert.from_pretrained(tiny_bert)
    with torch.no_grad(), watch(bert, tokens=[tokens]) as seen:
        bert(ids)
    with torch.no_grad():
        eager = BertModel.from_pretrained(tiny_bert, attn_implementation="eager").eval()
        attentions = eager(ids, output_attentions=True).attentions
    positions = torch.arange(len(tokens.ids))
    away_QK = (positions[:, None] - positions).abs()

    summaries = summarise(seen, [0, 1, 2])

    assert [(each.index, each.head) for each in summaries] == [(layer, head) for layer in range(3) for head in range(2)]
    for each in summaries:
        a_QK = attentions[each.index][0, each.head].double()
        assert each.entropy == pytest.approx(-(a_QK * a_QK.log()).sum(-1).mean().item(), abs=1e-4)
        assert each.distance == pytest.approx((a_QK * away_QK).sum(-1).mean().item(), abs=1e-4)
        assert each.first_visible == pytest.approx(a_QK[:, 0].mean().item(), abs=1e-5)
        assert each.weight == pytest.approx(a_QK.max().item(), abs=1e-5)
        assert a_QK[each.looks, each.looked_at].item() == pytest.approx(a_QK.max().item(), abs=1e-5)
