"""Ways to write the two products: q kᵀ, and the weights times the values."""

from __future__ import annotations

import math
from typing import Any

import einops
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import BIAS, CAUSAL, REAL, B, D, H, M, Q, style

Two = tuple[Tensor, Any]


@style
def at(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (q @ k.mT * 0.3).softmax(-1)
    return w @ v, w


@style
def matmul(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = functional.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D), dim=-1)
    return torch.matmul(w, v), w


@style
def matmul_of_keywords(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.softmax(input=torch.matmul(q, other=k.transpose(-2, -1)), dim=-1)
    return torch.matmul(input=w, other=v), w


@style
def scaled_queries(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = nn.Softmax(dim=3)((q * D**-0.5).matmul(k.permute(0, 1, 3, 2)))
    return w.matmul(v), w


@style
def scaled_on_both_sides(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Megatron, Whisper and CLIP's U-Nets: no product overflows in half precision."""
    w = ((q * D**-0.25) @ (k * D**-0.25).mT).softmax(-1)
    return w @ v, w


@style
def transposed_product(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (k @ q.mT).transpose(-1, -2).softmax(-1)
    return w @ v, w


@style
def transposed_property(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = ((k @ q.mT) / 2).mT.data.softmax(-1)
    return w @ v, w


@style
def permuted_product(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (k @ q.mT).permute(0, 1, 3, 2).softmax(-1)
    return w @ v, w


@style
def values_times_transposed_weights(x: Tensor) -> Two:
    """As in SAGAN and the autoencoder of Stable Diffusion: v [B, M, N] @ wᵀ."""
    q = k = v = x.mT
    w = torch.bmm(q.mT, k).mul(M**-0.5).softmax(dim=2)
    return torch.bmm(v, w.permute(0, 2, 1)), w[:, None]


@style
def bmm(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    w = functional.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, dim=-1)
    return torch.bmm(w, v), w.view(B, H, Q, Q)


@style
def bmm_and_view(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As BART once did: a mask for each example is added in between."""
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    s = torch.bmm(q, k.transpose(1, 2)).view(B, H, Q, Q).masked_fill(~REAL[:, None, None], -math.inf)
    w = functional.softmax(s.view(B * H, Q, Q), dim=-1)
    return torch.bmm(w, v), w.view(B, H, Q, Q)


@style
def heads_before_the_batch(x: Tensor) -> Two:
    """As in the first Transformers of PyTorch: the heads are cut and put one after another along the batch."""
    q = k = v = torch.cat(x.split(D, dim=2), dim=0)
    w = torch.bmm(q, k.mT).div(D**0.5).softmax(-1)
    return torch.cat(torch.bmm(w, v).split(B, dim=0), dim=2), w.view(H, B, Q, Q).transpose(0, 1)


@style
def baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    bias = torch.linspace(-1, 1, B * H * Q * Q).view(B * H, Q, Q)
    w = functional.softmax(torch.baddbmm(bias, q, k.mT, beta=2.0, alpha=0.25), dim=-1)
    return torch.bmm(w, v), w.view(B, H, Q, Q)


@style
def baddbmm_of_nothing(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in diffusers: what is added is not even filled."""
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    w = functional.softmax(torch.baddbmm(torch.empty(B * H, Q, Q), q, k.mT, beta=0, alpha=0.25), dim=-1)
    return torch.bmm(w, v), w.view(B, H, Q, Q)


@style
def alibi_by_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in BLOOM."""
    alibi = (torch.tensor([2.0 ** -(h + 1) for h in range(H)])[:, None, None] * torch.arange(Q)).repeat(B, 1, 1)
    s = alibi.baddbmm(q.reshape(B * H, Q, D), k.reshape(B * H, Q, D).mT, beta=1.0, alpha=D**-0.5)
    w = functional.softmax(s.view(B, H, Q, Q).masked_fill(~CAUSAL, torch.finfo(s.dtype).min), dim=-1)
    return torch.bmm(w.view(B * H, Q, Q), v.reshape(B * H, Q, D)), w


@style
def one_head(x: Tensor) -> Two:
    w = (x[0] @ x[0].T / D**0.5).softmax(-1)
    return w @ x[0], w[None, None]


@style
def five_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.view(B, 2, 2, Q, D) for x in (q, k, v))
    w = (q @ k.mT).softmax(-1)
    return w @ v, w.view(B, H, Q, Q)


@style
def grouped_queries(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Two query heads of a key head as a dimension of their own; the keys broadcast over it."""
    q, k, v = q.view(B, 2, 2, Q, D), k[:, :2, None], v[:, :2, None]
    w = (q @ k.mT).softmax(-1)
    return (w @ v).flatten(1, 2), w.flatten(1, 2)


@style
def multi_query_by_broadcasting(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """One key head for all, as in PaLM and lucidrains' code."""
    k, v = k[:, 0], v[:, 0]
    w = einops.einsum(q, k, "b h i d, b j d -> b h i j").softmax(-1)
    return einops.einsum(w, v, "b h i j, b j d -> b h i d"), w


@style
def multi_query_folded_into_rows(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in StarCoder: the heads are more queries of the only key head."""
    k, v = k[:, 0], v[:, 0]
    w = torch.bmm(q.transpose(1, 2).reshape(B, Q * H, D), k.mT).view(B, Q, H, Q).softmax(-1)
    return torch.bmm(w.view(B, Q * H, Q), v).view(B, Q, M), w.transpose(1, 2)


@style
def einsum(q: Tensor, k: Tensor, v: Tensor) -> Two:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    w = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) / 2, -1)
    return torch.einsum("bhij,bjhd->bihd", w, v), w


@style
def einsum_of_lists(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.softmax(torch.einsum("bhij, bhkj -> bhik", [q, k]), -1)
    return torch.einsum("bhij, bhjd -> bihd", [w, v]), w


@style
def einsum_of_shared_keys(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.softmax(torch.einsum("bhid,bjd->bhij", q, k[:, 0]), -1)
    return torch.einsum("bhij,bjd->bhid", w, v[:, 0]), w


@style
def einsum_with_transposed_operands(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.softmax(torch.einsum("bhjd,bhid->bhij", k, q) * 0.2, dim=-1)
    return torch.einsum("bhjd,bhij->bhid", v, w), w


@style
def einsum_with_an_ellipsis(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.einsum("...id,...jd->...ij", q, k).softmax(dim=-1)
    return torch.einsum("...ij,...jd->...id", w, v), w


@style
def einsum_of_numbers(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The letters as lists of integers."""
    w = torch.einsum(q, [0, 1, 2, 4], k, [0, 1, 3, 4], [0, 1, 2, 3]).softmax(-1)
    return torch.einsum(w, [0, 1, 2, 3], v, [0, 1, 3, 4], [0, 1, 2, 4]), w


@style
def einsum_without_an_arrow(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.einsum("id,jd", q[0, 0], k[0, 0]).softmax(-1)
    return torch.einsum("ij,je", w, v[0, 0]), w[None, None]


@style
def einsum_to_bqkh(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Heads last: the softmax is over dimension 2."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    w = torch.einsum("bqhd,bkhd->bqkh", q, k).softmax(dim=2)
    return torch.einsum("bqkh,bkhd->bqhd", w, v), w.permute(0, 3, 1, 2)


@style
def einsum_to_qkbh(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Transformer-XL and XLNet: the sequence first, the heads last."""
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    w = functional.softmax(torch.einsum("ibnd,jbnd->ijbn", q, k) * D**-0.5, dim=1)
    return torch.einsum("ijbn,jbnd->ibnd", w, v), w.permute(2, 3, 0, 1)


@style
def einsum_with_keys_before_queries(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.einsum("bhid,bhjd->bhji", q, k).softmax(dim=2)
    return torch.einsum("bhji,bhjd->bhid", w, v), w.mT


@style
def einsum_that_projects_too(x: Tensor) -> Two:
    """Three operands: the projection of the queries is in the same equation."""
    weight = torch.linspace(-1, 1, M * M).view(M, H, D) / M
    w = torch.einsum("bim,mhd,bjhd->bhij", x, weight, x.view(B, Q, H, D)).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", w, x.view(B, Q, H, D)), w


@style
def values_and_projection_in_one_einsum(q: Tensor, k: Tensor, v: Tensor) -> Two:
    weight = torch.linspace(-1, 1, M * M).view(H, D, M) / M
    w = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjd,hdm->bim", w, v, weight), w


@style
def einops_rearrange(x: Tensor) -> Two:
    q, k, v = (einops.rearrange(x, "b n (h d) -> b h n d", h=H) for _ in range(3))
    w = einops.einsum(q, k, "b h i d, b h j d -> b h i j").mul(D**-0.5).softmax(dim=-1)
    return einops.rearrange(w @ v, "b h n d -> b n (h d)"), w


@style
def tensordot(x: Tensor) -> Two:
    w = torch.tensordot(x[0], x[0], dims=([1], [1])).softmax(-1)
    return torch.tensordot(w, x[0], dims=1), w[None, None]


@style
def product_by_broadcasting(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Multiplied and summed, without a matrix product."""
    w = (q[..., :, None, :] * k[..., None, :, :]).sum(-1).softmax(-1)
    return (w[..., None] * v[..., None, :, :]).sum(-2), w


@style
def one_query(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Luong's: the decoder's state of one step attends to the encoder's states."""
    state, memory = q[:, 0, 0], k[:, 0]
    w = torch.bmm(memory, state.unsqueeze(2)).squeeze(2).softmax(dim=1)
    return torch.bmm(w.unsqueeze(1), memory).squeeze(1), w[:, None, None]


@style
def one_query_of_vectors(x: Tensor) -> Two:
    """Vectors instead of matrices: mv."""
    w = torch.mv(x[0], x[0, -1]).softmax(0)
    return torch.mv(x[0].T, w), w[None, None, None]


@style
def aten(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The operators themselves, as in exported and decomposed code."""
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    s = torch.ops.aten.mul.Tensor(torch.ops.aten.bmm.default(q, torch.ops.aten.transpose.int(k, 1, 2)), 0.5)
    w = torch.ops.aten._softmax.default(s, -1, False)
    return torch.ops.aten.bmm.default(w, v), w.view(B, H, Q, Q)


@style
def aten_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Two:
    out = torch.ops.aten.scaled_dot_product_attention.default(q, k, v)
    return out, lambda: (q @ k.mT * D**-0.5).softmax(-1)


@style
def aten_flash(q: Tensor, k: Tensor, v: Tensor) -> Two:
    out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)[0]
    return out, lambda: (q @ k.mT * D**-0.5).softmax(-1)


@style
def vmap_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    def head(q: Tensor, k: Tensor, v: Tensor) -> Two:
        w = (q @ k.mT).softmax(-1)
        return w @ v, w

    return torch.vmap(head, in_dims=1, out_dims=1)(q, k, v)


@style
def vmap_over_examples_and_heads(q: Tensor, k: Tensor, v: Tensor) -> Two:
    def head(q: Tensor, k: Tensor, v: Tensor) -> Two:
        w = torch.softmax(torch.einsum("id,jd->ij", q, k), dim=-1)
        return w @ v, w

    return torch.vmap(torch.vmap(head))(q, k, v)


@style
def linear_as_a_product(x: Tensor) -> Two:
    """F.linear with activations for its weight."""
    w = functional.linear(x[0], x[0]).softmax(-1)
    return functional.linear(w, x[0].T), w[None, None]


@style
def sparse_values_product(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """The weights as a sparse matrix."""
    w = (q[0, 0] @ k[0, 0].T).masked_fill(~CAUSAL, -math.inf).softmax(-1)
    return torch.sparse.mm(w.to_sparse(), v[0, 0]), w[None, None]


@style
def scores_with_a_matrix_between(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Luong's general, bilinear form."""
    between = torch.linspace(-1, 1, D * D).view(D, D)
    w = torch.matmul(torch.matmul(q, between), k.mT).softmax(-1)
    return w @ v, w


@style
def cross_attention(x: Tensor, context: Tensor) -> Two:
    q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in (x, context, context))
    w = (q @ k.mT * D**-0.5).softmax(-1)
    return w @ v, w


@style
def a_bias_of_the_scores_dtype(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in XLM and fairseq: type_as, of the bias and of the weights."""
    s = q @ k.mT
    w = (s + BIAS.type_as(s)).float().softmax(-1).type_as(s).view_as(s)
    return w @ v, w


@style
def inner(x: Tensor) -> Two:
    w = torch.inner(x[0], x[0]).softmax(-1)
    return torch.mm(w, x[0]), w[None, None]


@style
def addmm(x: Tensor) -> Two:
    w = torch.addmm(BIAS[0, 0], x[0], x[0].T, alpha=0.2).softmax(-1)
    return torch.addmm(x[0], w, x[0]), w[None, None]


@style
def multi_dot(x: Tensor) -> Two:
    """The weights, the values and their projection in one product."""
    w = torch.linalg.multi_dot([x[0], torch.eye(M) * 0.1, x[0].T]).softmax(-1)
    return torch.linalg.multi_dot([w, x[0], torch.linspace(-1, 1, M * M).view(M, M)]), w[None, None]


@style
def other_names(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Functions that are others under another name."""
    w = torch.special.softmax(torch.linalg.matmul(q, torch.adjoint(k)), -1)
    return torch.linalg.matmul(w, v), w


@style
def the_output_into_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Two:
    out = torch.empty(B, H, Q, D)
    w = (q @ k.mT).softmax(-1)
    torch.matmul(w, v, out=out)
    return out, w


@style
class HeadsInTheBatch(nn.Module):
    """Nothing says how many heads there are: they are examples."""

    def forward(self, x: Tensor) -> Two:
        x = x.view(B, Q, H, D).transpose(1, 2).reshape(B * H, Q, D)
        w = torch.bmm(x, x.mT).softmax(-1)
        return torch.bmm(w, x), w[:, None]


@style
def values_with_one_more_dimension(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """SepViT: weights between windows, and the values are whole windows."""
    w = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjwd->bhiwd", w, v.unflatten(-1, (2, 4))), w
