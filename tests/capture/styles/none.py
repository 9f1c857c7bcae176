"""What is not attention, though it has a softmax, products, or its name. (Weights of keys by other means than a softmax
are in weights.py.)"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import NOT_ATTENTION, B, D, H, M, Q, style

Two = tuple[Tensor, Any]


@style
def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Katharopoulos et al."""
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    return torch.einsum("bhqd,bhde->bhqe", q, k.mT @ v) / (q @ k.sum(-2)[..., None]), NOT_ATTENTION


@style
def dual_state_space(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """Mamba-2 in its quadratic form: (q kᵀ ∘ decay) v, no softmax and no sum of 1."""
    decay = torch.exp(torch.cumsum(torch.full((Q,), -0.1), 0))
    return (q @ k.mT * (decay[:, None] / decay).tril()) @ v, NOT_ATTENTION


@style
class DynamicConvolution(nn.Module):
    """The kernel is a softmax of a projection of each position, and its windows are unfolded."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Linear(M, H * 3)

    def forward(self, x: Tensor) -> Two:
        kernel = self.kernel(x).view(B * Q * H, 3, 1).softmax(1)
        windows = functional.pad(x.mT, (1, 1)).unfold(2, 3, 1).permute(0, 2, 1, 3).reshape(B * Q * H, D, 3)
        return torch.bmm(windows, kernel).view(B, Q, M), NOT_ATTENTION


@style
class Router(nn.Module):
    """Mixture of experts: a softmax of a projection, the largest two, and a loop over the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(M, 4, bias=False), nn.ModuleList(nn.Linear(M, M) for _ in range(4))

    def forward(self, x: Tensor) -> Two:
        x = x.view(-1, M)
        weights, chosen = self.gate(x).softmax(dim=1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            at, which = torch.where(chosen == i)
            out.index_add_(0, at, expert(x[at]) * weights[at, which, None])
        return out.view(B, Q, M), NOT_ATTENTION


@style
class SoftMixture(nn.Module):
    """Soft MoE: learned slots read the tokens, which is attention; tokens choose slots by learned keys."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(4, M))

    def forward(self, x: Tensor) -> Two:
        logits = torch.einsum("bnd,sd->bns", x, self.slots)
        dispatch = logits.softmax(1)
        inputs = torch.einsum("bns,bnd->bsd", dispatch, x)
        return torch.einsum("bns,bsd->bnd", logits.softmax(2), inputs.tanh()), dispatch.mT[:, None]


@style
def gate(x: Tensor) -> Two:
    """A softmaxed parameter, and a sigmoid of products."""
    open_ = (x @ x.mT).sum(-1, keepdim=True).sigmoid()
    return (x * open_) @ torch.linspace(-1, 1, M * M).view(M, M).softmax(-1), NOT_ATTENTION


@style
class Classifier(nn.Module):
    """The probabilities are the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(M, 10)

    def forward(self, x: Tensor) -> Two:
        return self.head(x.mean(1)).softmax(-1), NOT_ATTENTION


@style
class SoftTokens(nn.Module):
    """The probabilities of the vocabulary times its own embeddings: a soft token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, M)

    def forward(self, ids: Tensor) -> Two:
        probabilities = functional.linear(self.embed(ids), self.embed.weight).softmax(-1)
        return probabilities @ self.embed.weight, NOT_ATTENTION


@style
class GumbelCodebook(nn.Module):
    """wav2vec 2.0: a hard choice of code vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.codes = nn.Linear(M, 10), nn.Parameter(torch.randn(10, M))

    def forward(self, x: Tensor) -> Two:
        chosen = functional.gumbel_softmax(self.project(x).view(B * Q, 10), hard=True)
        return (chosen.unsqueeze(-1) * self.codes.unsqueeze(0)).sum(1).view(B, Q, M), NOT_ATTENTION


@style
class SoftCodebook(nn.Module):
    """Distances to code vectors, softmaxed, times the code vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(10, M))

    def forward(self, x: Tensor) -> Two:
        return (-torch.cdist(x, self.codes)).softmax(-1) @ self.codes, NOT_ATTENTION


@style
def deformable(x: Tensor, image: Tensor) -> Two:
    """Deformable DETR: sampled points with weights that no key had a part in."""
    at = x[..., :8].tanh().view(B, Q, 4, 2)
    weights = x[..., 8:12].softmax(-1)
    sampled = functional.grid_sample(image, at, align_corners=False)  # [B, M, Q, 4]
    return (sampled * weights[:, None]).sum(-1).mT, NOT_ATTENTION


@style
def attention_free(q: Tensor, k: Tensor, v: Tensor) -> Two:
    """AFT: exp of keys and of biases of positions; no product of queries and keys."""
    bias = torch.linspace(-1, 1, Q * Q).view(Q, Q).exp()
    return q.sigmoid() * (bias @ (k.exp() * v)) / (bias @ k.exp()), NOT_ATTENTION


@style
class ExpertsByMatmul(nn.Module):
    """A gate whose softmax is multiplied with the experts' outputs by @."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Parameter(torch.randn(M, 4)), nn.Parameter(torch.randn(4, M, M))

    def forward(self, x: Tensor) -> Two:
        outs = torch.einsum("bnm,emo->bneo", x, self.experts)
        return ((x @ self.gate).softmax(-1).unsqueeze(-2) @ outs).squeeze(-2), NOT_ATTENTION


@style
class HiddenStateMixer(nn.Module):
    """EfficientViM: a softmax over positions weighs the input of a state, and is multiplied by another projection."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.inner = nn.Conv1d(M, 15, 1, bias=False), nn.Conv1d(M, 2 * M, 1)
        self.local, self.mix = (nn.Conv2d(n, n, 3, padding=1, groups=n) for n in (M, 15))
        self.a = nn.Parameter(torch.randn(5))

    def forward(self, image: Tensor) -> Two:
        for _ in range(2):  # the scores of the second are made from a product of the first
            x = self.local(image).flatten(2)
            b, c, dt = torch.split(self.mix(self.project(x).reshape(B, -1, 6, 4)).flatten(2), [5, 5, 5], dim=1)
            ab = (dt + self.a.view(1, -1, 1)).softmax(-1) * b
            h, z = torch.split(self.inner(x @ ab.transpose(-2, -1)), [M, M], dim=1)
            image = ((h * functional.silu(z)) @ c).reshape(image.shape).contiguous()
        return image, NOT_ATTENTION
