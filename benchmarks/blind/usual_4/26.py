import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedCausalAttention(nn.Module):
    """Causal attention over rows into which several documents were packed.

    ``segment_ids`` (batch, length) numbers the documents of a row from 1; 0 marks the unused tail.
    Documents never see each other and each has rotary positions starting at zero. The unused
    tail gives zeros.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, rope_base: float = 10_000.0):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.w_in = nn.Linear(d_model, 3 * d_model, bias=False)
        self.w_out = nn.Linear(d_model, d_model, bias=False)
        freq = rope_base ** (-torch.arange(0, self.d_head, 2).float() / self.d_head)
        self.register_buffer("freq", freq, persistent=False)

    @staticmethod
    def document_positions(segment_ids):
        b, n = segment_ids.shape
        idx = torch.arange(n, device=segment_ids.device).expand(b, n)
        new_doc = torch.ones_like(segment_ids, dtype=torch.bool)
        new_doc[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
        first = torch.where(new_doc, idx, torch.zeros_like(idx)).cummax(dim=1).values
        return idx - first

    def _rope(self, x, positions):
        angle = positions[:, None, :, None].float() * self.freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x, segment_ids):
        b, n, d = x.shape
        q, k, v = self.w_in(x).view(b, n, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        positions = self.document_positions(segment_ids)
        q, k = self._rope(q, positions), self._rope(k, positions)

        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        idx = torch.arange(n, device=x.device)
        mask = same & (idx[:, None] >= idx[None, :])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        y = self.w_out(y.transpose(1, 2).reshape(b, n, d))
        return y * (segment_ids > 0).unsqueeze(-1).to(y.dtype)
