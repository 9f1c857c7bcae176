import torch
import torch.nn as nn
import torch.nn.functional as F


class CompressedMemoryAttention(nn.Module):
    """Autoregressive attention on compressed keys and values.

    The sequence is cut into blocks of ``ratio`` tokens; each block is summarised by the mean of
    its tokens, and the queries (one per token) attend to the summaries instead of to the tokens.
    """

    def __init__(self, dim=64, num_heads=4, ratio=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dh = dim // num_heads
        self.ratio = ratio
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def summarise(self, x):
        b, n, d = x.shape
        pad = -n % self.ratio
        blocks = F.pad(x, (0, 0, 0, pad)).view(b, -1, self.ratio, d)
        count = F.pad(x.new_ones(n), (0, pad)).view(1, -1, self.ratio).sum(-1, keepdim=True)
        return blocks.sum(dim=2) / count

    def forward(self, x):
        b, n, d = x.shape
        summary = self.summarise(x)
        m = summary.shape[1]

        q = self.to_q(x).view(b, n, self.num_heads, self.dh).transpose(1, 2)
        k, v = self.to_kv(summary).view(b, m, 2, self.num_heads, self.dh).permute(2, 0, 3, 1, 4)

        position = torch.arange(n, device=x.device)
        block_start = torch.arange(m, device=x.device) * self.ratio
        visible = block_start[None, :] <= position[:, None]

        sim = (q @ k.transpose(-1, -2)) * self.dh ** -0.5
        sim = sim.masked_fill(~visible, float("-inf"))
        attn = self.dropout(sim.softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, d))
