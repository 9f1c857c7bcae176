"""Attention as well-known code has it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import CAUSAL, REAL, B, D, H, M, Q, style

Two = tuple[Tensor, Any]


@style
class MinGPTHead(nn.Module):
    """Karpathy's lecture: each head is a module."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(M, D, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Two:
            wei = self.query(x) @ self.key(x).transpose(-2, -1) * D**-0.5
            wei = functional.softmax(wei.masked_fill(~CAUSAL, float("-inf")), dim=-1)
            return wei @ self.value(x), wei[:, None]

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(self.Head() for _ in range(H))

    def forward(self, x: Tensor) -> Two:
        outs, weights = zip(*(head(x) for head in self.heads), strict=True)
        return torch.cat(outs, dim=-1), weights


@style
class Fairseq(nn.Module):
    """fairseq's MultiheadAttention: the time first, heads in the batch, a float32 softmax and type_as."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(M, M) for _ in range(4))

    def forward(self, x: Tensor) -> Two:
        query = x.transpose(0, 1)
        q, k, v = self.q_proj(query) * D**-0.5, self.k_proj(query), self.v_proj(query)
        q, k, v = (t.contiguous().view(-1, B * H, D).transpose(0, 1) for t in (q, k, v))
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        attn_weights = attn_weights.view(B, H, Q, Q)
        attn_weights = attn_weights.masked_fill(~REAL.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
        attn_weights = attn_weights.view(B * H, Q, Q)
        attn_weights_float = functional.softmax(attn_weights, dim=-1, dtype=torch.float32)
        attn_weights = attn_weights_float.type_as(attn_weights)
        attn = torch.bmm(functional.dropout(attn_weights, 0.1, False), v)
        attn = attn.transpose(0, 1).contiguous().view(Q, B, M)
        return self.out_proj(attn), attn_weights_float.view(B, H, Q, Q)


@style
class XLM(nn.Module):
    """XLM: masked_fill_ of an expanded mask, softmax(scores.float()).type_as(scores)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        scores = torch.matmul(q / math.sqrt(D), k.transpose(2, 3))
        scores.masked_fill_((REAL == 0).view(B, 1, 1, Q).expand_as(scores), torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = functional.dropout(weights, p=0.1, training=False)
        return torch.matmul(weights, v), weights


@style
class SewD(nn.Module):
    """SEW-D and DeBERTa's first XSoftmax: the weights are filled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads = H

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        s = torch.bmm(q.reshape(-1, Q, D), k.reshape(-1, Q, D).transpose(-1, -2) / math.sqrt(D)).view(B, H, Q, Q)
        rmask = ~REAL[:, None, None].expand(B, 1, Q, Q)
        w = torch.softmax(s.masked_fill(rmask, torch.finfo(s.dtype).min), -1)
        w.masked_fill_(rmask, 0)
        return torch.bmm(w.view(-1, Q, Q), v.reshape(-1, Q, D)), w.clone()


@style
class MetaLlama(nn.Module):
    """Meta's Llama: a cache as a buffer, repeat_kv, softmax(scores.float()).type_as(xq)."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_k = torch.zeros(B, 10, 2, D)
        self.cache_v = torch.zeros(B, 10, 2, D)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        xq, xk, xv = q.transpose(1, 2), k.transpose(1, 2)[:, :, :2], v.transpose(1, 2)[:, :, :2]
        self.cache_k[:, :Q], self.cache_v[:, :Q] = xk, xv
        keys, values = (
            x[:, :Q, :, None].expand(B, Q, 2, 2, D).reshape(B, Q, H, D).transpose(1, 2)
            for x in (self.cache_k, self.cache_v)
        )
        scores = torch.matmul(xq.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(D)
        scores = scores + torch.triu(torch.full((Q, Q), float("-inf")), diagonal=1)
        scores = functional.softmax(scores.float(), dim=-1).type_as(xq)
        return torch.matmul(scores, values).transpose(1, 2).contiguous().view(B, Q, -1), scores


@style
class ClipText(nn.Module):
    """OpenAI's CLIP: nn.MultiheadAttention without weights, the time first, a causal float mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(M, H)
        self.register_buffer("attn_mask", torch.full((Q, Q), float("-inf")).triu_(1))

    def forward(self, x: Tensor) -> Two:
        y = x.permute(1, 0, 2)
        out = self.attn(y, y, y, need_weights=False, attn_mask=self.attn_mask)[0]
        return out, lambda: self.attn(y, y, y, attn_mask=self.attn_mask, average_attn_weights=False)[1]


@style
class MultiheadAttentionWithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(M, H, batch_first=True)

    def forward(self, x: Tensor) -> Two:
        return self.attn(x, x, x, need_weights=True, average_attn_weights=False, key_padding_mask=~REAL)


@style
class DetrDecoderLayer(nn.Module):
    """DETR: queries attend to each other, then to the image; positions are added to queries and keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.multihead_attn = (nn.MultiheadAttention(M, H) for _ in range(2))
        self.query_pos = nn.Parameter(torch.randn(3, 1, M))

    def forward(self, context: Tensor) -> Two:
        memory = context.transpose(0, 1)
        q = k = self.query_pos.expand(-1, B, -1)
        out, _ = self.self_attn(q, k, value=torch.zeros_like(q))
        cross = self.multihead_attn(query=out + self.query_pos, key=memory, value=memory)[0]

        def truth(attn: nn.MultiheadAttention, a: Tensor, b: Tensor) -> Tensor:
            w: Tensor = attn(a, b, b, average_attn_weights=False)[1]
            return w

        return cross, (
            lambda: truth(self.self_attn, q, k),
            lambda: truth(self.multihead_attn, out + self.query_pos, memory),
        )


@style
class TransformerEncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(M, H, 16, batch_first=True)

    def forward(self, x: Tensor) -> Two:
        attn = self.layer.self_attn
        return self.layer(x), lambda: attn(x, x, x, average_attn_weights=False)[1]


@style
class Xformers(nn.Module):
    """The layout of xformers' memory_efficient_attention, [B, Q, H, D], with a bias, in plain operations."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Two:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        query = (q * (1.0 / q.shape[-1] ** 0.5)).transpose(1, 2)
        attn = query @ k.transpose(1, 2).transpose(-2, -1)
        attn = attn + torch.zeros(Q, Q).masked_fill(~CAUSAL, -math.inf)
        attn = functional.dropout(attn.softmax(-1), 0.0)
        return (attn @ v.transpose(1, 2)).transpose(1, 2).contiguous(), attn


@style
class NonLocal(nn.Module):
    """Non-local blocks and the autoencoder of CompVis: convolutions, v [B, C, N] times the transposed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(M, M, 1) for _ in range(3))

    def forward(self, image: Tensor) -> Two:
        q, k, v = (part(image).flatten(2) for part in (self.q, self.k, self.v))
        w_ = torch.bmm(q.permute(0, 2, 1), k) * (int(M) ** (-0.5))
        w_ = functional.softmax(w_, dim=2)
        h_ = torch.bmm(v, w_.permute(0, 2, 1)).reshape(image.shape)
        return image + h_, w_[:, None]


@style
class EncoderDecoder(nn.Module):
    """Luong's attention in the tutorials: dot scores [T, B], transposed, softmax over dimension 1."""

    def forward(self, x: Tensor, context: Tensor) -> Two:
        hidden, outputs = x[:, :1].transpose(0, 1), context.transpose(0, 1)
        energies = torch.sum(hidden * outputs, dim=2).t()
        w = functional.softmax(energies, dim=1).unsqueeze(1)
        return w.bmm(outputs.transpose(0, 1)), w[:, None]


@style
class Evoformer(nn.Module):
    """AlphaFold's triangle attention: 5 dimensions, a mask and a bias of pairs, a gate after the values."""

    def __init__(self) -> None:
        super().__init__()
        self.no_heads = H
        self.bias, self.gate = nn.Linear(M, H, bias=False), nn.Linear(M, M)

    def forward(self, image: Tensor) -> Two:
        x = image.permute(0, 2, 3, 1)  # [B, rows, columns, M]
        q = k = v = x.unflatten(-1, (H, D)).transpose(-2, -3)  # [B, rows, H, columns, D]
        a = torch.matmul(q * D**-0.5, k.transpose(-1, -2))
        a += torch.zeros(B, 6, 1, 1, 4)
        a += self.bias(x[:, :4]).permute(0, 3, 1, 2).unsqueeze(1)
        a = functional.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)
        return o.flatten(-2) * torch.sigmoid(self.gate(x)), a.reshape(B * 6, H, 4, 4)
