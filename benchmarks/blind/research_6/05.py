import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseNeighbourAttention(nn.Module):
    r"""Attention on a dense adjacency matrix.

    ``adj[b, i, j] != 0`` says that node ``i`` listens to node ``j``. The diagonal is
    used as it is given; no self loops are inserted, because the node's own features
    enter through ``self.root``. A node without neighbours gets a zero message.
    """

    def __init__(self, dim: int = 48, num_heads: int = 4, attn_drop: float = 0.0):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.d = dim // num_heads
        self.left = nn.Linear(dim, dim)
        self.right = nn.Linear(dim, dim)
        self.score = nn.Parameter(torch.empty(num_heads, self.d))
        self.root = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)
        nn.init.xavier_uniform_(self.score)

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape
        listener = self.left(x).view(B, N, 1, self.num_heads, self.d)
        speaker = self.right(x).view(B, 1, N, self.num_heads, self.d)

        # GATv2: the nonlinearity comes before the scoring vector, so no 1/sqrt(d)
        pair = F.leaky_relu(listener + speaker, 0.2)
        logits = (pair * self.score).sum(-1).permute(0, 3, 1, 2)

        edge = (adj != 0).unsqueeze(1)
        logits = logits.masked_fill(~edge, torch.finfo(logits.dtype).min)
        alpha = logits.softmax(dim=-1) * edge.to(logits.dtype)
        alpha = self.attn_drop(alpha)

        msg = torch.einsum("bhij,bjhd->bihd", alpha, speaker.squeeze(1))
        return self.root(x) + msg.reshape(B, N, C)
