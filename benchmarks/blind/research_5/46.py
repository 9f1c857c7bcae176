import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class AutoCorrelationLayer(nn.Module):
    """Attention between sub-series instead of points, after Autoformer.

    The correlation of queries and keys for every delay is computed with FFTs,
    ``corr[tau] = mean_t q[t] . k[t - tau]`` (circular). The most correlated delays of each series
    are turned into weights, and the values are read with these delays: ``sum w_tau * v[t - tau]``.
    All the positions share the weights of their series. The layer is for encoders: the delays wrap
    around the ends of the series.
    """

    def __init__(self, d_model=64, n_heads=4, factor=2):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def _split(self, x):
        b, length, d = x.shape
        return x.view(b, length, self.n_heads, d // self.n_heads).permute(0, 2, 3, 1)

    def forward(self, x):
        b, length, d = x.shape
        q = self._split(self.query_projection(x))
        k = self._split(self.key_projection(x))
        v = self._split(self.value_projection(x))

        spectrum = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
        corr = torch.fft.irfft(spectrum, n=length, dim=-1)
        mean_corr = corr.mean(dim=(1, 2)) / length

        top_k = max(1, min(length, int(self.factor * math.log(length + 1))))
        best, delay = mean_corr.topk(top_k, dim=-1)
        weights = F.softmax(best, dim=-1)

        time = torch.arange(length, device=x.device)
        out = torch.zeros_like(v)
        for i in range(top_k):
            index = (time[None, :] - delay[:, i : i + 1]) % length
            index = index[:, None, None, :].expand_as(v)
            out = out + weights[:, i].view(b, 1, 1, 1) * v.gather(-1, index)
        return self.out_projection(out.permute(0, 3, 1, 2).reshape(b, length, d))
