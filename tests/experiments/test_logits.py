"""Direct logit attribution: the parts sum to the logits, and each is what the definition says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise
from headwise import edits
from headwise.errors import ArgumentError, DtypeError, ProjectionError
from headwise.experiments import circuits, composition, direct_logit_attribution
from headwise.models import CausalConfig, CausalLanguageModel

WIDE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**WIDE, "num_key_value_heads": 2}
IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
MODELS = {
    "GPT2LMHeadModel": transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4),
    "LlamaForCausalLM": transformers.LlamaConfig(**GROUPED),
    "GPTNeoXForCausalLM": transformers.GPTNeoXConfig(**WIDE),  # attention and MLP read one stream, beside each other
    "Qwen3ForCausalLM": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "Gemma2ForCausalLM": transformers.Gemma2Config(**GROUPED, head_dim=8, final_logit_softcapping=None),
    "GraniteForCausalLM": transformers.GraniteConfig(
        **GROUPED, residual_multiplier=0.3, logits_scaling=4.0, embedding_multiplier=2.0
    ),
    "OPTForCausalLM": transformers.OPTConfig(
        vocab_size=50, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32
    ),
    "BloomForCausalLM": transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4),
    "T5ForConditionalGeneration": transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    ),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(MODELS[name]).eval()
    for p in model.parameters():
        p.data = p.data + 0.1 * torch.randn_like(p) if p.ndim == 1 else 5 * p.data
    return model


def inputs(name: str) -> dict[str, Tensor]:
    return {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]} if name.startswith("T5") else {"input_ids": IDS}


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_sum_to_the_difference_of_two_logits(name: str) -> None:
    model = made(name)
    right, wrong = torch.tensor([3, 8]), torch.tensor([4, 9])
    with torch.no_grad():
        logits = model(**inputs(name)).logits[:, -1].double()
    found = direct_logit_attribution(model, inputs(name), right, wrong)
    rows = torch.arange(2)
    torch.testing.assert_close(found.logit, logits[rows, right] - logits[rows, wrong], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.total, found.logit, atol=1e-5, rtol=1e-5)
    assert not bool(found.heads.isnan().any())
    assert bool((found.heads != 0).all())
    if not name.startswith(("GPT", "OPT", "Bloom")):  # these have a bias b_O; without one the heads are all of a layer
        assert max(float(found.others[site].abs().max()) for site in found.layers) < 1e-5
    one = direct_logit_attribution(model, inputs(name), 3, position=2)
    with torch.no_grad():
        torch.testing.assert_close(one.total.float(), model(**inputs(name)).logits[:, 2, 3], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_head_is_its_output_through_the_last_norm(name: str) -> None:
    """From the definition: the rest of the stream stays, and the norm divides by what it divided by."""
    model = made(name)
    gpt = name.startswith("GPT2")
    last, head = (model.transformer.ln_f, model.lm_head) if gpt else (model.model.norm, model.lm_head)
    outs: dict[str, Tensor] = {}
    streams: list[Tensor] = []

    def keep(out: Tensor, at: edits.Where) -> Tensor:
        outs[at.site] = out
        return out

    handle = last.register_forward_pre_hook(lambda module, args: streams.append(args[0]))
    with torch.no_grad(), headwise.edit(model, edits.output("*", keep)):
        model(IDS)
    handle.remove()
    stream = streams[0][:, -1].double()
    centre = stream.mean(-1, keepdim=True) if gpt else 0.0
    eps = last.eps if gpt else last.variance_epsilon
    sigma = ((stream - centre).pow(2).mean(-1, keepdim=True) + eps).sqrt()
    found = direct_logit_attribution(model, IDS, 3)
    for layer, (site, out) in enumerate(outs.items()):
        of = model.get_submodule(site)
        weight = of.c_proj.weight if gpt else of.o_proj.weight.T
        for h in range(4):
            part = out[:, h, -1].double() @ weight[8 * h : 8 * h + 8].detach().double()
            part = part - part.mean(-1, keepdim=True) if gpt else part
            expected = (part / sigma * last.weight.detach().double()) @ head.weight[3].detach().double()
            torch.testing.assert_close(found.heads[:, layer, h], expected, atol=1e-6, rtol=1e-4)


class OfTorch(nn.Module):
    """Torch's own encoder as a language model; its positions are a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.out = nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.layers(self.words(ids) + self.places[: ids.shape[1]], mask=mask, is_causal=True))


def test_a_model_of_ones_own() -> None:
    torch.manual_seed(0)
    model = OfTorch().eval()
    with torch.no_grad():
        logits = model(IDS)[:, -1]
    found = direct_logit_attribution(model, IDS, 3, 4)
    torch.testing.assert_close(found.total.float(), logits[:, 3] - logits[:, 4], atol=1e-5, rtol=1e-4)
    assert not found.total.requires_grad
    assert found.layers == ("layers.layers.0.self_attn", "layers.layers.1.self_attn")
    added = {"words", "places", "layers.layers.0.linear2", "layers.layers.1.linear2"}
    assert set(found.others) == {*added, *found.layers}


