import torch
from torch import nn


class SlotAttention(nn.Module):
    """Slot attention (Locatello et al., 2020).

    The softmax runs over the slots, so that they compete for the inputs; the weights are then
    normalised over the inputs to form a weighted mean.

    Args:
        inputs: ``[B, N, dim]``
        slots: optional initial slots ``[B, K, dim]``; sampled from a learned Gaussian otherwise.
    Returns:
        slots ``[B, K, dim]`` and the assignment of the inputs ``[B, K, N]``, which sums to one over K.
    """

    def __init__(self, num_slots=5, dim=64, iters=3, eps=1e-8, hidden_dim=128):
        super().__init__()
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.scale = dim ** -0.5

        self.slots_mu = nn.Parameter(torch.randn(1, 1, dim))
        self.slots_logsigma = nn.Parameter(torch.zeros(1, 1, dim))
        nn.init.xavier_uniform_(self.slots_logsigma)

        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_pre_ff = nn.LayerNorm(dim)

    def forward(self, inputs, slots=None):
        b, n, d = inputs.shape
        if slots is None:
            noise = torch.randn(b, self.num_slots, d, device=inputs.device, dtype=inputs.dtype)
            slots = self.slots_mu + self.slots_logsigma.exp() * noise

        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)

        for _ in range(self.iters):
            slots_prev = slots
            q = self.to_q(self.norm_slots(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            assignment = dots.softmax(dim=1)
            weights = assignment + self.eps
            weights = weights / weights.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, weights)
            slots = self.gru(updates.reshape(-1, d), slots_prev.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_pre_ff(slots))

        return slots, assignment
