import torch
import torch.nn as nn


class SlotAttention(nn.Module):
    """Slot Attention (Locatello et al., 2020), ported from the TF reference.

    The softmax runs over the slots, so slots compete for inputs; the result is then
    turned into a weighted mean over the inputs.
    """

    def __init__(self, dim=64, num_slots=5, num_iterations=3, mlp_hidden=128, epsilon=1e-8):
        super().__init__()
        self.dim = dim
        self.num_slots = num_slots
        self.num_iterations = num_iterations
        self.epsilon = epsilon

        self.norm_inputs = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

        self.slots_init = nn.Parameter(torch.randn(1, num_slots, dim) * dim ** -0.5)

        self.project_q = nn.Linear(dim, dim, bias=False)
        self.project_k = nn.Linear(dim, dim, bias=False)
        self.project_v = nn.Linear(dim, dim, bias=False)

        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_hidden), nn.ReLU(), nn.Linear(mlp_hidden, dim))

    def forward(self, inputs):
        """inputs: (batch, num_inputs, dim) -> slots (batch, num_slots, dim)"""
        b = inputs.shape[0]
        inputs = self.norm_inputs(inputs)
        k = self.project_k(inputs)
        v = self.project_v(inputs)
        slots = self.slots_init.expand(b, -1, -1)

        for _ in range(self.num_iterations):
            slots_prev = slots
            q = self.project_q(self.norm_slots(slots)) * self.dim ** -0.5

            logits = torch.einsum("bnd,bsd->bns", k, q)
            attn = logits.softmax(dim=-1)
            attn = attn + self.epsilon
            attn = attn / attn.sum(dim=1, keepdim=True)
            updates = torch.einsum("bns,bnd->bsd", attn, v)

            slots = self.gru(
                updates.reshape(-1, self.dim),
                slots_prev.reshape(-1, self.dim),
            ).view(b, self.num_slots, self.dim)
            slots = slots + self.mlp(self.norm_mlp(slots))

        return slots
