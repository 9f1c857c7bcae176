import torch
import torch.nn as nn


class RelativeMultiHeadAttention(nn.Module):
    """Bidirectional relative attention as in the Conformer (Transformer-XL terms, batch first).

    Offsets run from T-1 down to -(T-1), 2T-1 in all; after the shift, column j of row i
    holds the score for offset i - j.
    """

    def __init__(self, d_model=64, num_heads=4, dropout_p=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.d_head = d_model // num_heads
        self.d_model = d_model
        self.query_proj = nn.Linear(d_model, d_model)
        self.key_proj = nn.Linear(d_model, d_model)
        self.value_proj = nn.Linear(d_model, d_model)
        self.pos_proj = nn.Linear(d_model, d_model, bias=False)
        self.u_bias = nn.Parameter(torch.empty(num_heads, self.d_head))
        self.v_bias = nn.Parameter(torch.empty(num_heads, self.d_head))
        nn.init.xavier_uniform_(self.u_bias)
        nn.init.xavier_uniform_(self.v_bias)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout_p)

    def _positions(self, t, device):
        offsets = torch.arange(t - 1, -t, -1, device=device).float()
        inv = 10000 ** (-torch.arange(0, self.d_model, 2, device=device).float() / self.d_model)
        ang = offsets[:, None] * inv
        return torch.stack((ang.sin(), ang.cos()), dim=-1).flatten(1)

    @staticmethod
    def _shift(x):
        b, h, t, n = x.shape  # n = 2t - 1
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        x = x.view(b, h, n + 1, t)[:, :, 1:].reshape(b, h, t, n)
        return x[..., : n // 2 + 1]

    def forward(self, x, pad_mask=None):
        """pad_mask: bool (B, T), True on padding frames."""
        b, t, _ = x.shape
        q = self.query_proj(x).view(b, t, self.num_heads, self.d_head)
        k = self.key_proj(x).view(b, t, self.num_heads, self.d_head).permute(0, 2, 3, 1)
        v = self.value_proj(x).view(b, t, self.num_heads, self.d_head).transpose(1, 2)
        p = self.pos_proj(self._positions(t, x.device).to(x.dtype))
        p = p.view(1, 2 * t - 1, self.num_heads, self.d_head).permute(0, 2, 3, 1)

        content = (q + self.u_bias).transpose(1, 2) @ k
        position = self._shift((q + self.v_bias).transpose(1, 2) @ p)
        score = (content + position) / self.d_head ** 0.5
        if pad_mask is not None:
            score = score.masked_fill(pad_mask[:, None, None, :], -1e9)
        attn = self.dropout(score.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, t, self.d_model)
        return self.out_proj(out)
