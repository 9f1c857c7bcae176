import torch
import torch.nn as nn


class GatedGraphAttention(nn.Module):
    """Attention between the nodes of dense graphs with independent edge gates.

    Every edge gets a gate in (0, 1) from a sigmoid; messages of the neighbours are
    multiplied by their gates and summed. Nodes that are not connected exchange nothing.
    """

    def __init__(self, in_dim: int = 32, out_dim: int = 32, num_heads: int = 4, residual: bool = True):
        super().__init__()
        if out_dim % num_heads != 0:
            raise ValueError("out_dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.head_dim = out_dim // num_heads
        self.residual = residual and in_dim == out_dim
        self.lin_q = nn.Linear(in_dim, out_dim)
        self.lin_k = nn.Linear(in_dim, out_dim)
        self.lin_v = nn.Linear(in_dim, out_dim)
        self.lin_out = nn.Linear(out_dim, out_dim)
        self.norm = nn.LayerNorm(in_dim)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """
        nodes: [batch, num_nodes, in_dim]
        adjacency: [batch, num_nodes, num_nodes], adjacency[b, i, j] != 0 if i receives from j
        """
        b, n, _ = nodes.shape
        h = self.norm(nodes)
        q = self.lin_q(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.lin_k(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.lin_v(h).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        logits = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim ** 0.5
        connected = (adjacency != 0).unsqueeze(1)
        logits = logits.masked_fill(~connected, 0.0)
        gates = torch.sigmoid(logits)

        out = torch.matmul(gates, v).transpose(1, 2).reshape(b, n, -1)
        out = self.lin_out(out)
        return nodes + out if self.residual else out
