import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """
    Local self-attention for the decoder-only language model.

    Every token looks at the `window` most recent tokens (itself included), which keeps the
    receptive field of one layer constant; depth makes up for it as in Mistral.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, window: int = 8, max_len: int = 1024):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.window = window

        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        idx = torch.arange(max_len)
        local = (idx[:, None] - idx[None, :]).abs() < window
        self.register_buffer("local_mask", local, persistent=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, q_len, hidden = hidden_states.shape
        qkv = self.qkv_proj(hidden_states)
        qkv = qkv.view(bsz, q_len, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)

        attn_output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=self.local_mask[:q_len, :q_len]
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, hidden)
        return self.o_proj(attn_output)
