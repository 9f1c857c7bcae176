"""What is said of the kernels that a model's layers take."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import ArgumentError
from headwise.transformers import explain
from tests.transformers.test_attention import make, tokens


def test_each_layer_has_the_plan_of_its_call() -> None:
    model = make("gemma2", "headwise")
    found = explain(model, **tokens(1), use_cache=False)
    assert list(found.plans) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    (local,), (whole,) = found.plans.values()
    assert [repr(plan.call.mask) for plan in (local, whole)] == ["window(3, 0, offset=0)", "causal(offset=0)"]
    assert local.call.shape == (1, 4, 10, 10)
    assert not model._forward_hooks


def test_layers_that_are_alike_share_a_row() -> None:
    found = explain(make("llama", "headwise"), torch.arange(3, 13)[None], use_cache=False)
    head, _, row = str(found).splitlines()
    assert head.split()[:2] == ["layers", "kernel"]
    (plan,) = found.plans["model.layers.0.self_attn"]
    shown = f"model.layers.0.self_attn and 1 more {plan.kernel} 10 × 10, 4 heads causal(offset=0)"
    assert " ".join(row.split()).startswith(shown)
    others = {verdict.kernel for verdict in plan.verdicts if verdict.cost} - {plan.kernel}
    assert all(f"{name} " in row for name in others)


def test_a_model_with_other_attention_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Received: LlamaForCausalLM, of which no attention call"):
        explain(make("llama", "eager"), **tokens(1))
