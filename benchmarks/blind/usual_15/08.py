import torch
import torch.nn as nn


class T5Attention(nn.Module):
    """Encoder self-attention after T5.

    As in the original, scores are not divided by sqrt(d_kv): the initialisation
    of `q` has that factor in it. `mask` is additive, broadcastable to
    (batch, heads, query, key), 0 for visible and a large negative number elsewhere.
    """

    def __init__(self, d_model=64, num_heads=4, d_kv=16, num_buckets=32, max_distance=128):
        super().__init__()
        self.num_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
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

    def _bucket(self, rel):
        n = self.num_buckets // 2
        side = (rel > 0).long() * n
        rel = rel.abs()
        exact = n // 2
        far = exact + (
            torch.log(rel.clamp(min=1).float() / exact)
            / torch.log(torch.tensor(self.max_distance / exact))
            * (n - exact)
        ).long()
        far = far.clamp(max=n - 1)
        return side + torch.where(rel < exact, rel, far)

    def compute_bias(self, q_len, k_len, device):
        ctx = torch.arange(q_len, device=device)[:, None]
        mem = torch.arange(k_len, device=device)[None, :]
        values = self.relative_attention_bias(self._bucket(mem - ctx))
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None):
        b, n, _ = hidden_states.shape

        def shape(t):
            return t.view(b, n, self.num_heads, self.d_kv).transpose(1, 2)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        scores = torch.matmul(q, k.transpose(3, 2))
        scores = scores + self.compute_bias(n, n, hidden_states.device)
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1)
        return self.o(out)
