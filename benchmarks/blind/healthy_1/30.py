from typing import NamedTuple

import torch
from torch import nn
import torch.nn.functional as F


def get_mask_from_lengths(lengths: torch.Tensor, max_len: int) -> torch.Tensor:
    """True on padding."""
    ids = torch.arange(max_len, device=lengths.device)
    return ids[None, :] >= lengths[:, None]


class LocationLayer(nn.Module):
    def __init__(self, n_filters, kernel_size, attention_dim):
        super().__init__()
        assert kernel_size % 2 == 1
        self.location_conv = nn.Conv1d(2, n_filters, kernel_size, padding=(kernel_size - 1) // 2, bias=False)
        self.location_dense = nn.Linear(n_filters, attention_dim, bias=False)

    def forward(self, attention_weights_cat):
        processed = self.location_conv(attention_weights_cat).transpose(1, 2)
        return self.location_dense(processed)


class AlignmentState(NamedTuple):
    weights: torch.Tensor       # (B, T) alignment of the last step
    cumulative: torch.Tensor    # (B, T) sum of the alignments so far
    keys: torch.Tensor          # (B, T, attention_dim), projected once per utterance
    padding: torch.Tensor       # (B, T) bool


class LocationSensitiveAttention(nn.Module):
    """Additive attention of Tacotron 2, one decoder step per call.

        e_t = v . tanh(W query + V memory_t + U location_t)

    Usage::

        state = attention.init_state(memory, memory_lengths)
        for query in queries:
            context, state = attention(query, memory, state)
    """

    def __init__(
        self,
        query_dim: int = 128,
        memory_dim: int = 64,
        attention_dim: int = 32,
        attention_location_n_filters: int = 8,
        attention_location_kernel_size: int = 7,
    ):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attention_dim, bias=False)
        self.memory_layer = nn.Linear(memory_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.location_layer = LocationLayer(
            attention_location_n_filters, attention_location_kernel_size, attention_dim
        )

    def init_state(self, memory: torch.Tensor, memory_lengths: torch.Tensor = None) -> AlignmentState:
        """memory: (B, T, memory_dim); memory_lengths: (B,), each at least 1, all frames count if omitted."""
        B, T, _ = memory.shape
        if memory_lengths is None:
            padding = torch.zeros(B, T, dtype=torch.bool, device=memory.device)
        else:
            padding = get_mask_from_lengths(memory_lengths, T)
        zeros = memory.new_zeros(B, T)
        return AlignmentState(zeros, zeros, self.memory_layer(memory), padding)

    def get_alignment_energies(self, query, state):
        location = torch.stack((state.weights, state.cumulative), dim=1)
        processed_query = self.query_layer(query.unsqueeze(1))
        energies = self.v(torch.tanh(processed_query + self.location_layer(location) + state.keys))
        return energies.squeeze(-1)

    def forward(self, query: torch.Tensor, memory: torch.Tensor, state: AlignmentState):
        """query: (B, query_dim). Returns the context (B, memory_dim) and the next state."""
        energies = self.get_alignment_energies(query, state)
        energies = energies.masked_fill(state.padding, float("-inf"))
        weights = F.softmax(energies, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        state = state._replace(weights=weights, cumulative=state.cumulative + weights)
        return context, state
