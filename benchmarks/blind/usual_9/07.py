import torch
from torch import nn


class SlotAttention(nn.Module):
    """Slot Attention (Locatello et al., 2020).

    The slots compete for the inputs: the softmax runs over the slots, so that every input distributes one unit
    of mass. The update of a slot is then the weighted mean of the values, for which the weights are divided by
    their sum over the inputs.
    """

    def __init__(self, dim=64, num_slots=7, iters=3, eps=1e-8, hidden_dim=128):
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
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden_dim),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_dim, dim),
        )
        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def init_slots(self, batch, device, dtype):
        mu = self.slots_mu.expand(batch, self.num_slots, -1)
        if not self.training:
            generator = torch.Generator(device="cpu").manual_seed(0)
            noise = torch.randn(1, *mu.shape[1:], generator=generator).to(device=device, dtype=dtype)
        else:
            noise = torch.randn(mu.shape, device=device, dtype=dtype)
        return mu + self.slots_logsigma.exp() * noise

    def forward(self, inputs):
        """inputs: (batch, n, dim) -> slots (batch, num_slots, dim)"""
        b, n, d = inputs.shape
        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        slots = self.init_slots(b, inputs.device, inputs.dtype)

        for _ in range(self.iters):
            slots_prev = slots
            q = self.to_q(self.norm_slots(slots))

            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=1) + self.eps
            attn = attn / attn.sum(dim=-1, keepdim=True)

            updates = torch.einsum("bij,bjd->bid", attn, v)
            slots = self.gru(updates.reshape(-1, d), slots_prev.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_mlp(slots))

        return slots
