import torch
import torch.nn as nn


class MuPSelfAttention(nn.Module):
    """Causal self-attention in the maximal-update parametrisation.

    muP asks for logits scaled by 1/d_head rather than 1/sqrt(d_head), because after training the
    query and the key are correlated and their product grows like d_head. `base_head_dim` is the width
    of the proxy model at which hyper-parameters were tuned; at that width the scale equals the usual
    1/sqrt(d_head).  The query projection starts at zero, as in Appendix D.2 of Tensor Programs V.
    """

    def __init__(self, dim=64, num_heads=4, base_head_dim=32):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = base_head_dim ** 0.5 / self.head_dim

        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.query.weight)
        for lin in (self.key, self.value, self.proj):
            nn.init.normal_(lin.weight, std=lin.in_features ** -0.5)

    def _heads(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        T = x.size(1)
        q = self._heads(self.query(x))
        k = self._heads(self.key(x))
        v = self._heads(self.value(x))

        logits = self.scale * (q @ k.mT)
        keep = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        logits = logits.masked_fill(~keep, float("-inf"))
        y = logits.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))
