"""Attention as well-known code has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.capture.styles.style import B, D, H, M, style

Two = tuple[Tensor, Any]


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
