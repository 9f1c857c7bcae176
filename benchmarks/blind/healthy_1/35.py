import torch
from torch import nn
import torch.nn.functional as F


def look_around(x, backward, forward, pad_value, dim):
    """x: (b, windows, ...) -> each window followed by its neighbours along ``dim`` (> 1)."""
    windows = x.shape[1]
    pad = (0, 0) * (x.ndim - 2) + (backward, forward)
    padded = F.pad(x, pad, value=pad_value)
    return torch.cat([padded[:, i: i + windows] for i in range(backward + forward + 1)], dim=dim)


class LocalAttention(nn.Module):
    """Attention within windows and their neighbours, cost linear in the length.

    Arguments:
        dim, heads, dim_head: the usual.
        window_size: tokens per window.
        causal: tokens do not see later tokens (then ``look_forward`` must be 0).
        look_backward / look_forward: how many windows before / after the own one are visible.
        exact_windowsize: with ``causal``, every token sees exactly the ``window_size * look_backward``
            tokens before it and itself, not a number that depends on its place in the window.

    ``mask``: (b, n) bool, True for tokens. Length need not be a multiple of the window.
    """

    def __init__(
        self,
        dim=128,
        heads=4,
        dim_head=32,
        window_size=8,
        causal=True,
        look_backward=1,
        look_forward=None,
        exact_windowsize=True,
    ):
        super().__init__()
        look_forward = look_forward if look_forward is not None else (0 if causal else 1)
        assert not (causal and look_forward > 0), "you cannot look forward if causal"
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.window_size = window_size
        self.causal = causal
        self.look_backward = look_backward
        self.look_forward = look_forward
        self.exact_windowsize = exact_windowsize
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        w = self.window_size
        pad_len = -n % w

        qkv = F.pad(self.to_qkv(x), (0, 0, 0, pad_len))
        windows = (n + pad_len) // w
        # (b, windows, w, heads, d)
        q, k, v = (t.reshape(b, windows, w, self.heads, -1) for t in qkv.chunk(3, dim=-1))

        # positions, -1 marks what is not part of the sequence
        seq = torch.arange(n + pad_len, device=x.device)
        seq = seq.masked_fill(seq >= n, -1).view(1, windows, w)
        q_pos = torch.arange(n + pad_len, device=x.device).view(1, windows, w, 1)

        around = dict(backward=self.look_backward, forward=self.look_forward)
        k = look_around(k, pad_value=0.0, dim=2, **around)
        v = look_around(v, pad_value=0.0, dim=2, **around)
        k_pos = look_around(seq, pad_value=-1, dim=2, **around).unsqueeze(2)

        sim = torch.einsum("bwihd,bwjhd->bwhij", q, k) * self.scale
        blocked = k_pos == -1
        if self.causal:
            blocked = blocked | (k_pos > q_pos)
            if self.exact_windowsize:
                blocked = blocked | (q_pos > k_pos + w * self.look_backward)
        if mask is not None:
            key_mask = F.pad(mask.bool(), (0, pad_len), value=False).view(b, windows, w)
            key_mask = look_around(key_mask.long(), pad_value=0, dim=2, **around).unsqueeze(2)
            blocked = blocked | (key_mask == 0)

        # finite fill: padded queries may have no key at all, they are cut off or ignored later
        sim = sim.masked_fill(blocked.unsqueeze(2), -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bwhij,bwjhd->bwihd", attn, v)
        out = out.reshape(b, n + pad_len, -1)[:, :n]
        return self.to_out(out)
