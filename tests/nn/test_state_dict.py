"""State dicts with other people's names: loaded, ours computes what the module they come from computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperAttention

from headwise import masks
from headwise.errors import ArgumentError, CheckpointError
from headwise.nn import MultiHeadAttention
from headwise.nn.positions import Rope, T5Buckets

B, S, M, H = 2, 5, 16, 4
D = M // H

NAMES = {
    "tutorials": ("Wq", "Wk", "Wv", "fc_out"),
    "SamLynnEvans": ("q_linear", "k_linear", "v_linear", "out_linear"),
    "Annotated Transformer": ("linears.0", "linears.1", "linears.2", "linears.3"),
    "hyunwoongko": ("w_q", "w_k", "w_v", "w_concat"),
    "jadore801120": ("w_qs", "w_ks", "w_vs", "fc"),
    "lucidrains": ("to_q", "to_k", "to_v", "to_out.0"),
    "Meta's Llama": ("wq", "wk", "wv", "wo"),
    "Llama, ViT": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "BART, CLIP": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "T5": ("q", "k", "v", "o"),
    "DistilBERT": ("q_lin", "k_lin", "v_lin", "out_lin"),
    "BERT": ("self.query", "self.key", "self.value", "output.dense"),
    "BERT, flat": ("query", "key", "value", "dense"),
}
FUSED_NAMES = {
    "timm": ("qkv", "proj"),
    "nanoGPT": ("c_attn", "c_proj"),
    "Phi 3": ("qkv_proj", "o_proj"),
    "FlashAttention's MHA": ("Wqkv", "out_proj"),
    "ours": ("qkv", "out"),
}


class Named(nn.Module):
    """Attention as everybody writes it, its projections (q, k, v and out, or qkv and out) under such names."""

    def __init__(self, names: tuple[str, ...], *, bias: bool = True, widths: tuple[int, int, int] = (M, M, M)) -> None:
        super().__init__()
        sizes = [(M, 3 * M)] if len(names) == 2 else [(width, M) for width in widths]
        self.linears_ = [nn.Linear(*size, bias=bias) for size in [*sizes, (M, M)]]
        for name, linear in zip(names, self.linears_, strict=True):
            parent: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(last, linear)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        *inputs, out = self.linears_
        if len(inputs) == 1:
            q, k, v = inputs[0](query).chunk(3, -1)
        else:
            sources = (query, query if key is None else key, query if value is None else value)
            q, k, v = (linear(x) for linear, x in zip(inputs, sources, strict=True))
        heads = [y.unflatten(-1, (H, D)).transpose(1, 2) for y in (q, k, v)]
        return out(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class SelfAttention(nn.Module):
    """As in Aladdin Persson's tutorial on the Transformer: small projections, which every head uses."""

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
        self.values = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.keys = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.queries = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.fc_out = nn.Linear(heads * self.head_dim, embed_size)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
        n = query.shape[0]
        values = self.values(values.reshape(n, -1, self.heads, self.head_dim))
        keys = self.keys(keys.reshape(n, -1, self.heads, self.head_dim))
        queries = self.queries(query.reshape(n, -1, self.heads, self.head_dim))
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(n, -1, self.heads * self.head_dim))


def loaded(state: Mapping[str, Tensor], **options: Any) -> MultiHeadAttention:
    """Ours with such a state, loaded strictly, which leaves the state as it was."""
    ours = MultiHeadAttention(M, H, **options)
    before = dict(state)
    ours.load_state_dict(state)
    assert state.keys() == before.keys()
    assert all(state[name] is x for name, x in before.items())
    return ours.eval()


