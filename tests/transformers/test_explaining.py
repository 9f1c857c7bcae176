"""What is said of the kernels that a model's layers take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers

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


def test_layers_that_ask_no_registry_are_listed() -> None:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 50}
    config = transformers.AutoConfig.for_model("longt5", **sizes, decoder_start_token_id=0)
    model = transformers.AutoModel.from_config(config, attn_implementation="headwise").eval()
    ids = torch.arange(3, 9)[None]
    found = explain(model, input_ids=ids, decoder_input_ids=ids)
    assert all(name.startswith("decoder.") for name in found.plans)
    local = "encoder.block.0.layer.0.LocalSelfAttention"
    assert list(found.others) == [local]
    assert f"{local}: not headwise's (matmul and softmax" in str(found)


def test_other_threads_are_not_disturbed() -> None:
    model, ids = make("llama", "headwise"), torch.arange(3, 13)[None]
    with ThreadPoolExecutor(2) as pool, torch.no_grad():
        expected = model(ids).logits
        explained = [pool.submit(explain, model, ids) for _ in range(8)]
        served = [pool.submit(model, ids) for _ in range(8)]
        assert all(torch.equal(x.result().logits, expected) for x in served)
        assert all(len(x.result().plans) == 2 for x in explained)


def test_a_model_with_other_attention_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Received: LlamaForCausalLM, of which no attention call"):
        explain(make("llama", "eager"), **tokens(1))
    config = transformers.AutoConfig.for_model("bloom", hidden_size=32, n_layer=1, n_head=4, vocab_size=50)
    bloom = transformers.AutoModel.from_config(config, attn_implementation="headwise")
    with pytest.raises(ArgumentError, match="asks no registry of transformers"):
        explain(bloom, torch.arange(3, 9)[None])
