"""Ways to write the two products: q kᵀ, and the weights times the values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import B, D, H, M, Q, style

Two = tuple[Tensor, Any]


@style
def at(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = (q @ k.mT * 0.3).softmax(-1)
    return w @ v, w


@style
def baddbmm_of_nothing(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in diffusers: what is added is not even filled."""
    q, k, v = (x.reshape(B * H, Q, D) for x in (q, k, v))
    w = functional.softmax(torch.baddbmm(torch.empty(B * H, Q, Q), q, k.mT, beta=0, alpha=0.25), dim=-1)
    return torch.bmm(w, v), w.view(B, H, Q, Q)


@style
def grouped_queries(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Two query heads of a key head as a dimension of their own; the keys broadcast over it."""
    q, k, v = q.view(B, 2, 2, Q, D), k[:, :2, None], v[:, :2, None]
    w = (q @ k.mT).softmax(-1)
    return (w @ v).flatten(1, 2), w.flatten(1, 2)


@style
def multi_query_folded_into_rows(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in StarCoder: the heads are more queries of the only key head."""
    k, v = k[:, 0], v[:, 0]
    w = torch.bmm(q.transpose(1, 2).reshape(B, Q * H, D), k.mT).view(B, Q, H, Q).softmax(-1)
    return torch.bmm(w.view(B, Q * H, Q), v).view(B, Q, M), w.transpose(1, 2)


@style
def einsum_without_an_arrow(q: Tensor, k: Tensor, v: Tensor) -> Two:
    w = torch.einsum("id,jd", q[0, 0], k[0, 0]).softmax(-1)
    return torch.einsum("ij,je", w, v[0, 0]), w[None, None]


@style
def einsum_to_qkbh(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """As in Transformer-XL and XLNet: the sequence first, the heads last."""
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    w = functional.softmax(torch.einsum("ibnd,jbnd->ijbn", q, k) * D**-0.5, dim=1)
    return torch.einsum("ijbn,jbnd->ibnd", w, v), w.permute(2, 3, 0, 1)


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
def multi_dot(x: Tensor) -> Two:
    """The weights, the values and their projection in one product."""
    w = torch.linalg.multi_dot([x[0], torch.eye(M) * 0.1, x[0].T]).softmax(-1)
    return torch.linalg.multi_dot([w, x[0], torch.linspace(-1, 1, M * M).view(M, M)]), w[None, None]


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
