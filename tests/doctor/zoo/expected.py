"""How every specimen is called, and where its weights are: what the reference needs to say what it should compute."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.functional import attention
from tests.doctor.zoo.reference import (
    BATCH,
    LENGTH,
    Right,
    apply,
    interleaved,
    listed,
    part,
    rows,
    shared,
    tensor,
    turn_halves,
    turn_neighbours,
)

FUSED: dict[str, dict[str, Any]] = {name: {"q": part(name, 0), "k": part(name, 1), "v": part(name, 2)} for name in (
    "qkv", "c_attn", "wqkv", "in_proj", "to_qkv", "c_qkv", "attn", "W", "qkv_proj")}  # fmt: skip


def named(q: str, k: str, v: str, o: str | None) -> dict[str, Any]:
    return {"q": q, "k": k, "v": v, "o": o}


LLAMA = named("q_proj", "k_proj", "v_proj", "o_proj")


def keys(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:  # which keys [B, K], True = may attend
    return m(x, a[:, 0])


def hidden_keys(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, ~a[:, 0])


def last_row(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:  # the same for causal attention
    return m(x, a[:, -1])


def last_row_int(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, a[:, -1].long())


def cells(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, a.long())


def three(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, y, y)


def three_masked(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, y, y, a.long())


def backwards(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:  # values, keys, query, mask
    return m(y, y, x, a[:, None].long())


def added(a: Tensor, x: Tensor) -> Tensor:
    return torch.zeros(a.shape, dtype=x.dtype).masked_fill(~a, -torch.inf)


def sequence_first(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    x, y = x.transpose(0, 1), y.transpose(0, 1)
    return m(x, y, y, key_padding_mask=~a[:, 0]).transpose(0, 1)


def t5_bias(m: Any) -> Tensor:
    return m.relative_attention_bias(buckets()).permute(2, 0, 1)


def buckets() -> Tensor:
    """T5's buckets for short distances: the distance itself, and 16 more for keys after the query."""
    i = torch.arange(LENGTH)
    distance = i[None, :] - i[:, None]
    return distance.abs() + 16 * (distance > 0)


def alibi(heads: int) -> Tensor:
    """Slopes 1/4, 1/16, 1/64, 1/256 for four heads, and 1/2, 1/8 of the eight for the fifth and sixth."""
    assert heads == 6
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])
    i = torch.arange(LENGTH)
    return -slopes[:, None, None] * (i[:, None] - i[None, :])


def offsets(m: Any) -> Tensor:
    i = torch.arange(LENGTH)
    return m.relative_position_bias_table[i[:, None] - i[None, :] + 6].permute(2, 0, 1)


