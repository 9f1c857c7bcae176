import torch
import torch.nn as nn
import torch.nn.functional as F


class PartialRotary(nn.Module):
    def __init__(self, rot_dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / base ** (torch.arange(0, rot_dim, 2).float() / rot_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, positions):
        freqs = torch.outer(positions.float(), self.inv_freq)
        emb = torch.cat([freqs, freqs], dim=-1)
        return emb.cos(), emb.sin()


def rotate(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-x2, x1], dim=-1) * sin


class ParallelBlock(nn.Module):
    """Decoder block with attention and MLP in parallel (GPT-J / Phi).

    One LayerNorm feeds both branches. Rotary embeddings act on the first ``rotary_pct`` of each head.
    """

    def __init__(self, hidden_size=64, num_heads=4, rotary_pct=0.5, resid_pdrop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.rot = int(self.head_dim * rotary_pct)
        self.ln = nn.LayerNorm(hidden_size)
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.fc1 = nn.Linear(hidden_size, 4 * hidden_size)
        self.fc2 = nn.Linear(4 * hidden_size, hidden_size)
        self.rotary = PartialRotary(self.rot)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def attention(self, x):
        b, t, c = x.shape
        q, k, v = self.Wqkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(torch.arange(t, device=x.device))
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)

        q_rot, q_pass = q[..., : self.rot], q[..., self.rot:]
        k_rot, k_pass = k[..., : self.rot], k[..., self.rot:]
        q = torch.cat([rotate(q_rot, cos, sin), q_pass], dim=-1)
        k = torch.cat([rotate(k_rot, cos, sin), q_pass], dim=-1)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        h = self.ln(x)
        attn = self.resid_dropout(self.attention(h))
        mlp = self.resid_dropout(self.fc2(F.gelu(self.fc1(h), approximate="tanh")))
        return x + attn + mlp
