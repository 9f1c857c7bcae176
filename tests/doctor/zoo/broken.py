"""The broken specimens: what is wrong with each. `fixes.py` has the words that fix it."""

from __future__ import annotations

from functools import partial

from tests.doctor.zoo import biases, classic, course, eager, einsum, grouped, heads, layers, packed, rotary, sdpa
from tests.doctor.zoo.specimen import Specimen, broken

BROKEN: tuple[Specimen, ...] = (
    broken(
        partial(einsum.SelfAttention, 48, heads=4),
        {"wrong-scale"},
        {"projection-reused"},
        why="divides by the root of the model's width; all heads share a projection of their own slice",
    ),
    broken(
        partial(einsum.Attention, 64, heads=4),
        {"softmax-axis"},
        why="the scores are [N, H, Q, K], and dim 2 is the queries",
    ),
    broken(partial(einsum.CausalTensorAttention, 48, 4), {"wrong-scale"}, why="the scores are not scaled"),
    broken(
        partial(einsum.SpatialAttention, 48, n_heads=4, d_k=12),
        {"softmax-axis"},
        why="the scores are [B, Q, K, H], and dim 1 is the queries (labml #146)",
    ),
    broken(
        partial(einsum.EinsumSelfAttention, 48, 4),
        {"weights-transposed"},
        why="sums the values over the queries, j, in place of the keys",
    ),
    broken(
        partial(einsum.ContextEinsumAttention, 48, 4),
        {"softmax-axis"},
        why="the scores are [B, Q, H, K], and dim 2 is the heads",
    ),
    broken(
        partial(sdpa.GPTAttention, 48, 4, dropout=0.1),
        {"dropout-in-eval"},
        why="SDPA drops whenever dropout_p is not 0, in eval too",
    ),
    broken(
        partial(sdpa.PaddedSelfAttention, 48, 4),
        {"mask-polarity"},
        why="SDPA takes True for may attend; the argument says True for padding",
    ),
    broken(
        partial(sdpa.MaskedSelfAttention, 64, 4), {"mask-added"}, why="a float mask is added to the scores: 1 and 0"
    ),
    broken(
        partial(sdpa.DecoderAttention, 48, 4),
        {"cache-mismatch", "causal-corner"},
        why="is_causal aligns the first query with the first key, so a step sees the oldest key only",
    ),
    broken(partial(sdpa.LocalAttention, 48, 4, window=4), {"window-off-by-one"}, why="six tokens, where it says four"),
    broken(
        partial(sdpa.PackedSequenceAttention, 48, 4),
        {"packing-leak"},
        why="positions start again in every document, but a token sees the documents before",
    ),
    broken(
        partial(sdpa.ExplainableAttention, 48, 4),
        {"mask-ignored"},
        why="with the weights asked for, which is the default, the mask is left out",
    ),
    broken(
        partial(grouped.GQA, 48, 6, 2),
        {"gqa-order"},
        why="repeat tiles the key heads: g0 g1 g0 g1 ... where it should be g0 g0 g0 g1 g1 g1",
    ),
    broken(
        partial(grouped.GroupedAttention, 64, 8, 2),
        {"gqa-order"},
        why="the new axis stands before the key heads, which tiles them",
    ),
    broken(
        partial(grouped.FusedAttention, 48, 4), {"qkv-order"}, why="unpacks key, query, value from what is called qkv"
    ),
    broken(
        partial(grouped.QKVAttention, 64, 4), {"qkv-order"}, why="unpacks query, value, key from what is called qkv"
    ),
    broken(
        partial(classic.MultiHeadAttention, 48, 4),
        {"projection-reused"},
        why="the values go through the keys' projection, and the values' has no use",
    ),
    broken(
        partial(classic.SourceTargetAttention, 48, 4),
        {"argument-order"},
        why="attention(query, key, value) is called with query, value, key",
    ),
    broken(partial(classic.MultiHead, 48, 4), {"head-split"}, why="a bare view splits the heads (hyunwoongko #15)"),
    broken(
        partial(classic.MultiheadAttention, 48, 48, 4), {"head-merge"}, why="a bare reshape joins the heads (jsbaan #6)"
    ),
    broken(partial(classic.CourseAttention, 4, 48), {"dropout-misplaced"}, why="drops scores, before the softmax"),
    broken(
        partial(classic.ParallelAttention, 4, 48), {"dropout-in-eval"}, why="F.dropout drops unless it is told not to"
    ),
    broken(
        partial(heads.BigramAttention, 48, 4),
        {"wrong-scale"},
        why="scales by the model's width, C, in place of the head's",
    ),
    broken(
        partial(heads.MultiHeadAttentionWrapper, 40, 40, 32, 5),
        {"softmax-axis"},
        why="the scores are [B, Q, K], and dim 1 is the queries",
    ),
    broken(
        partial(heads.HeadsModule, 48, 4),
        {"state-dict", "weights-unregistered"},
        why="a Python list hides the heads: nothing trains, saves or moves them",
    ),
    broken(
        partial(heads.JoinedHeads, 48, 4),
        {"output-projection-missing"},
        why="the output projection is made and not used",
    ),
    broken(
        partial(heads.LanguageModelHead, 48, 4),
        {"causal-leak"},
        why="the diagonal above the main one is open: every token sees the next",
    ),
    broken(
        partial(heads.MinimalGPTAttention, 48, 4),
        {"causal-leak", "mask-fill-too-small"},
        why="a future score of -10 is not far enough below the others",
    ),
    broken(
        partial(heads.TinyGPTAttention, 48, 4),
        {"causal-leak", "mask-polarity"},
        why="keeps the upper triangle: a token sees itself and what comes after",
    ),
    broken(
        partial(packed.BatchFirstAttention, 48, 4),
        {"batch-mixing"},
        why="views [B, T, M] as [T, B*H, D]: rows of the batch mix",
    ),
    broken(partial(packed.BartAttention, 48, 4), {"wrong-scale"}, why="scales the queries, and then the scores"),
    broken(
        partial(packed.SplitHeadsAttention, 4, 48),
        {"mask-head-order"},
        why="the scores are [H*B], the mask is repeated as [B*H] (lsdefine #36)",
    ),
    broken(
        partial(packed.PackedHeadsAttention, 48, 4),
        {"mask-head-order"},
        why="the scores are [B*H], the mask is repeated as [H*B]",
    ),
    broken(
        partial(packed.ClassifierAttention, 48, 4),
        {"head-merge", "head-split"},
        why="heads are split and joined by bare views (FuxiCTR #30)",
    ),
    broken(
        partial(packed.ProjectedAttention, 48, 4),
        {"batch-mixing", "head-merge"},
        why="joins the heads of [B*H] as if it were [H*B]: rows of the batch mix",
    ),
    broken(
        partial(rotary.RotaryAttention, 48, 4),
        {"rope-pairing"},
        why="tables for the half-split pairing, a rotation of neighbours",
    ),
    broken(partial(rotary.RoPESelfAttention, 48, 4), {"rope-asymmetric"}, why="queries are rotated, keys are not"),
    broken(partial(rotary.RotaryQKVAttention, 48, 4), {"rope-asymmetric"}, why="the values are rotated, too"),
    broken(
        partial(rotary.LongContextAttention, 48, 4),
        {"rope-half-precision"},
        why="frequencies are a buffer, so .bfloat16() lowers them and the positions with them",
    ),
    broken(partial(rotary.CachedRotaryAttention, 48, 4), {"cache-mismatch"}, why="every step begins at position 0"),
    broken(
        partial(rotary.StretchedAttention, 48, 4),
        {"cache-mismatch"},
        why="the base changes with the length, and the keys in the cache keep the one they were rotated with",
    ),
    broken(partial(rotary.PromptAttention, 48, 4), {"left-padding"}, why="positions count the padding on the left"),
    broken(
        partial(rotary.LatentAttention, 48, 4),
        {"mscale-twice"},
        why="YaRN's factor is in the tables and squared in the scale (Megatron-LM #1429)",
    ),
    broken(
        partial(biases.AlibiSelfAttention, 48, 6), {"alibi-slopes"}, why="the formula for powers of two, with six heads"
    ),
    broken(partial(biases.T5Attention, 48, 4, 12), {"t5-scaled"}, why="SDPA scales by default; T5 does not"),
    broken(
        partial(eager.EagerAttention, 48, 4),
        {"weights-averaged"},
        why="returns the mean of the heads' weights, without being asked",
    ),
    broken(
        partial(eager.PaddedEncoderAttention, 48, 4),
        {"mask-broadcast"},
        why="the padding mask hides queries, and the padded keys are seen",
    ),
    broken(partial(eager.DeviceAttention, 48, 4), {"mask-overflows-half"}, why="-1e20 is no number of float16"),
    broken(
        partial(eager.FastViTAttention, 48, 4),
        {"softmax-half"},
        why="the softmax is in float16, whatever the inputs are",
    ),
    broken(
        partial(eager.ViTAttention, 64, heads=4), {"wrong-scale"}, why="scales by the model's width (vit-pytorch #65)"
    ),
    broken(
        partial(eager.LatentQueries, 48),
        {"wrong-scale"},
        why="divides by what is already the inverse of the root (perceiver-io #9)",
    ),
    broken(
        partial(eager.LayerAttention, 48, 4),
        {"mask-polarity"},
        why="adds -1e9 where the mask is 1, which it says are the tokens to keep",
    ),
    broken(
        partial(layers.CrossDecoderLayer, 48, 4), {"cross-mask"}, why="cross attention gets the queries' padding mask"
    ),
    broken(
        partial(layers.CrossAttention, 48, 4),
        {"cross-mask"},
        why="the queries' padding mask is put on the keys (transformers #35032)",
    ),
    broken(
        partial(course.MaskedAttention, 48, 4),
        {"mask-ignored"},
        why="masked_fill makes a new tensor, and nobody takes it (ParlAI #3068)",
    ),
    broken(partial(course.TokenAttention, 48, 4), {"mask-polarity"}, why="fills where `keep` is 1"),
    broken(
        partial(course.DotProductAttention, 48, 4),
        {"mask-fill-too-small"},
        why="1e-9 for -1e9: hidden keys get a score of nearly 0",
    ),
    broken(
        partial(course.GraphAttention, 48, 4),
        {"mask-multiplied"},
        why="multiplies the scores by the mask: hidden keys get a score of 0",
    ),
    broken(
        partial(course.VisibleAttention, 48, 4),
        {"mask-after-softmax"},
        why="masks after the softmax, so rows no longer add up to one",
    ),
    broken(
        partial(course.SentenceAttention, 64, 4),
        {"mask-broadcast"},
        why="the padding mask hides queries, and the padded keys are seen",
    ),
    broken(
        partial(course.PaddedCausalAttention, 48, 4),
        {"empty-row-nan"},
        why="a row whose every visible key is padding is -inf throughout: NaN",
    ),
    broken(
        partial(course.BufferAttention, 48, 4),
        {"masked-nan-leaks"},
        why="NaN in an empty slot reaches the scores and, times 0, the output",
    ),
    broken(
        partial(course.ScratchAttention, 48, 4), {"softmax-unstable"}, why="exp without taking the maximum off first"
    ),
    broken(
        partial(course.MapAttention, 48, 4),
        {"gradient-blocked", "unused-parameter"},
        why="what is detached for looking at is used, too: queries and keys never learn",
    ),
    broken(partial(course.ClipAttention, 48, 4), {"sizes-fixed"}, why="squeeze also takes away a batch of one"),
    broken(
        partial(course.NormAttention, 48, 4),
        {"unused-parameter"},
        why="one norm is used twice, so the other's parameters have no use",
    ),
    broken(
        partial(course.FastAttention, 64, 4),
        {"train-eval-differ"},
        why="training divides by the root of the model's width, evaluating by that of the head's",
    ),
    broken(partial(course.FlatAttention, 48, 4), {"noncontiguous-input"}, why="view wants a contiguous input"),
    broken(partial(course.QueryAttention, 48, 4), {"input-modified"}, why="scales the caller's tensor in place"),
    broken(
        partial(course.HeadsAttention, 50, 4),
        {"heads-not-dividing"},
        why="50 is no multiple of 4, and nobody says so: two columns have no head",
    ),
    broken(
        partial(course.AssignmentAttention, 48, 4),
        {"wrong-scale"},
        {"head-merge"},
        why="the scores are not scaled, and a bare view joins the heads",
    ),
)
