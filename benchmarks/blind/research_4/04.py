import torch
from torch import nn
from torch.nn import functional as F


class Expert(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class SparseMoE(nn.Module):
    def __init__(self, dim, num_experts, top_k, mult):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, mult * dim) for _ in range(num_experts)])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.router(flat).softmax(dim=-1)
        gates, chosen = probs.topk(self.top_k, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True)

        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == e)
            if rows.numel() == 0:
                continue
            out[rows] = gates[rows, slot].unsqueeze(-1) * expert(flat[rows])
        return out.view_as(x)


class MoEDecoderLayer(nn.Module):
    """Pre-norm decoder layer: causal self-attention followed by a top-k mixture of experts.

    The output of the mixture is the gate-weighted sum of the ``top_k`` experts of each token.
    """

    def __init__(self, dim=128, num_heads=4, num_experts=4, top_k=2, mult=4):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.moe = SparseMoE(dim, num_experts, top_k, mult)

    def attend(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        x = x + self.moe(self.ln_2(x))
        return x