def test_weights_that_are_used_in_a_function() -> None:
    """headwise's own language model reads its logits by the weight of its embedding, without a module for it."""
    torch.manual_seed(0)
    model = CausalLanguageModel(CausalConfig(50, dim=32, num_layers=2, num_heads=4)).eval()
    with torch.no_grad():
        logits = model(IDS)
    found = direct_logit_attribution(model, IDS, 3, 4)
    torch.testing.assert_close(found.total.float(), logits[:, -1, 3] - logits[:, -1, 4], atol=1e-5, rtol=1e-4)
    assert found.heads.shape == (2, 2, 4)
    assert circuits(model, IDS).copying.shape == (2, 4)


def test_it_is_told_in_words() -> None:
    found = direct_logit_attribution(made("GPT2LMHeadModel"), IDS, 3, 4)
    lines = str(found).splitlines()
    assert lines[0].startswith("logit: ")
    assert lines[-1].endswith("  constant")
    parts = {line.split(maxsplit=1)[1] for line in lines[1:]}
    assert {"transformer.wte", "transformer.wpe", "transformer.h.1.mlp", "transformer.h.0.attn, head 2"} <= parts
    effect, layer, head = found.strongest(1)[0]
    assert abs(effect) == pytest.approx(float(found.heads.mean(0).abs().max()))
    assert f"{layer}, head {head}" in lines[1]


def test_what_cannot_be_attributed_is_said() -> None:
    torch.manual_seed(0)
    bert = transformers.BertForMaskedLM._from_config(transformers.BertConfig(**WIDE)).eval()
    with pytest.raises(ProjectionError, match="expected heads that add to the residual stream"):
        direct_logit_attribution(bert, IDS, 3)
    gemma = transformers.Gemma2ForCausalLM._from_config(transformers.Gemma2Config(**GROUPED, head_dim=8)).eval()
    with pytest.raises(ProjectionError, match=r"expected logits \[B, N, V\].*they may be capped"):
        direct_logit_attribution(gemma, IDS, 3)
    with pytest.raises(ProjectionError, match=r"expected a model that returns logits \[B, N, V\]"):
        direct_logit_attribution(made_classifier(), IDS, 3)
    model = made("GPT2LMHeadModel")
    with pytest.raises(ArgumentError, match=r"token must be an id below 50, or one for each of 2 examples"):
        direct_logit_attribution(model, IDS, 50)
    with pytest.raises(ArgumentError, match=r"against must be an id below 50"):
        direct_logit_attribution(model, IDS, 3, torch.tensor([1, 2, 3]))
    with pytest.raises(DtypeError, match=r"token must be an id. Received: token='ant'. Pass what your tokenizer has"):
        direct_logit_attribution(model, IDS, "ant")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"position must be in -7 … 6\. Received: position=7"):
        direct_logit_attribution(model, IDS, 3, position=7)
    with pytest.raises(ProjectionError, match=r"W_Q was not found"):
        composition(made("Qwen3ForCausalLM"), IDS, "q")


def made_classifier() -> Any:
    return transformers.BertForSequenceClassification._from_config(transformers.BertConfig(**WIDE)).eval()


def test_circuits_without_q_and_k_have_no_qk() -> None:
    found = circuits(made("Qwen3ForCausalLM"), IDS)
    assert found.qk is None
    assert found.matching is None
    assert found.copying.shape == (2, 4)


@pytest.mark.parametrize("folded", [True, False])
def test_eigenvalues_are_those_of_the_whole_matrix(folded: bool) -> None:
    model = made("LlamaForCausalLM")
    found = circuits(model, IDS, folded=folded)
    gains = model.model.layers[1].input_layernorm.weight.detach().double(), model.model.norm.weight.detach().double()
    first, last = gains if folded else (1.0, 1.0)
    of = model.model.layers[1].self_attn
    v, o = (
        of.v_proj.weight.detach().double()[8:].T,
        of.o_proj.weight.detach().double().T[24:],
    )  # head 3 reads key head 1
    embed, unembed = model.model.embed_tokens.weight.detach().double(), model.lm_head.weight.detach().double().T
    whole = torch.linalg.eigvals((embed * first) @ v @ (o * last) @ unembed)  # [50], of which 8 are not 0
    expected = whole[whole.abs().argsort(descending=True)][:8]
    mine = found.ov[1, 3][found.ov[1, 3].abs().argsort(descending=True)]
    torch.testing.assert_close(mine.abs(), expected.abs(), rtol=1e-5, atol=1e-8)
    assert float(found.copying[1, 3]) == pytest.approx(float(expected.real.sum() / expected.abs().sum()), abs=1e-6)
    q, k = of.q_proj.weight.detach().double()[24:].T, of.k_proj.weight.detach().double()[8:].T
    whole = torch.linalg.eigvals((embed * first) @ q @ k.T @ (embed * first).T)
    assert float(found.matching[1, 3]) == pytest.approx(float(whole.real.sum() / whole.abs().sum()), abs=1e-6)


def test_a_layer_that_runs_twice_is_refused() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.attention = torch.nn.Embedding(20, 8), headwise.nn.MultiHeadAttention(8, 2)
            self.unembedding = torch.nn.Linear(8, 20)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            for _ in range(2):
                x = x + self.attention(x)
            out: Tensor = self.unembedding(x)
            return out

    with pytest.raises(ProjectionError, match="attention runs several times in one pass"):
        direct_logit_attribution(Twice().eval(), torch.arange(9)[None], token=3)