# Equal outputs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("names", [*NAMES.values(), *FUSED_NAMES.values()], ids=[*NAMES, *FUSED_NAMES])
def test_other_names_give_equal_outputs(names: tuple[str, ...], bias: bool) -> None:
    theirs = Named(names, bias=bias)
    x = torch.randn(B, S, M)
    torch.testing.assert_close(loaded(theirs.state_dict(), bias=bias)(x), theirs(x))


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_other_names_load_into_projections_of_different_widths(names: tuple[str, ...]) -> None:
    theirs = Named(names, widths=(M, 10, 6))
    ours = loaded(theirs.state_dict(), kdim=10, vdim=6)
    inputs = torch.randn(B, S, M), torch.randn(B, 7, 10), torch.randn(B, 7, 6)
    torch.testing.assert_close(ours(*inputs), theirs(*inputs))


def test_gpt_2_keeps_its_weights_as_in_by_out() -> None:
    config = GPT2Config(n_embd=M, n_head=H)
    config._attn_implementation = "eager"
    theirs = GPT2Attention(config, layer_idx=0).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    assert theirs.c_attn.weight.shape == (M, 3 * M)
    x = torch.randn(B, S, M)
    # Older checkpoints keep the causal mask and its fill value beside the weights.
    state = {**theirs.state_dict(), "bias": torch.ones(1, 1, 8, 8), "masked_bias": torch.tensor(-1e4)}
    causal = masks.causal().to_additive(S)
    torch.testing.assert_close(loaded(state)(x, mask=masks.causal()), theirs(x, attention_mask=causal)[0])


def test_whispers_keys_have_no_bias() -> None:
    config = WhisperConfig(d_model=M)
    config._attn_implementation = "eager"
    theirs = WhisperAttention(M, H, config=config).eval()
    assert theirs.k_proj.bias is None
    x = torch.randn(B, S, M)
    torch.testing.assert_close(loaded(theirs.state_dict())(x), theirs(x)[0])


@pytest.mark.parametrize("masked", [False, True])
def test_one_projection_that_every_head_uses(masked: bool) -> None:
    theirs = SelfAttention(M, H)
    # It divides by the root of the model's width, not the head's.
    ours = loaded(theirs.state_dict(), projection="shared", scale=M**-0.5)
    x = torch.randn(B, S, M)
    mask = torch.rand(S, S) < 0.7 if masked else None
    if mask is not None:
        mask[:, 0] = True
    torch.testing.assert_close(ours(x, mask=mask), theirs(x, x, x, mask))
    query = torch.randn(B, 3, M)
    torch.testing.assert_close(ours(query, x), theirs(x, x, query, None))


def test_t5s_table_goes_to_the_positions() -> None:
    ours = MultiHeadAttention(M, H, bias=False, positions=T5Buckets(H))
    table = torch.randn(32, H)
    ours.load_state_dict({**Named(NAMES["T5"], bias=False).state_dict(), "relative_attention_bias.weight": table})
    assert torch.equal(ours.positions.relative_attention_bias.weight, table)


def test_as_a_part_of_a_larger_model() -> None:
    theirs = nn.ModuleDict({"first": Named(NAMES["T5"]), "second": nn.Sequential(Named(FUSED_NAMES["timm"]))})
    ours = nn.ModuleDict({"first": MultiHeadAttention(M, H), "second": nn.Sequential(MultiHeadAttention(M, H))})
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, S, M)
    torch.testing.assert_close(ours["first"](x), theirs["first"](x))
    torch.testing.assert_close(ours["second"](x), theirs["second"](x))
    ours.load_state_dict(ours.state_dict())


def test_a_bias_in_the_state_alone_is_not_dropped_silently() -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected key.*qkv\.bias"):
        MultiHeadAttention(M, H, bias=False).load_state_dict(Named(NAMES["T5"]).state_dict())


# What cannot be loaded


def test_two_names_for_one_projection_clash() -> None:
    state = Named(NAMES["T5"]).state_dict()
    with pytest.raises(CheckpointError, match=r"expected one of q\.weight, Wq\.weight, which mean the same projection"):
        MultiHeadAttention(M, H).load_state_dict({**state, "Wq.weight": state["q.weight"]})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*q\.weight.*k\.weight.*v\.weight"):
        MultiHeadAttention(M, H).load_state_dict({**state, "qkv.weight": torch.zeros(3 * M, M)})


