"""Retrieval scores of a language model of transformers, against a count over its own attentions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from headwise.experiments import retrieval_scores


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=12, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=11
    )
    found = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()
    for p in found.parameters():
        p.data *= 4
    return found


def test_its_own_answer_is_that_of_generate(model: Any) -> None:
    ids = torch.randint(1, 11, (2, 20), generator=torch.Generator().manual_seed(0))  # 0 is padding
    found = retrieval_scores(model, ids, range(5, 9))
    expected = model.generate(ids, do_sample=False, min_new_tokens=4, max_new_tokens=4, pad_token_id=0)[:, 20:]
    assert found.answer.tolist() == expected.tolist()


def test_scores_are_counted_step_by_step(model: Any) -> None:
    ids = torch.randint(0, 11, (2, 20), generator=torch.Generator().manual_seed(1))
    needle = range(4, 12)
    answer = ids[:, 4:12].clone()
    answer[1, 3:] = ids[1, 14:19]  # this one says something else in the end
    found = retrieval_scores(model, ids, needle, answer=answer)
    whole = torch.cat([ids, answer], 1)
    count = torch.zeros(2, 2, 4)
    with torch.no_grad():
        for step in range(8):  # as a generation would see them
            attentions = model(whole[:, : 20 + step], output_attentions=True).attentions
            for example in range(2):
                for layer, weights in enumerate(attentions):
                    for head in range(4):
                        at = int(weights[example, head, -1].argmax())
                        count[example, layer, head] += at in needle and ids[example, at] == answer[example, step]
    assert count.sum() > 4  # chance copies: 8 heads attend somewhere in 16 steps
    torch.testing.assert_close(found.scores, (count / 8).mean(0))
    inside = [float((ids[b, 4:12, None] == answer[b]).any(1).float().mean()) for b in range(2)]
    assert found.copied.tolist() == pytest.approx(inside)
