import torch
import torch.nn as nn


class T5Attention(nn.Module):
    """T5 self-attention: no 1/sqrt(d) factor (it is folded into the initialisation)
    and a learned bucketed relative position bias."""

    def __init__(self, d_model=128, num_heads=8, d_kv=16, num_buckets=32, max_distance=128,
                 is_decoder=False):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.is_decoder = is_decoder
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)
        nn.init.normal_(self.relative_attention_bias.weight, std=d_model ** -0.5)

    def _bucket(self, relative_position):
        num_buckets = self.num_buckets
        ret = torch.zeros_like(relative_position)
        if not self.is_decoder:
            num_buckets //= 2
            ret = ret + (relative_position > 0).long() * num_buckets
            n = relative_position.abs()
        else:
            n = (-relative_position).clamp(min=0)
        max_exact = num_buckets // 2
        small = n < max_exact
        scaled = torch.log(n.clamp(min=1).float() / max_exact)
        scaled = scaled / torch.log(torch.tensor(self.max_distance / max_exact, device=n.device))
        large = max_exact + (scaled * (num_buckets - max_exact)).long()
        large = large.clamp(max=num_buckets - 1)
        return ret + torch.where(small, n, large)

    def compute_bias(self, q_len, k_len, device):
        ctx = torch.arange(q_len, device=device)[:, None]
        mem = torch.arange(k_len, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(mem - ctx))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (B, T) with 1 for tokens and 0 for padding."""
        b, t, _ = hidden_states.shape

        def shape(x):
            return x.view(b, t, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = q @ k.transpose(-1, -2)
        bias = self.compute_bias(t, t, hidden_states.device).to(scores.dtype)
        low = torch.finfo(scores.dtype).min
        keep = torch.ones(1, 1, t, t, dtype=torch.bool, device=hidden_states.device)
        if self.is_decoder:
            keep = keep.tril()
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        scores = (scores + bias).masked_fill(~keep, low)
        weights = scores.float().softmax(dim=-1).type_as(scores)
        out = (weights @ v).transpose(1, 2).reshape(b, t, -1)
        return self.o(out)
