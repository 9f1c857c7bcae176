import torch
from torch import nn


class SlotAttention(nn.Module):
    """Slot Attention (Locatello et al., 2020) with learned initial slots.

    Slots compete for the inputs: the softmax runs over the slots.  Each slot then takes the weighted
    mean of the inputs that it has won, so the weights are normalised a second time, over the inputs.
    """

    def __init__(self, dim=64, num_slots=5, iters=3, hidden_dim=128, eps=1e-8):
        super().__init__()
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.scale = dim ** -0.5

        self.slots_init = nn.Parameter(torch.randn(1, num_slots, dim) * self.scale)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)

        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def step(self, slots, k, v):
        b, s, d = slots.shape
        q = self.to_q(self.norm_slots(slots))
        dots = torch.einsum("bsd,bnd->bsn", q, k) * self.scale
        attn = dots.softmax(dim=1) + self.eps
        attn = attn / attn.sum(dim=-1, keepdim=True)
        updates = torch.einsum("bsn,bnd->bsd", attn, v)
        slots = self.gru(updates.reshape(-1, d), slots.reshape(-1, d)).view(b, s, d)
        return slots + self.mlp(self.norm_mlp(slots))

    def forward(self, inputs):
        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        slots = self.slots_init.expand(inputs.size(0), -1, -1)
        for _ in range(self.iters):
            slots = self.step(slots, k, v)
        return slots
