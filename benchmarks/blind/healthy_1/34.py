import torch
from torch import nn
import torch.nn.functional as F


class SlotAttention(nn.Module):
    """Slot Attention (https://arxiv.org/abs/2006.15055).

    The softmax runs over the *slots*, which compete for each input; the weights of a slot are then
    renormalised over the inputs, so every update is a weighted mean.

    inputs: (batch, num_inputs, dim); mask: (batch, num_inputs) bool, True for inputs that exist.
    Returns the slots (batch, num_slots, dim) and the competition weights (batch, num_slots, num_inputs).
    """

    def __init__(self, num_slots=5, dim=64, iters=3, eps=1e-8, hidden_dim=128, slot_dim=None):
        super().__init__()
        slot_dim = slot_dim or dim
        self.num_slots = num_slots
        self.slot_dim = slot_dim
        self.iters = iters
        self.eps = eps
        self.scale = slot_dim ** -0.5

        self.slots_mu = nn.Parameter(torch.empty(1, 1, slot_dim))
        self.slots_logsigma = nn.Parameter(torch.empty(1, 1, slot_dim))
        nn.init.xavier_uniform_(self.slots_mu)
        nn.init.xavier_uniform_(self.slots_logsigma)

        self.to_q = nn.Linear(slot_dim, slot_dim, bias=False)
        self.to_k = nn.Linear(dim, slot_dim, bias=False)
        self.to_v = nn.Linear(dim, slot_dim, bias=False)
        self.gru = nn.GRUCell(slot_dim, slot_dim)
        hidden_dim = max(slot_dim, hidden_dim)
        self.mlp = nn.Sequential(
            nn.Linear(slot_dim, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, slot_dim)
        )
        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(slot_dim)
        self.norm_pre_ff = nn.LayerNorm(slot_dim)

    def init_slots(self, batch, num_slots, like):
        # random in evaluation as well: the initial slots are samples, not parameters
        noise = torch.randn(batch, num_slots, self.slot_dim, device=like.device, dtype=like.dtype)
        return self.slots_mu + self.slots_logsigma.exp() * noise

    def forward(self, inputs, mask=None, num_slots=None, slots=None):
        """``slots`` overrides the random initialisation, ``num_slots`` the number given at construction."""
        b, n, _ = inputs.shape
        if slots is None:
            slots = self.init_slots(b, num_slots or self.num_slots, inputs)

        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)

        for _ in range(self.iters):
            slots_prev = slots
            q = self.to_q(self.norm_slots(slots))
            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=1)
            if mask is not None:
                # multiplicative: a masked input belongs to no slot
                attn = attn * mask[:, None, :].to(attn.dtype)
            weights = attn + self.eps
            if mask is not None:
                weights = weights * mask[:, None, :].to(attn.dtype)
            weights = F.normalize(weights, p=1, dim=-1)
            updates = torch.einsum("bjd,bij->bid", v, weights)

            slots = self.gru(updates.flatten(0, 1), slots_prev.flatten(0, 1)).view_as(slots_prev)
            slots = slots + self.mlp(self.norm_pre_ff(slots))
        return slots, attn
