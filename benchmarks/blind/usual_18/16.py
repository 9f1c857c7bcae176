import torch
from torch import nn


class MaskedMultiheadAttention(nn.Module):
    """Multi-head attention that follows the mask convention of ``torch.nn.MultiheadAttention``.

    ``blocked`` is a bool tensor in which **True marks a key that must NOT be attended**. It may have
    the shape (key_len,), (batch, key_len), (query_len, key_len) with ``per_query=True``, or
    (batch, query_len, key_len). A query for which everything is blocked receives zeros (before the
    output projection).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, dim)
        self.wkv = nn.Linear(dim, 2 * dim)
        self.wo = nn.Linear(dim, dim)

    @staticmethod
    def _broadcast(blocked: torch.Tensor, per_query: bool) -> torch.Tensor:
        if blocked.dim() == 1:
            return blocked[None, None, None, :]
        if blocked.dim() == 2:
            return blocked[None, None, :, :] if per_query else blocked[:, None, None, :]
        return blocked[:, None, :, :]

    def forward(self, query, memory=None, blocked=None, per_query=False):
        memory = query if memory is None else memory
        B, Lq, D = query.shape
        Lk = memory.size(1)

        q = self.wq(query).view(B, Lq, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.wkv(memory).view(B, Lk, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        scores = (q * self.head_dim ** -0.5) @ k.transpose(-1, -2)
        if blocked is not None:
            blocked = self._broadcast(blocked, per_query)
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if blocked is not None:
            weights = weights.masked_fill(blocked, 0.0)

        out = (weights @ v).transpose(1, 2).reshape(B, Lq, D)
        return self.wo(out)
