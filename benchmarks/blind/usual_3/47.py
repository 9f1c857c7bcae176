import torch
from torch import nn
from einops import rearrange


class PerformerStyleAttention(nn.Module):
    """Linear attention with ReLU features for language modelling.

    The sequence is cut into chunks. Inside a chunk the products are formed explicitly,
    everything before the chunk enters through the accumulated state sum_j phi(k_j) v_j^T.
    """

    def __init__(self, dim=64, heads=4, chunk_size=16, eps=1e-4):
        super().__init__()
        self.heads = heads
        self.chunk_size = chunk_size
        self.eps = eps
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def phi(self, x):
        return torch.relu(x) + self.eps

    def causal_numerator(self, q, k, v):
        b, h, n, d = q.shape
        state = q.new_zeros(b, h, d, v.shape[-1])
        outs = []
        for qc, kc, vc in zip(
            q.split(self.chunk_size, dim=2),
            k.split(self.chunk_size, dim=2),
            v.split(self.chunk_size, dim=2),
        ):
            local = torch.matmul(qc, kc.transpose(-1, -2)).tril()
            outs.append(torch.matmul(qc, state) + torch.matmul(local, vc))
            state = state + torch.matmul(kc.transpose(-1, -2), vc)
        return torch.cat(outs, dim=2)

    def forward(self, x):
        q, k, v = (
            rearrange(proj(x), "b n (h d) -> b h n d", h=self.heads)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        q, k = self.phi(q), self.phi(k)

        numerator = self.causal_numerator(q, k, v)
        d_inv = 1.0 / torch.einsum("b h n d, b h d -> b h n", q, k.sum(dim=-2))
        out = numerator * d_inv.unsqueeze(-1)

        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))
