import torch
import torch.nn as nn
import torch.nn.functional as F


def sliding_window_mask(seq_len, window, device):
    i = torch.arange(seq_len, device=device)[:, None]
    j = torch.arange(seq_len, device=device)[None, :]
    return (i - j) < window


class MistralAttention(nn.Module):
    """Decoder self-attention with a sliding window over the last ``sliding_window`` tokens."""

    def __init__(self, hidden_size=64, num_heads=4, num_kv_heads=2, sliding_window=8):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)

        n_rep = self.num_heads // self.num_kv_heads
        k = k[:, :, None].expand(-1, -1, n_rep, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, n_rep, -1, -1).flatten(1, 2)

        mask = sliding_window_mask(q_len, self.sliding_window, hidden_states.device)
        attn_output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        attn_output = attn_output.transpose(1, 2).contiguous().view(bsz, q_len, -1)
        return self.o_proj(attn_output)
