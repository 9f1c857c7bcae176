import torch
from torch import nn


class StrictPastAttention(nn.Module):
    """Reads from the ``window`` steps before the current one, never from the current one.

    A learned null slot is always available, so that the first step (which has no past) gets the
    null value and any other step can choose to read nothing.
    """

    def __init__(self, dim=48, num_heads=3, window=8):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.dh = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.keyval = nn.Linear(dim, 2 * dim)
        self.null_key = nn.Parameter(torch.randn(num_heads, 1, self.dh) * 0.02)
        self.null_val = nn.Parameter(torch.zeros(num_heads, 1, self.dh))
        self.merge = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q = self.query(x).view(b, t, self.num_heads, self.dh).transpose(1, 2)
        k, v = self.keyval(x).view(b, t, 2, self.num_heads, self.dh).permute(2, 0, 3, 1, 4)

        null_k = self.null_key.expand(b, -1, -1, -1)
        null_v = self.null_val.expand(b, -1, -1, -1)
        k = torch.cat((null_k, k), dim=2)
        v = torch.cat((null_v, v), dim=2)

        step = torch.arange(t, device=x.device)
        back = step[:, None] - step[None, :]
        visible = (back > 0) & (back <= self.window)
        visible = torch.cat((visible.new_ones(t, 1), visible), dim=1)

        logits = q @ k.transpose(2, 3) * self.dh ** -0.5
        weights = logits.masked_fill(~visible, float("-inf")).softmax(-1)
        return self.merge((weights @ v).transpose(1, 2).reshape(b, t, d))
