import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.inter = nn.Linear(dim, 4 * dim)
        self.output = nn.Linear(4 * dim, dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.num_heads, -1).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        x = self.norm1(x + self.dense(y.transpose(1, 2).reshape(b, t, d)))
        return self.norm2(x + self.output(F.gelu(self.inter(x))))


class RobertaStyleEncoder(nn.Module):
    """Encoder with learned positions. Positions of real tokens are counted from the first real token on, padding
    uses the position ``pad_id``, whose row is zero and not trained.
    """

    def __init__(self, vocab_size=300, max_len=64, dim=64, num_heads=4, num_layers=2, pad_id=1):
        super().__init__()
        self.pad_id = pad_id
        self.word = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.position = nn.Embedding(max_len + pad_id + 1, dim, padding_idx=pad_id)
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(Layer(dim, num_heads) for _ in range(num_layers))

    def position_ids(self, keep):
        steps = (keep.long().cumsum(dim=1) - 1).clamp(min=0)
        return steps * keep.long() + self.pad_id

    def forward(self, input_ids):
        keep = input_ids.ne(self.pad_id)
        x = self.norm(self.word(input_ids) + self.position(self.position_ids(keep)))
        for layer in self.layers:
            x = layer(x, keep)
        return x
