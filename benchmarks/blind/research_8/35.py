import math

import torch
import torch.nn as nn


class AutoCorrelation(nn.Module):
    """Auto-correlation block of Autoformer.

    There are no token-to-token weights: the FFT gives the correlation of the series for every circular delay, the top
    ``factor * log(L)`` delays are softmaxed, and the values are rolled by them and summed. The delays are chosen per
    sample from the correlation averaged over heads and channels.
    """

    def __init__(self, d_model=64, n_heads=4, factor=2):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def _aggregate(self, values, corr):
        b, h, d, length = values.shape
        top_k = min(length, max(1, int(self.factor * math.log(length))))
        mean_corr = corr.mean(dim=(1, 2))
        weights, delays = torch.topk(mean_corr, top_k, dim=-1)
        weights = torch.softmax(weights, dim=-1)

        base = torch.arange(length, device=values.device).view(1, 1, 1, -1).expand(b, h, d, -1)
        doubled = torch.cat([values, values], dim=-1)
        agg = torch.zeros_like(values)
        for i in range(top_k):
            index = base + delays[:, i].view(b, 1, 1, 1)
            agg = agg + doubled.gather(-1, index) * weights[:, i].view(b, 1, 1, 1)
        return agg

    def forward(self, x):
        b, length, dm = x.shape

        def split(t):
            return t.view(b, length, self.n_heads, -1).permute(0, 2, 3, 1)

        q = split(self.query_projection(x))
        k = split(self.key_projection(x))
        v = split(self.value_projection(x))
        spec = torch.fft.rfft(k, dim=-1) * torch.conj(torch.fft.rfft(q, dim=-1))
        corr = torch.fft.irfft(spec, n=length, dim=-1)
        out = self._aggregate(v, corr)
        return self.out_projection(out.permute(0, 3, 1, 2).reshape(b, length, dm))