def unit(m: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    temperature = m.logit_scale.detach().double().clamp(max=math.log(100.0)).exp()
    return temperature * q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v


def normed_heads(m: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return norm(m.q_norm, q), norm(m.k_norm, k), v


def norm(m: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + m.eps).sqrt()
    return y * m.weight.detach().double() + m.bias.detach().double()


def latent(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    """DeepSeek's equations, with mscale in the scale alone."""
    q = apply("q_proj", m, x).unflatten(-1, (m.num_heads, -1)).transpose(1, 2)
    low = apply("kv_a_proj", m, x)
    kv = apply("kv_b_proj", m, low[..., : m.kv_lora_rank]).unflatten(-1, (m.num_heads, -1)).transpose(1, 2)
    rope = turn_halves(low[:, None, :, m.kv_lora_rank :]).expand(-1, m.num_heads, -1, -1)
    q = torch.cat([q[..., : m.nope_dim], turn_halves(q[..., m.nope_dim :])], dim=-1)
    k = torch.cat([kv[..., : m.nope_dim], rope], dim=-1)
    scale = (0.1 * math.log(40.0) + 1.0) ** 2 / math.sqrt(q.shape[-1])
    mask = a[:, None].expand(-1, m.num_heads, -1, -1)
    out = attention(q, k, kv[..., m.nope_dim :], mask=mask, scale=scale, kernel="reference")
    return apply("o_proj", m, out.transpose(1, 2).flatten(2))


FC = named("fc_q", "fc_k", "fc_v", "fc_o")


def sub(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    return Right(**FC).expected(m, x, y, a)


def feed(m: Any, x: Tensor) -> Tensor:
    return apply("2", m, type(m[1])()(apply("0", m, x)))


def encoder(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    x = norm(m.self_attn_layer_norm, x + sub(m.self_attention, x, x, a))
    return norm(m.ff_layer_norm, x + feed(m.feedforward, x))


TOKENS = torch.arange(LENGTH) < torch.tensor([7, 5, 4])[:, None]  # of x, where the memory is padded apart from it


def own(causal: bool) -> Tensor:
    n = torch.arange(LENGTH)
    return TOKENS[:, None, :] & ((n[None, :] <= n[:, None]) | (not causal))


def decoder(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    x = norm(m.norms[0], x + sub(m.self_attention, x, x, own(causal=True)))
    x = norm(m.norms[1], x + sub(m.encoder_attention, x, y, a))
    return norm(m.norms[2], x + feed(m.feedforward, x))


def cross_decoder(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    h = norm(m.norm1, x)
    x = x + sub(m.self_attention, h, h, own(causal=False))
    return x + sub(m.cross_attention, norm(m.norm2, x), y, a)


def block(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    h = norm(m.ln_1, x)
    x = x + Right(**FUSED["qkv"], o="proj").expected(m, h, h, a)
    return x + feed(m.mlp, norm(m.ln_2, x))


def same_length(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    """Masks of both, of different lengths; where that cannot run, nothing right comes out."""
    try:
        return m(x, y, TOKENS, a[:, 0])
    except RuntimeError:
        return torch.full_like(x, torch.nan)


def restarted(m: Any, x: Tensor) -> Tensor:
    return x + m.wpe(torch.tensor([0, 1, 2, 0, 1, 2, 3])).detach().double()


def documents(m: Any, x: Tensor, y: Tensor, a: Tensor) -> Any:
    return m(x, (torch.arange(LENGTH) >= 3).long().expand(BATCH, -1))


def from_the_left(m: Any, x: Tensor) -> Tensor:
    position = torch.stack([(torch.arange(LENGTH) - skipped).clamp(min=0) for skipped in (0, 1, 3)])
    return x + m.wpe(position).detach().double()


WQ = named("w_q", "w_k", "w_v", "fc")
LINEARS = named("linears.0", "linears.1", "linears.2", "linears.3")
BERT = named("query", "key", "value", "dense")
XL = named("q_linear", "k_linear", "v_linear", "out")
W_O = named("wq", "wk", "wv", "wo")
TENSORS: dict[str, Any] = {"q": tensor("W_Q"), "k": tensor("W_K"), "v": tensor("W_V")}
LIST: dict[str, Any] = {"q": listed("query"), "k": listed("key"), "v": listed("value")}
SHORT: dict[str, Any] = {"q": listed("q"), "k": listed("k"), "v": listed("v")}
EINSUM = named("queries", "keys", "values", "fc_out")


def tensor_output(m: Any) -> tuple[Tensor, Tensor | None]:
    return m.W_O.flatten(0, 1).mT, getattr(m, "b_O", None)


RIGHT: dict[str, Right] = {
    "einsum.SelfAttention": Right(
        backwards, shared("queries"), shared("keys"), shared("values"), "fc_out", memory=48, allowed="cells"
    ),
    "einsum.SharedProjectionAttention": Right(
        backwards, shared("to_queries"), shared("to_keys"), shared("to_values"), "fc_out", memory=48, allowed="cells"
    ),
    "einsum.Attention": Right(backwards, **EINSUM, width=64, memory=64, allowed="padding"),
    "einsum.TensorAttention": Right(**{**TENSORS, "q": tensor("W_Q", "b_Q")}, o=tensor_output),
    "einsum.CausalTensorAttention": Right(**TENSORS, o=tensor_output, allowed="causal"),
    "einsum.SpatialAttention": Right(
        q=interleaved("projection", 0, 4), k=interleaved("projection", 1, 4), v=interleaved("projection", 2, 4),
        o="output", after=lambda m, x, y: x + y,
    ),
    "einsum.EinsumSelfAttention": Right(**W_O),
    "einsum.ContextEinsumAttention": Right(
        lambda m, x, y, a: m(x, y), "q", part("kv", 0, 2), part("kv", 1, 2), "proj", memory=48
    ),
    "sdpa.CausalSelfAttention": Right(**FUSED["c_attn"], o="c_proj", allowed="causal"),
    "sdpa.GPTAttention": Right(**FUSED["c_attn"], o="c_proj", allowed="causal"),
    "sdpa.PaddedSelfAttention": Right(hidden_keys, **FUSED["qkv"], o="out", allowed="padding"),
    "sdpa.EncoderSelfAttention": Right(hidden_keys, **FUSED["qkv"], o="out", width=64, allowed="padding"),
    "sdpa.MaskedSelfAttention": Right(cells, **LLAMA, width=64, allowed="cells"),
    "sdpa.DecoderAttention": Right(**FUSED["wqkv"], o="wo", allowed="causal"),
    "sdpa.StepAttention": Right(**FUSED["wqkv"], o="wo", heads=6, allowed="causal"),
    "sdpa.LocalAttention": Right(**FUSED["qkv"], o="proj", allowed="causal 4"),
    "sdpa.SlidingWindowAttention": Right(**FUSED["qkv"], o="proj", allowed="causal 3"),
    "sdpa.PackedDocumentAttention": Right(documents, **FUSED["qkv"], o="proj", allowed="causal documents"),
    "sdpa.PackedSequenceAttention": Right(
        documents, **FUSED["qkv"], o="proj", allowed="causal documents", before=restarted
    ),
    "sdpa.ExplainableAttention": Right(keys, **FUSED["in_proj"], allowed="padding"),
    "sdpa.ContextAttention": Right(
        lambda m, x, y, a: m(x, y, a[:, 0]), **named("to_q", "to_k", "to_v", "to_out"), memory=40, allowed="padding"
    ),
    "grouped.GroupedQueryAttention": Right(
        lambda m, x, y, a: m(x, added(a, x)[:, None]), **W_O, heads=6, kv_heads=2, allowed="cells"
    ),
    "grouped.GQA": Right(**LLAMA, heads=6, kv_heads=2, allowed="causal"),
    "grouped.GroupedAttention": Right(**LLAMA, heads=8, kv_heads=2, width=64),
    "grouped.GroupedEinsumAttention": Right(
        lambda m, x, y, a: m(x, causal=True), "to_q", part("to_kv", 0, 2), part("to_kv", 1, 2), "to_out",
        heads=8, kv_heads=2, width=64, allowed="causal",
    ),
    "grouped.MultiQueryAttention": Right(
        q=rows("Wqkv", 48), k=rows("Wqkv", 48, 60), v=rows("Wqkv", 60, 72), kv_heads=1
    ),
    "grouped.FusedAttention": Right(**FUSED["qkv"], o="proj"),
    "grouped.QKVAttention": Right(**FUSED["c_qkv"], o="c_proj", width=64),
    "grouped.InterleavedQKVAttention": Right(
        cells, interleaved("qkv_proj", 0, 4), interleaved("qkv_proj", 1, 4), interleaved("qkv_proj", 2, 4), "o_proj",
        allowed="cells",
    ),
    "grouped.NormedAttention": Right(**FUSED["qkv"], o="proj", heads_of=unit, scale=1.0),
    "classic.MultiHeadedAttention": Right(three_masked, **LINEARS, memory=48, allowed="cells"),
    "classic.MultiHeadAttention": Right(three_masked, **WQ, memory=48, allowed="cells"),
    "classic.SourceTargetAttention": Right(three_masked, **XL, memory=48, allowed="cells"),
    "classic.MultiHead": Right(
        lambda m, x, y, a: m(x, y, y, a[:, None].long()), **named("w_q", "w_k", "w_v", "w_concat"),
        memory=48, allowed="cells",
    ),
    "classic.TranslatorAttention": Right(
        three_masked, **named("w_qs", "w_ks", "w_vs", "fc"), memory=48, allowed="cells",
        after=lambda m, x, y: norm(m.layer_norm, x + y),
    ),
    "classic.MultiheadAttention": Right(**FUSED["qkv_proj"], o="o_proj"),
    "classic.CourseAttention": Right(three_masked, **XL, memory=48, allowed="cells"),
    "classic.ParallelAttention": Right(three_masked, **XL, memory=48, allowed="cells"),
    "heads.MultiHeadAttention": Right(**LIST, o="proj", allowed="causal"),
    "heads.BigramAttention": Right(**LIST, o="proj", allowed="causal"),
    "heads.MultiHeadAttentionWrapper": Right(
        q=listed("W_query"), k=listed("W_key"), v=listed("W_value"), o=None, heads=5, width=40, allowed="causal"
    ),
    "heads.HeadsModule": Right(**SHORT, o="output_linear"),
    "heads.JoinedHeads": Right(**SHORT, o="output_linear"),
    "heads.LanguageModelHead": Right(**named("query", "key", "value", "proj"), allowed="causal"),
    "heads.MinimalGPTAttention": Right(**FUSED["c_attn"], o="c_proj", allowed="causal"),
    "heads.TinyGPTAttention": Right(**FUSED["attn"], o="proj", allowed="causal"),
    "packed.SeqFirstAttention": Right(sequence_first, memory=48, allowed="padding"),
    "packed.LengthAttention": Right(
        lambda m, x, y, a: m(x, y, y, a[:, 0].sum(-1)), **named("W_q", "W_k", "W_v", "W_o"),
        memory=48, allowed="padding",
    ),
    "packed.BatchFirstAttention": Right(**FUSED["in_proj"]),
    "packed.BartAttention": Right(lambda m, x, y, a: m(x, added(a, x)[:, None]), allowed="cells"),
    "packed.SplitHeadsAttention": Right(three_masked, **named("Q", "K", "V", "dense"), memory=48, allowed="cells"),
    "packed.PackedHeadsAttention": Right(keys, **FUSED["to_qkv"], o="to_out", allowed="padding"),
    "packed.ClassifierAttention": Right(**named("fc_Q", "fc_K", "fc_V", "fc")),
    "packed.ProjectedAttention": Right(
        three, **named("query_proj", "key_proj", "value_proj", "out_proj"), memory=48
    ),
    "rotary.LlamaAttention": Right(**LLAMA, heads=6, kv_heads=2, allowed="causal", turn=turn_halves),
    "rotary.ComplexRotaryAttention": Right(**W_O, allowed="causal", turn=turn_neighbours),
    "rotary.RotaryAttention": Right(**FUSED["to_qkv"], o="to_out", turn=turn_halves),
    "rotary.RoPESelfAttention": Right(**named("q", "k", "v", "o"), turn=turn_halves),
    "rotary.RotaryQKVAttention": Right(**FUSED["qkv"], o="proj", allowed="causal", turn=turn_halves),
    "rotary.LongContextAttention": Right(**LLAMA, allowed="causal", turn=turn_halves),
    "rotary.GeneratorAttention": Right(**FUSED["wqkv"], o="wo", allowed="causal", turn=turn_halves),
    "rotary.CachedRotaryAttention": Right(**LLAMA, allowed="causal", turn=turn_halves),
    "rotary.StretchedAttention": Right(**FUSED["qkv"], o="proj", allowed="causal", turn=turn_halves),
    "rotary.PromptAttention": Right(
        last_row_int, **FUSED["c_attn"], o="c_proj", allowed="causal left", before=from_the_left
    ),
    "rotary.LatentAttention": Right(whole=latent, allowed="causal"),
    "biases.ALiBiAttention": Right(
        **FUSED["qkv"], o="out", heads=6, allowed="causal", bias=lambda m: alibi(6)
    ),
    "biases.AlibiSelfAttention": Right(**BERT, heads=6, allowed="causal", bias=lambda m: alibi(6)),
    "biases.T5SelfAttention": Right(
        lambda m, x, y, a: m(x, added(a[:, :1], x)[:, None]), **named("q", "k", "v", "o"), allowed="padding",
        scale=1.0, bias=t5_bias,
    ),
    "biases.T5Attention": Right(**named("q", "k", "v", "o"), scale=1.0, bias=t5_bias),
    "biases.WindowBiasAttention": Right(**FUSED["qkv"], o="proj", bias=offsets),
    "biases.SoftcapAttention": Right(**LLAMA, allowed="causal", scale=24.0**-0.5, softcap=5.0),
    "eager.BertSelfAttention": Right(
        lambda m, x, y, a: m(x, added(a[:, :1], x)[:, None]), **named("query", "key", "value", None), allowed="padding"
    ),
    "eager.EagerAttention": Right(keys, allowed="padding"),
    "eager.PaddedEncoderAttention": Right(keys, allowed="padding"),
    "eager.DeviceAttention": Right(keys, **FUSED["qkv"], o="proj", allowed="padding"),
    "eager.FastViTAttention": Right(**FUSED["qkv"], o="proj"),
    "eager.Attention": Right(**FUSED["to_qkv"], o="to_out.0", width=64, before=lambda m, x: norm(m.norm, x)),
    "eager.ViTAttention": Right(keys, **FUSED["to_qkv"], o="to_out.0", width=64, allowed="padding"),
    "eager.LatentQueries": Right(
        lambda m, x, y, a: m(x, y, a[:, 0]), "to_q", part("to_kv", 0, 2), part("to_kv", 1, 2), "to_out",
        memory=48, allowed="padding",
    ),
    "eager.MultiHeadAttention": Right(
        lambda m, x, y, a: m(y, y, x, (~a[:, None]).to(x.dtype)), **named("wq", "wk", "wv", "dense"),
        memory=48, allowed="cells",
    ),
    "eager.LayerAttention": Right(
        lambda m, x, y, a: m(x, y, y, a[:, :1, None].transpose(1, 2).float()), **named("wq", "wk", "wv", "dense"),
        memory=48, allowed="padding",
    ),
    "layers.EncoderLayer": Right(lambda m, x, y, a: m(x, a[:, None, :1]), whole=encoder, allowed="padding"),
    "layers.DecoderLayer": Right(
        lambda m, x, y, a: m(x, y, TOKENS[:, None, None], a[:, None, :1]), whole=decoder, memory=48, allowed="padding"
    ),
    "layers.PreNormBlock": Right(whole=block, allowed="causal"),
    "layers.CrossDecoderLayer": Right(same_length, whole=cross_decoder, memory=48, allowed="padding"),
    "layers.CrossAttention": Right(
        same_length, **named("query", "key", "value", "out"), memory=48, allowed="padding"
    ),
    "course.MaskedAttention": Right(three_masked, memory=48, allowed="cells"),
    "course.TokenAttention": Right(keys, allowed="padding"),
    "course.DotProductAttention": Right(three_masked, memory=48, allowed="cells"),
    "course.GraphAttention": Right(cells, allowed="cells"),
    "course.VisibleAttention": Right(cells, allowed="cells"),
    "course.SentenceAttention": Right(hidden_keys, width=64, allowed="padding"),
    "course.PaddedCausalAttention": Right(last_row, allowed="causal padding"),
    "course.BufferAttention": Right(keys, allowed="padding"),
    "course.ScratchAttention": Right(),
    "course.MapAttention": Right(),
    "course.ClipAttention": Right(),
    "course.NormAttention": Right(heads_of=normed_heads),
    "course.FastAttention": Right(width=64),
    "course.FlatAttention": Right(**FUSED["W"], o="O"),
    "course.QueryAttention": Right(three, **W_O, memory=48),
    "course.HeadsAttention": Right(**named("query", "key", "value", "out"), width=50),
    "course.AssignmentAttention": Right(**named("W_q", "W_k", "W_v", "W_o")),
}  # fmt: skip
