"""The healthy specimens: unusual here and there, and right."""

from __future__ import annotations

from functools import partial

from tests.doctor.zoo import biases, classic, eager, einsum, grouped, heads, layers, packed, rotary, sdpa
from tests.doctor.zoo.specimen import Specimen, healthy

HEALTHY: tuple[Specimen, ...] = (
    healthy(partial(einsum.SharedProjectionAttention, 48, heads=4), "all heads share one small matrix, on purpose"),
    healthy(partial(einsum.TensorAttention, 48, 4), "raw weight tensors [H, M, D] and a bias on the queries alone"),
    healthy(partial(sdpa.CausalSelfAttention, 48, 4), "fused, causal, dropout only in training"),
    healthy(partial(sdpa.EncoderSelfAttention, 64, 4), "True = padding, turned round for SDPA"),
    healthy(partial(sdpa.StepAttention, 48, 6), "causal with a cache, aligned at the last key"),
    healthy(
        partial(sdpa.SlidingWindowAttention, 48, 4, sliding_window=3), "a window that holds as many tokens as it says"
    ),
    healthy(partial(sdpa.PackedDocumentAttention, 48, 4), "documents do not see one another"),
    healthy(partial(sdpa.ContextAttention, 48, 40), "cross attention with keys of another width"),
    healthy(partial(grouped.GroupedQueryAttention, 48, 6, 2), "grouped queries, an additive mask"),
    healthy(
        partial(grouped.GroupedEinsumAttention, 64, 8, 2), "grouped queries without repeating keys, causal on request"
    ),
    healthy(partial(grouped.MultiQueryAttention, 48, 4), "one key head"),
    healthy(partial(grouped.InterleavedQKVAttention, 48, 48, 4), "query, key and value of each head side by side"),
    healthy(partial(grouped.NormedAttention, 48, 4), "cosine similarity with a learned temperature"),
    healthy(partial(classic.MultiHeadedAttention, 4, 48), "four cloned layers and a function for the formula"),
    healthy(partial(classic.TranslatorAttention, 4, 48, 12, 10), "values of another width, residual and norm inside"),
    healthy(partial(heads.MultiHeadAttention, 48, 4), "a list of single causal heads"),
    healthy(partial(packed.SeqFirstAttention, 48, 4), "sequence first, heads in the batch, two kinds of mask"),
    healthy(partial(packed.LengthAttention, 48, 4), "valid lengths in place of a mask"),
    healthy(partial(rotary.LlamaAttention, 48, 6, 2), "half-split rotary positions and grouped queries"),
    healthy(partial(rotary.ComplexRotaryAttention, 48, 4), "rotary positions as complex numbers"),
    healthy(partial(rotary.GeneratorAttention, 48, 4), "rotary positions with a cache"),
    healthy(partial(biases.ALiBiAttention, 48, 6), "slopes for six heads as the paper has them"),
    healthy(partial(biases.T5SelfAttention, 48, 4, 10), "T5: no scale, buckets"),
    healthy(partial(biases.WindowBiasAttention, 48, 7, 4), "a learned bias for every offset"),
    healthy(partial(biases.SoftcapAttention, 48, 4, 12, 24.0), "a softcap, and a scale of the config's choice"),
    healthy(partial(eager.BertSelfAttention, 48, 4), "an additive mask made outside, no output projection"),
    healthy(partial(eager.Attention, 64), "einops, a norm before the projections"),
    healthy(partial(eager.MultiHeadAttention, 48, 4), "forward(v, k, q, mask), 1 = hidden"),
    healthy(partial(layers.EncoderLayer, 48, 4, 40), "a whole encoder layer"),
    healthy(partial(layers.DecoderLayer, 48, 4, 40), "a whole decoder layer"),
    healthy(partial(layers.PreNormBlock, 48, 4), "a GPT block"),
)
