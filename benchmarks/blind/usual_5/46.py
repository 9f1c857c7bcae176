import torch
import torch.nn as nn


class BloomStyleAttention(nn.Module):
    """Causal attention with ALiBi in the form that BLOOM uses.

    The bias is slope * (index of the key); the query's index is left out, since it would
    add the same number to a whole row and the softmax doesn't see that. Keys that are
    padding don't count as positions. attention_mask: (batch, seq), 1 = token.
    """

    def __init__(self, hidden_size=128, n_head=8):
        super().__init__()
        assert n_head & (n_head - 1) == 0, "power of two"
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = self.head_dim ** -0.5
        # heads are interleaved: (head, [q, k, v], head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        slopes = 2.0 ** (-8.0 / n_head * torch.arange(1, n_head + 1))
        self.register_buffer("slopes", slopes, persistent=False)

    def build_alibi(self, attention_mask):
        index = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
        return self.slopes[None, :, None, None] * index[:, None, None, :]

    def forward(self, x, attention_mask=None):
        b, t, c = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=x.device)
        attention_mask = attention_mask.long()
        fused = self.query_key_value(x).view(b, t, self.n_head, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.inv_norm_factor
        scores = scores + self.build_alibi(attention_mask).to(scores.dtype)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        hidden = future | (attention_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1, dtype=torch.float32).to(x.dtype)
        return self.dense(torch.matmul(probs, v).transpose(1, 2).reshape(b, t, c))
