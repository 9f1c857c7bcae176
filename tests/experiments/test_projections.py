"""The weights that are found by trial are those by which the module computes its q, k, v and output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headwise import nn as hn
from headwise.errors import ArgumentError, ProjectionError
from headwise.experiments import projections

SIZES = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {**SIZES, "hidden_size": 32, "intermediate_size": 64}
IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))


def made(name: str, config: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(config).eval()
    for p in model.parameters():  # biases and gains too
        p.data = p.data + 0.1 * torch.randn_like(p) if p.ndim == 1 else 5 * p.data
    return model


def linear(weight: Tensor, heads: int = 4) -> Tensor:
    """The weight of a Linear as [H, M, D]."""
    return weight.detach().double().T.unflatten(1, (heads, -1)).movedim(1, 0)


def onward(weight: Tensor) -> Tensor:
    """The weight of a Linear as [H, E, M]."""
    return weight.detach().double().T.unflatten(0, (4, -1))


def equal(found: Tensor | None, expected: Tensor) -> None:
    found = found.double()
    torch.testing.assert_close(found, expected.detach().double(), atol=1e-6, rtol=1e-6)


def test_gpt2_has_them_in_one_matrix() -> None:
    model = made("GPT2LMHeadModel", transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4))
    found = projections(model, IDS)
    assert list(found) == ["transformer.h.0.attn", "transformer.h.1.attn"]
    for p, block in zip(found.values(), model.transformer.h, strict=True):
        q, k, v = (x.T for x in block.attn.c_attn.weight.chunk(3, 1))
        for role, weight in (("q", q), ("k", k), ("v", v)):
            equal(p.weight(role), linear(weight))
        equal(p.weights["o"], onward(block.attn.c_proj.weight.T))
        biases = block.attn.c_attn.bias.view(3, 4, 8)
        for mine, bias in zip((p.biases["q"], p.biases["k"], p.biases["v"]), biases, strict=True):
            equal(mine, bias)
        torch.testing.assert_close(p.biases["o"], block.attn.c_proj.bias.detach().double(), atol=1e-5, rtol=1e-4)
        assert (p.rotated, p.problems) == (0, {})
        assert p.scale == pytest.approx(8**-0.5)
        norm = p.norms["q"]
        assert norm.centred
        assert norm.name.endswith("ln_1")
    assert str(found["transformer.h.0.attn"]).splitlines()[1] == (
        "  W_Q  [4, 32, 8] of transformer.h.0.attn.c_attn.weight"
    )


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_grouped_heads_before_their_rotation(kind: str) -> None:
    config = getattr(transformers, f"{kind}Config")(**WIDE, num_key_value_heads=2)
    model = made(f"{kind}ForCausalLM", config)
    for p, block in zip(projections(model, IDS).values(), model.model.layers, strict=True):
        of = block.self_attn
        equal(p.weights["q"], linear(of.q_proj.weight))
        equal(p.weights["k"], linear(of.k_proj.weight, 2))
        equal(p.weights["v"], linear(of.v_proj.weight, 2))
        equal(p.weights["o"], onward(of.o_proj.weight))
        assert p.rotated == 8
        assert p.weight("k").shape == (4, 32, 8)
        equal(p.weight("k")[1], linear(of.k_proj.weight, 2)[0])
        equal(p.biases["k"], torch.zeros(2, 8) if of.k_proj.bias is None else of.k_proj.bias.view(2, 8))
        norm = p.norms["v"]
        assert not norm.centred
        equal(norm.gain, block.input_layernorm.weight)
        equal(p.weight("v", folded=True), block.input_layernorm.weight[:, None] * p.weight("v"))


def test_pythia_has_q_k_and_v_of_each_head_together() -> None:
    model = made("GPTNeoXForCausalLM", transformers.GPTNeoXConfig(**WIDE))
    for p, block in zip(projections(model, IDS).values(), model.gpt_neox.layers, strict=True):
        weight = block.attention.query_key_value.weight.view(4, 3, 8, 32)
        bias = block.attention.query_key_value.bias.view(4, 3, 8)
        for i, (mine, added) in enumerate(
            ((p.weights["q"], p.biases["q"]), (p.weights["k"], p.biases["k"]), (p.weights["v"], p.biases["v"]))
        ):
            equal(mine, weight[:, i].mT)
            equal(added, bias[:, i])
        assert p.rotated == 2  # a quarter
        assert "2 of 8 rotated" in str(p)


def test_a_head_without_weights_stands_where_its_neighbours_say() -> None:
    config = transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4)
    model = made("BloomForCausalLM", config)
    fused = model.transformer.h[0].self_attention.query_key_value
    fused.weight.data.view(4, 3, 8, 32)[2] = 0.0  # each head has its q, k and v together
    fused.bias.data.view(4, 3, 8)[2] = 0.0
    (p,) = projections(model, IDS).values()
    for i, role in enumerate("qkv"):
        equal(p.weights[role], fused.weight.view(4, 3, 8, 32)[:, i].mT)


def test_bert_projects_the_output_in_another_module() -> None:
    model = made("BertModel", transformers.BertConfig(**WIDE))
    for p, block in zip(projections(model, IDS).values(), model.encoder.layer, strict=True):
        equal(p.weights["k"], linear(block.attention.self.key.weight))
        equal(p.weights["o"], onward(block.attention.output.dense.weight))
        assert p.sources["o"].endswith("attention.output.dense.weight")


def test_t5_and_its_cross_attention() -> None:
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    model = made("T5ForConditionalGeneration", config)
    found = projections(model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]})
    assert len(found) == 6
    cross = model.decoder.block[1].layer[1].EncDecAttention
    p = found["decoder.block.1.layer.1.EncDecAttention"]
    for mine, of in ((p.weights["q"], cross.q), (p.weights["k"], cross.k), (p.weights["v"], cross.v)):
        equal(mine, linear(of.weight))
    equal(p.weights["o"], onward(cross.o.weight))
    assert p.scale == 1.0
    assert (p.norms["q"].name, p.norms["k"].name) == ("decoder.block.1.layer.1.layer_norm", "encoder.final_layer_norm")


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_module(batch_first: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=batch_first).eval()
    module.in_proj_bias.data.normal_()
    module.out_proj.bias.data.normal_()
    x = torch.randn(2, 9, 32) if batch_first else torch.randn(9, 2, 32)
    (p,) = projections(module, (x, x, x)).values()
    for mine, weight in zip(
        (p.weights["q"], p.weights["k"], p.weights["v"]), module.in_proj_weight.chunk(3), strict=True
    ):
        equal(mine, linear(weight))
    equal(p.biases["q"], module.in_proj_bias[:32].view(4, 8))
    equal(p.weights["o"], onward(module.out_proj.weight))
    assert p.scale == pytest.approx(8**-0.5)  # wherever torch multiplies by it


@pytest.mark.parametrize("seed", range(3))
def test_headwises_own_module(seed: int) -> None:
    """Few tokens and wide heads: the slow pairs hardly turn, and look as if they were not rotated."""
    torch.manual_seed(seed)
    module = hn.MultiHeadAttention(64, 4, num_kv_heads=2, positions=hn.positions.Rope(16)).eval()
    (p,) = projections(module, torch.randn(2, 5, 64)).values()
    weights = module.qkv.weight.split(module.projection_sizes)
    for role, weight, heads in zip("qkv", weights, (4, 2, 2), strict=True):
        equal(p.weights[role], linear(weight, heads))
    assert p.rotated == 16


def test_rows_of_a_weight_that_no_module_was_called_with() -> None:
    torch.manual_seed(0)
    module = hn.MultiHeadAttention(32, 4).eval()  # of another sequence it multiplies by a part of qkv.weight
    (p,) = projections(module, (torch.randn(2, 5, 32), torch.randn(2, 6, 32))).values()
    for mine, weight in zip((p.weights["q"], p.weights["k"], p.weights["v"]), module.qkv.weight.chunk(3), strict=True):
        equal(mine, linear(weight))


def test_what_is_not_found_is_said() -> None:
    model = made("Qwen3ForCausalLM", transformers.Qwen3Config(**WIDE, head_dim=8, num_key_value_heads=2))
    p = projections(model, IDS)["model.layers.0.self_attn"]
    assert set(p.weights) == {"v", "o"}
    assert set(p.problems) == {"q", "k"}
    with pytest.raises(ProjectionError, match=r"model\.layers\.0\.self_attn: W_Q was not found: .*normalised"):
        p.weight("q")
    assert "  W_Q  not found: no parameter times" in str(p)
    (gated,) = projections(hn.MultiHeadAttention(32, 4, gate=True).eval(), torch.randn(2, 5, 32)).values()
    with pytest.raises(ProjectionError, match=r"W_O was not found: .*gated"):
        gated.weight("o")
    with pytest.raises(ArgumentError, match=r"expected at least 8 tokens at model\.layers\.0\.self_attn\. Received: 5"):
        projections(model, IDS[:1, :5])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["GPTNeoX", "GPTJ"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """GPT-J multiplies q and k in float32; what they were rounded to before is what counts."""
    own = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4} if name == "GPTJ" else WIDE
    model = made(f"{name}ForCausalLM", getattr(transformers, f"{name}Config")(**own)).to(dtype)
    ids = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(0))
    (p, *_) = projections(model, ids).values()
    if name == "GPTJ":
        of = model.transformer.h[0].attn
        expected = [linear(each.weight) for each in (of.q_proj, of.k_proj, of.v_proj)]
    else:
        expected = [*model.gpt_neox.layers[0].attention.query_key_value.weight.view(4, 3, 8, 32).mT.unbind(1)]
    for role, weight in zip("qkv", expected, strict=True):
        equal(p.weights[role], weight)  # the very weights, not rounded ones
        assert p.weights[role].dtype == dtype
    assert p.weight("o").dtype == torch.float64


def test_v_is_not_taken_from_a_multiple_of_it() -> None:
    """The q of another matrix may be 30 times v (`written.py`); a v that is scaled has its factor in W_V."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each(x).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
            return self.o(nn.functional.scaled_dot_product_attention(0.5 * q, k, 3 * v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    module = Scaled().eval()
    (p,) = projections(module, torch.randn(2, 6, 16)).values()
    torch.testing.assert_close(p.weight("v"), 3 * linear(module.v.weight, 2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(p.biases["v"].flatten(), 3 * module.v.bias.detach().double(), atol=1e-5, rtol=1e-5)
    equal(p.weight("q"), linear(module.q.weight, 2))
    assert p.scale == pytest.approx(0.5 * 8**-0.5, rel=1e-5)
