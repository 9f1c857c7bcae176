import math

import torch
import torch.nn as nn


class AutoCorrelation(nn.Module):
    """Series-wise attention: period discovery by FFT plus aggregation of delayed values.

    score(tau) = mean over channels and heads of  sum_t q[t] * k[t + tau]   (circular)

    The ``c * log(L)`` best delays are softmax weighted, and the values rolled by these
    delays are summed. There is no scaling, no mask and no pairwise L x L matrix. Delays
    are chosen per sample, in training too (the reference picks them per batch there).
    """

    def __init__(self, d_model=64, n_heads=4, factor=1.0):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def time_delay_agg(self, values, corr):
        # values [B, H, E, L], corr [B, H, E, L]
        B, H, E, L = values.shape
        top_k = min(L, max(1, int(self.factor * math.log(L))))
        mean_corr = corr.mean(dim=(1, 2))
        weights, delays = torch.topk(mean_corr, top_k, dim=-1)
        weights = torch.softmax(weights, dim=-1)

        base = torch.arange(L, device=values.device)
        out = torch.zeros_like(values)
        for i in range(top_k):
            index = (base[None, :] + delays[:, i : i + 1]) % L
            pattern = values.gather(-1, index[:, None, None, :].expand(-1, H, E, -1))
            out = out + pattern * weights[:, i].view(B, 1, 1, 1)
        return out

    def forward(self, x):
        B, L, D = x.shape
        H = self.n_heads
        q = self.query_projection(x).view(B, L, H, -1).permute(0, 2, 3, 1).contiguous()
        k = self.key_projection(x).view(B, L, H, -1).permute(0, 2, 3, 1).contiguous()
        v = self.value_projection(x).view(B, L, H, -1).permute(0, 2, 3, 1).contiguous()

        q_fft = torch.fft.rfft(q, dim=-1)
        k_fft = torch.fft.rfft(k, dim=-1)
        corr = torch.fft.irfft(k_fft * torch.conj(q_fft), n=L, dim=-1)

        out = self.time_delay_agg(v, corr)
        return self.out_projection(out.permute(0, 3, 1, 2).reshape(B, L, D))
