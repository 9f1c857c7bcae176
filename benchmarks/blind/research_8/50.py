import math

import torch
import torch.nn as nn


class BloomAttention(nn.Module):
    """Causal attention with ALiBi as in BLOOM.

    The bias is slope * key position. A constant per row drops out in the softmax, hence it equals -slope * (i - j).
    Positions are counted over real tokens, so padding may stand on either side. The fused projection is laid
    out [heads, 3, head_dim].

    attention_mask: [B, past + T] with 1 for real tokens; layer_past: (key, value) of earlier steps.
    """

    def __init__(self, hidden_size=64, n_head=4):
        super().__init__()
        assert n_head & (n_head - 1) == 0
        self.n_head = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        base = 2 ** (-(2 ** -(math.log2(n_head) - 3)))
        self.register_buffer("slopes", base ** torch.arange(1, n_head + 1).float(), persistent=False)

    def forward(self, hidden_states, attention_mask=None, layer_past=None):
        b, t, d = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, t, self.n_head, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=2)
            v = torch.cat((layer_past[1], v), dim=2)
        s = k.size(2)
        if attention_mask is None:
            attention_mask = torch.ones(b, s, dtype=torch.long, device=q.device)

        pos = (attention_mask.cumsum(-1) - 1) * attention_mask
        alibi = self.slopes[None, :, None, None] * pos[:, None, None, :]
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.inv_norm_factor + alibi

        blocked = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(1 + s - t)
        blocked = blocked[None, None] | (attention_mask == 0)[:, None, None, :]
        scores = scores.float().masked_fill(blocked, torch.finfo(torch.float32).min)
        probs = scores.softmax(dim=-1).to(v.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(b, t, d)
        return self.dense(out), (k, v)
