import torch
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    def __init__(self, dim, hidden, num_experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList([SwiGLU(dim, hidden) for _ in range(num_experts)])

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.router(x).float().softmax(dim=-1)
        gates, chosen = probs.topk(self.top_k, dim=-1)
        gates = (gates / gates.sum(dim=-1, keepdim=True)).to(x.dtype)

        tokens = x.repeat(self.top_k, 1)
        expert_of = chosen.reshape(-1)
        y = torch.zeros_like(tokens)
        for e, expert in enumerate(self.experts):
            rows = (expert_of == e).nonzero(as_tuple=True)[0]
            if rows.numel() > 0:
                y = y.index_add(0, rows, expert(tokens[rows]))
        y = y * gates.reshape(-1, 1)
        y = y.view(-1, self.top_k, shape[-1]).sum(dim=1)
        return y.view(shape)


class ParallelMoEBlock(nn.Module):
    """Causal attention and a sparse mixture of experts side by side, on one shared norm."""

    def __init__(self, dim=64, num_heads=4, ffn_hidden=128, num_experts=4, top_k=2):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.moe = SparseMoE(dim, ffn_hidden, num_experts, top_k)

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, d // self.num_heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        h = self.norm(x)
        return x + self.attention(h) + self.moe(h)