def test_what_is_missing_is_named() -> None:
    state = Named(NAMES["Llama, ViT"]).state_dict()
    del state["k_proj.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*qkv\.weight.*[\s\S]*Unexpected key.*q\.weight.*v\.weight"):
        MultiHeadAttention(M, H).load_state_dict(state)
    state = Named(NAMES["Llama, ViT"]).state_dict()
    del state["o_proj.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*out\.weight"):
        MultiHeadAttention(M, H).load_state_dict(state)
    found = MultiHeadAttention(M, H).load_state_dict(state, strict=False)
    assert found.missing_keys == ["out.weight"]
    assert found.unexpected_keys == []


def test_other_sizes_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"size mismatch for qkv\.weight"):
        MultiHeadAttention(M, H, num_kv_heads=2).load_state_dict(Named(NAMES["T5"]).state_dict())
    with pytest.raises(RuntimeError, match=r"size mismatch for qkv\.weight"):
        MultiHeadAttention(M, H, num_kv_heads=2).load_state_dict(Named(FUSED_NAMES["timm"]).state_dict())


def test_gpt_neox_is_refused_with_what_to_do_and_that_works() -> None:
    config = GPTNeoXConfig(hidden_size=M, num_attention_heads=H, rotary_pct=0.5)
    config._attn_implementation = "eager"
    theirs = GPTNeoXAttention(config, layer_idx=0).eval()
    state = theirs.state_dict()
    ours = MultiHeadAttention(M, H, positions=Rope.from_hf(config)).eval()
    with pytest.raises(CheckpointError, match=r"weight\.view\(heads, 3, head_dim, dim\)"):
        ours.load_state_dict(state)
    weight, bias = state.pop("query_key_value.weight"), state.pop("query_key_value.bias")
    state["qkv.weight"] = weight.view(H, 3, D, M).transpose(0, 1).flatten(0, 2)  # as the message says
    state["qkv.bias"] = bias.view(H, 3, D).transpose(0, 1).flatten()
    ours.load_state_dict(state)
    x = torch.randn(B, S, M)
    rotation = GPTNeoXRotaryEmbedding(config)(x, torch.arange(S)[None])
    expected = theirs(x, masks.causal().to_additive(S), position_embeddings=rotation)[0]
    torch.testing.assert_close(ours(x, mask=masks.causal()), expected)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "bias": False, "gate": True}, {"value_head_dim": 3}])
def test_a_projection_that_was_taken_apart(options: dict[str, Any]) -> None:
    """The same computation, from `q`, `k` and `v`; state dicts of both forms load in both."""
    whole = MultiHeadAttention(M, H, **options)
    x, memory = torch.randn(B, S, M), torch.randn(B, 3, M)
    expected = whole(x), whole(x, memory)
    state = whole.state_dict()
    apart = MultiHeadAttention(M, H, **options).eval().unfuse()
    assert not apart.is_fused
    assert {"q.weight", "k.weight", "v.weight"} <= apart.state_dict().keys()
    assert not any(name.startswith("qkv") for name in apart.state_dict())
    apart.load_state_dict(dict(state))
    torch.testing.assert_close((apart(x), apart(x, memory)), expected)
    torch.testing.assert_close(whole.unfuse()(x), expected[0])
    again = MultiHeadAttention(M, H, **options)
    again.load_state_dict(apart.state_dict())
    torch.testing.assert_close(again(x), expected[0])
    assert whole.unfuse() is whole
    if not options:
        torch.testing.assert_close(apart.to_torch()(x, x, x)[0], expected[0])


def test_a_shared_projection_is_not_taken_apart() -> None:
    with pytest.raises(ArgumentError, match='expected projection="per_head"'):
        MultiHeadAttention(M, H, projection="shared").unfuse()
