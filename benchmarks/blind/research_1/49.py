import torch
import torch.nn as nn
import torch.nn.functional as F


class ChunkedCrossAttention(nn.Module):
    """Chunked cross-attention of RETRO (Borgeaud et al., 2021).

    The neighbours of chunk ``u`` were retrieved with the complete chunk, so the first token that may
    see them is the last one of that chunk: the text is shifted by ``chunk_size - 1`` before it is
    cut, and each piece attends to the neighbours of one chunk. The first ``chunk_size - 1`` tokens
    have no neighbours yet and get a zero update. Without positions inside the neighbours here.

    Args:
        x: (batch, length, dim)
        retrieved: (batch, length // chunk_size, neighbours, neighbour_length, dim)

    Returns:
        the update (batch, length, dim), to be added to the residual stream
    """

    def __init__(self, dim: int = 64, heads: int = 4, dim_head: int = 16, chunk_size: int = 8):
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.chunk_size = chunk_size
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_k = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_v = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x: torch.Tensor, retrieved: torch.Tensor) -> torch.Tensor:
        b, length, dim = x.shape
        size = self.chunk_size
        chunks = length // size
        if chunks == 0:
            return torch.zeros_like(x)
        if retrieved.shape[1] != chunks:
            raise ValueError(f"expected neighbours for {chunks} chunks, got {retrieved.shape[1]}")

        h = self.norm(x)[:, size - 1:]
        attending = h.shape[1]
        h = F.pad(h, (0, 0, 0, chunks * size - attending))
        context = retrieved.reshape(b, chunks, -1, dim)

        q = self.to_q(h).view(b, chunks, size, self.heads, self.dim_head)
        k = self.to_k(context).view(b, chunks, -1, self.heads, self.dim_head)
        v = self.to_v(context).view(b, chunks, -1, self.heads, self.dim_head)

        sim = torch.einsum("bcihd,bcjhd->bchij", q, k) * self.dim_head ** -0.5
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bchij,bcjhd->bcihd", attn, v)
        out = self.to_out(out.reshape(b, chunks * size, -1))

        return F.pad(out[:, :attending], (0, 0, size - 1, 0))
