import torch
import torch.nn as nn


class SlotAttention(nn.Module):
    """Object-centric slots (Locatello et al., 2020): [B, N, dim] -> [B, num_slots, dim].

    The slots compete for the input locations.
    """

    def __init__(self, num_slots=5, dim=64, iters=3, eps=1e-8, hidden_dim=128):
        super().__init__()
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.scale = dim ** -0.5

        self.slots_mu = nn.Parameter(torch.randn(1, 1, dim) * dim ** -0.5)
        self.slots_logsigma = nn.Parameter(torch.zeros(1, 1, dim))

        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def forward(self, inputs, num_slots=None, return_attn=False):
        b, n, d = inputs.shape
        s = num_slots if num_slots is not None else self.num_slots

        mu = self.slots_mu.expand(b, s, -1)
        sigma = self.slots_logsigma.exp().expand(b, s, -1)
        slots = mu + sigma * torch.randn_like(mu)

        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)

        for _ in range(self.iters):
            prev = slots
            q = self.to_q(self.norm_slots(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=-1) + self.eps
            weights = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bij,bjd->bid", weights, v)
            slots = self.gru(updates.reshape(-1, d), prev.reshape(-1, d)).view(b, s, d)
            slots = slots + self.mlp(self.norm_mlp(slots))

        return (slots, attn) if return_attn else slots
