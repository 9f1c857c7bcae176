import torch
from torch import nn
from torch.nn import functional as F


class LocationSensitiveAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, attention_dim, n_filters, kernel_size):
        super().__init__()
        self.query_layer = nn.Linear(query_dim, attention_dim, bias=False)
        self.memory_layer = nn.Linear(memory_dim, attention_dim, bias=False)
        self.location_conv = nn.Conv1d(1, n_filters, kernel_size, padding=kernel_size // 2, bias=False)
        self.location_dense = nn.Linear(n_filters, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.cumulative = None

    def forward(self, query, memory, processed_memory, pad_mask):
        if self.cumulative is None or self.cumulative.shape != pad_mask.shape:
            self.cumulative = memory.new_zeros(pad_mask.shape)

        location = self.location_conv(self.cumulative.unsqueeze(1)).transpose(1, 2)
        energies = self.v(torch.tanh(
            self.query_layer(query).unsqueeze(1) + processed_memory + self.location_dense(location)
        )).squeeze(-1)
        energies = energies.masked_fill(pad_mask, float("-inf"))

        weights = F.softmax(energies, dim=1)
        self.cumulative = self.cumulative + weights.detach()
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights


class MelDecoder(nn.Module):
    """Teacher forced mel decoder with location sensitive attention.

    memory:         (B, S, memory_dim) encoder outputs of the texts
    mels:           (B, T, n_mels) target frames
    memory_lengths: (B,) text lengths
    """

    def __init__(self, n_mels=20, memory_dim=64, prenet_dim=32, rnn_dim=64, attention_dim=32,
                 n_filters=8, kernel_size=7):
        super().__init__()
        self.n_mels = n_mels
        self.rnn_dim = rnn_dim
        self.prenet = nn.Sequential(nn.Linear(n_mels, prenet_dim), nn.ReLU())
        self.rnn = nn.LSTMCell(prenet_dim + memory_dim, rnn_dim)
        self.attention = LocationSensitiveAttention(rnn_dim, memory_dim, attention_dim, n_filters, kernel_size)
        self.projection = nn.Linear(rnn_dim + memory_dim, n_mels)

    def forward(self, memory, mels, memory_lengths):
        B, S, M = memory.shape
        pad_mask = torch.arange(S, device=memory.device)[None, :] >= memory_lengths[:, None]
        processed_memory = self.attention.memory_layer(memory)

        go_frame = mels.new_zeros(B, 1, self.n_mels)
        frames = self.prenet(torch.cat((go_frame, mels[:, :-1]), dim=1))

        h = memory.new_zeros(B, self.rnn_dim)
        c = memory.new_zeros(B, self.rnn_dim)
        context = memory.new_zeros(B, M)

        outputs, alignments = [], []
        for frame in frames.unbind(1):
            h, c = self.rnn(torch.cat((frame, context), dim=-1), (h, c))
            context, weights = self.attention(h, memory, processed_memory, pad_mask)
            outputs.append(self.projection(torch.cat((h, context), dim=-1)))
            alignments.append(weights)
        return torch.stack(outputs, dim=1), torch.stack(alignments, dim=1)
