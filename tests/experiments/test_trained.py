"""Experiments on a model that learned a small form of indirect object identification (Wang et al. 2023).

"John and Mary then John gave" -> "Mary": the name that stands once. A GPT-2 of two layers learns it in seconds.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise
from headwise import edits
from headwise.experiments import ablation, direct_logit_attribution, patching

NAMES, BEGIN, AND, THEN, GAVE = 16, 16, 17, 18, 19


def prompts(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(ids [B, 7], the name that stands once [B], the one that stands twice [B])."""
    generator = torch.Generator().manual_seed(seed)
    pair = torch.stack([torch.randperm(NAMES, generator=generator)[:2] for _ in range(count)])
    which = torch.randint(0, 2, (count,), generator=generator)
    twice, once = pair[torch.arange(count), which], pair[torch.arange(count), 1 - which]
    words = [torch.full((count,), word) for word in (BEGIN, AND, THEN, GAVE)]
    ids = torch.stack([words[0], pair[:, 0], words[1], pair[:, 1], words[2], twice, words[3]], 1)
    return ids, once, twice


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=48, n_layer=2, n_head=4, n_inner=96, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    found = transformers.GPT2LMHeadModel._from_config(config)
    optimizer = torch.optim.AdamW(found.parameters(), lr=5e-3)
    ids, once, _ = prompts(128 * 1500, 0)
    for some, right in zip(ids.split(128), once.split(128), strict=True):
        loss = nn.functional.cross_entropy(found(some).logits[:, -1], right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    return found.eval()


def test_heads_that_move_the_name(model: Any) -> None:
    ids, once, twice = prompts(64, 1)
    with torch.no_grad():
        assert float((model(ids).logits[:, -1].argmax(-1) == once).float().mean()) > 0.95

    def difference(out: Any) -> Tensor:
        rows, times = torch.arange(len(out.logits)), len(out.logits) // 64
        return out.logits[rows, -1, once.repeat(times)] - out.logits[rows, -1, twice.repeat(times)]

    direct = direct_logit_attribution(model, ids, once, twice)
    torch.testing.assert_close(direct.total, direct.logit, atol=1e-4, rtol=1e-4)
    parts = direct.heads.mean(0).float()
    means = edits.mean_outputs(model, [ids])
    lost = -ablation(model, ids, difference, means=means, batch=256).changes
    # Heads of the last layer act on the logits almost alone: what they add is what the model loses without them.
    assert float(torch.corrcoef(torch.stack([parts[1], lost[1]]))[0, 1]) > 0.9
    mover = int(parts[1].argmax())
    assert mover in lost[1].topk(2).indices.tolist()
    assert float(lost[1, mover]) > 0.5
    # Those of the first layer also act through these, which only ablation sees.
    assert float(lost[0].sum()) > 1.5 * float(parts[0].sum())
    assert float(lost[0].sum()) > 2.0
    # The head attends to the name that it moves.
    with torch.no_grad(), headwise.watch(model) as seen:
        model(ids)
    weights = seen[1].weights(rows=-1, heads=mover)[:, 0, 0]  # [B, K]
    first = ids[:, 1] == once
    right = torch.where(first, weights[:, 1], weights[:, 3]).mean()
    wrong = torch.where(first, weights[:, 3], weights[:, 1]).mean()
    assert float(right) > float(wrong)
    other = ids.clone()
    other[:, 5] = once  # now the other name stands twice
    found = patching(model, ids, other, difference, batch=256)
    assert found.clean > 2.0
    assert found.corrupted < -2.0
    assert mover in found.effects[1].topk(2).indices.tolist()
    assert found.correlation is not None
    assert found.correlation > 0.5
