"""Pointer network that orders 2-D points (e.g. for the travelling salesman problem)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PointerAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.W1 = nn.Linear(dim, dim, bias=False)
        self.W2 = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, enc_proj, dec_state, visited):
        u = self.v(torch.tanh(enc_proj + self.W2(dec_state).unsqueeze(1))).squeeze(-1)
        return u.masked_fill(visited, float("-inf"))


class PointerNetwork(nn.Module):
    """Emit a permutation of the N input points.

    forward(points, target=None):
        points: (B, N, 2)
        target: (B, N) long, permutation used for teacher forcing. Without it each step follows
                the model's own choice (sampled while training, greedy in eval mode).
    returns:
        log_probs (B, N, N): distribution over inputs at each step, -inf on visited points
        order (B, N): the points followed
    """

    def __init__(self, input_dim=2, dim=128):
        super().__init__()
        self.embed = nn.Linear(input_dim, dim)
        self.encoder = nn.LSTM(dim, dim, batch_first=True)
        self.decoder = nn.LSTMCell(dim, dim)
        self.start = nn.Parameter(torch.empty(dim).uniform_(-0.1, 0.1))
        self.pointer = PointerAttention(dim)

    def forward(self, points, target=None):
        B, N, _ = points.shape
        x = self.embed(points)
        enc, (h, c) = self.encoder(x)
        h, c = h[0], c[0]
        enc_proj = self.pointer.W1(enc)  # does not change between steps

        visited = torch.zeros(B, N, dtype=torch.bool, device=points.device)
        rows = torch.arange(B, device=points.device)
        inp = self.start.expand(B, -1)
        log_probs, order = [], []
        for step in range(N):
            h, c = self.decoder(inp, (h, c))
            logits = self.pointer(enc_proj, h, visited)
            log_p = F.log_softmax(logits, dim=-1)
            if target is not None:
                choice = target[:, step]
            elif self.training:
                choice = torch.multinomial(log_p.detach().exp(), 1).squeeze(1)
            else:
                choice = log_p.argmax(dim=-1)
            log_probs.append(log_p)
            order.append(choice)
            # out of place: the mask of earlier steps is still needed by autograd
            visited = visited | F.one_hot(choice, N).bool()
            inp = x[rows, choice]
        return torch.stack(log_probs, dim=1), torch.stack(order, dim=1)

    def loss(self, points, target):
        log_probs, _ = self(points, target)
        return F.nll_loss(log_probs.flatten(0, 1), target.flatten())
