import torch
import torch.nn as nn
import torch.nn.functional as F


class UnitOffsetRMSNorm(nn.Module):
    """RMSNorm whose weight is stored as the deviation from one."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class SandwichDecoderLayer(nn.Module):
    """Gemma-2 style decoder layer.

    * the queries are scaled by ``query_pre_attn_scalar ** -0.5``, which is a hyper-parameter and
      not the head size (the 27B model uses hidden_size / num_heads = 144 with heads of size 128);
    * the logits are squashed to ``(-softcap, softcap)`` before the mask is applied;
    * both branches are normalised on the way in and on the way out.
    """

    def __init__(self, dim=64, num_heads=4, num_kv_heads=2, head_dim=32, query_pre_attn_scalar=16.0,
                 softcap=50.0, sliding_window=None, ffn_dim=128):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scaling = query_pre_attn_scalar ** -0.5
        self.softcap = softcap
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, dim, bias=False)
        self.gate_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.up_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.down_proj = nn.Linear(ffn_dim, dim, bias=False)
        self.input_norm = UnitOffsetRMSNorm(dim)
        self.post_attention_norm = UnitOffsetRMSNorm(dim)
        self.pre_ffn_norm = UnitOffsetRMSNorm(dim)
        self.post_ffn_norm = UnitOffsetRMSNorm(dim)

    def _attention(self, x):
        b, t, _ = x.shape
        groups = self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

        logits = (q * self.scaling) @ k.transpose(-1, -2)
        logits = torch.tanh(logits / self.softcap) * self.softcap

        pos = torch.arange(t, device=x.device)
        distance = pos[:, None] - pos[None, :]
        allowed = distance >= 0
        if self.sliding_window is not None:
            allowed = allowed & (distance < self.sliding_window)
        logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
        probs = logits.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((probs @ v).transpose(1, 2).reshape(b, t, -1))

    def forward(self, x):
        x = x + self.post_attention_norm(self._attention(self.input_norm(x)))
        h = self.pre_ffn_norm(x)
        h = self.down_proj(F.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))
        return x + self.post_ffn_norm(h)
