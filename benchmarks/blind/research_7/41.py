import math

import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """One decoding step of the attention model for routing problems.

    A glimpse over the nodes refines the context; the pointer then scores the nodes with a
    single head and has no values. Pointer logits are clipped to [-clip, clip] before the
    visited nodes are removed.

    nodes:   [B, N, dim]  encoder output
    context: [B, dim]     state of the tour
    visited: [B, N] bool  True for nodes that must not be selected again (one must be left)

    Returns the log-probabilities [B, N] of the next node.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, clip: float = 10.0):
        super().__init__()
        self.dim, self.num_heads, self.clip = dim, num_heads, clip
        self.head_dim = dim // num_heads
        self.project_nodes = nn.Linear(dim, 3 * dim, bias=False)
        self.project_context = nn.Linear(dim, dim, bias=False)
        self.project_out = nn.Linear(dim, dim, bias=False)

    def forward(self, nodes, context, visited):
        B, N, _ = nodes.shape
        glimpse_k, glimpse_v, logit_k = self.project_nodes(nodes).chunk(3, dim=-1)

        q = self.project_context(context).view(B, self.num_heads, 1, self.head_dim)
        k = glimpse_k.view(B, N, self.num_heads, self.head_dim).transpose(1, 2)
        v = glimpse_v.view(B, N, self.num_heads, self.head_dim).transpose(1, 2)

        compat = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        compat = compat.masked_fill(visited[:, None, None, :], float("-inf"))
        glimpse = (compat.softmax(dim=-1) @ v).reshape(B, self.dim)
        glimpse = self.project_out(glimpse)

        logits = torch.einsum("bd,bnd->bn", glimpse, logit_k) / math.sqrt(self.dim)
        logits = torch.tanh(logits) * self.clip
        logits = logits.masked_fill(visited, float("-inf"))
        return logits.log_softmax(dim=-1)
