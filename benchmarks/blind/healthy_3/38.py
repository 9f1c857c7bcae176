"""Graph transformer in the manner of Graphormer, for batches of small molecules."""
import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.no_grad()
def shortest_paths(adj: torch.Tensor, max_dist: int) -> torch.Tensor:
    """Hop distances of a boolean adjacency (B, N, N), capped at ``max_dist + 1`` (far or unreachable)."""
    B, N, _ = adj.shape
    step = adj.float()
    reached = torch.eye(N, dtype=torch.bool, device=adj.device).expand(B, N, N)
    dist = torch.full((B, N, N), max_dist + 1, dtype=torch.long, device=adj.device)
    dist = dist.masked_fill(reached, 0)
    for d in range(1, max_dist + 1):
        frontier = torch.bmm(reached.float(), step) > 0
        dist = dist.masked_fill(frontier & ~reached, d)
        reached = reached | frontier
    return dist


class GraphormerLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(dim)
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, bias):
        """bias: (B, heads, N, N), added to the scores, -inf for absent nodes."""
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p)
        x = x + F.dropout(self.o(y.transpose(1, 2).flatten(2)), p=self.dropout, training=self.training)
        return x + F.dropout(self.ffn(self.norm2(x)), p=self.dropout, training=self.training)


class Graphormer(nn.Module):
    """Graph level regression.

    Inputs:
        atoms: (B, N) atom types from 1, 0 for padding; real atoms come first.
        bonds: (B, N, N) symmetric bond types from 1, 0 for no bond.

    A virtual node is put in front; it is connected with all atoms by its own bias and its final state is
    the representation of the molecule. Output (B, num_targets).
    """

    def __init__(self, num_atoms=50, num_bonds=5, num_targets=1, dim=96, heads=6, layers=3, max_degree=8,
                 max_dist=6, dropout=0.1):
        super().__init__()
        self.max_degree, self.max_dist = max_degree, max_dist
        self.atom = nn.Embedding(num_atoms + 1, dim, padding_idx=0)
        self.degree = nn.Embedding(max_degree + 1, dim)
        self.virtual = nn.Parameter(torch.randn(dim) * 0.02)
        self.dist_bias = nn.Embedding(max_dist + 2, heads)
        self.bond_bias = nn.Embedding(num_bonds + 1, heads, padding_idx=0)
        self.virtual_bias = nn.Parameter(torch.zeros(heads))
        self.layers = nn.ModuleList([GraphormerLayer(dim, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_targets)

    def attention_bias(self, adj, bonds, real):
        dist = shortest_paths(adj, self.max_dist)
        inner = (self.dist_bias(dist) + self.bond_bias(bonds)).permute(0, 3, 1, 2)
        B, H, N, _ = inner.shape
        bias = F.pad(inner, (1, 0, 1, 0))
        # everything that touches the virtual node gets the same learned value
        touches = torch.zeros(N + 1, N + 1, dtype=torch.bool, device=adj.device)
        touches[0, :] = True
        touches[:, 0] = True
        bias = torch.where(touches, self.virtual_bias.view(1, H, 1, 1), bias)
        # the virtual node is always present: no row is without keys
        present = F.pad(real, (1, 0), value=True)
        return bias.masked_fill(~present[:, None, None, :], float("-inf"))

    def forward(self, atoms, bonds):
        real = atoms != 0
        both = real[:, :, None] & real[:, None, :]
        bonds = bonds.masked_fill(~both, 0)
        adj = bonds > 0
        degree = adj.sum(dim=-1).clamp(max=self.max_degree)

        x = self.atom(atoms) + self.degree(degree)
        x = torch.cat([self.virtual.expand(x.size(0), 1, -1), x], dim=1)
        bias = self.attention_bias(adj, bonds, real)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x[:, 0]))
