import torch
import torch.nn as nn


class GlobalLocalAttention(nn.Module):
    """Dense reference version of Longformer attention, for documents up to a few thousand tokens.

    Each token attends ``window // 2`` neighbours on both sides. Tokens flagged in ``global_mask`` attend to the
    whole document and the whole document attends to them.

    Args:
        x: [B, T, D]
        global_mask: [B, T] bool
        attention_mask: [B, T] bool, True for real tokens
    """

    def __init__(self, hidden_size=64, num_heads=4, window=8, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.one_sided = window // 2
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def _pattern(self, t, global_mask, attention_mask, device):
        pos = torch.arange(t, device=device)
        allowed = ((pos[:, None] - pos[None, :]).abs() <= self.one_sided).unsqueeze(0)
        if global_mask is not None:
            allowed = allowed | global_mask.bool()[:, :, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, :]
        return allowed

    def forward(self, x, global_mask=None, attention_mask=None):
        b, t, d = x.shape
        q = self.query(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        allowed = self._pattern(t, global_mask, attention_mask, x.device)
        scores = scores.masked_fill(~allowed.unsqueeze(1), torch.finfo(scores.dtype).min)
        probs = self.dropout(scores.softmax(dim=-1))
        ctx = (probs @ v).transpose(1, 2).reshape(b, t, d)
        return self.dense(ctx)
