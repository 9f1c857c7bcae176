import torch
import torch.nn as nn


class ChunkedLinearAttention(nn.Module):
    """Causal linear attention, evaluated chunk by chunk.

    Inside of a chunk the masked products are computed directly, everything before it is summarised in a
    (d x d) state and a (d) normaliser that are carried from chunk to chunk. There is no softmax: weights are
    phi(q).phi(k) with phi = relu + small constant, divided by their sum.
    """

    def __init__(self, dim: int = 64, heads: int = 4, chunk: int = 16):
        super().__init__()
        self.heads = heads
        self.chunk = chunk
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    @staticmethod
    def phi(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        d = c // self.heads
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d).permute(2, 0, 3, 1, 4)
        q, k = self.phi(q), self.phi(k)

        state = x.new_zeros(b, self.heads, d, d)
        norm = x.new_zeros(b, self.heads, d, 1)
        outputs = []
        for qc, kc, vc in zip(q.split(self.chunk, 2), k.split(self.chunk, 2), v.split(self.chunk, 2)):
            local = (qc @ kc.transpose(-1, -2)).tril()
            num = local @ vc + qc @ state
            den = local.sum(-1, keepdim=True) + qc @ norm
            outputs.append(num / den)
            state = state + kc.transpose(-1, -2) @ vc
            norm = norm + kc.sum(dim=2).unsqueeze(-1)

        y = torch.cat(outputs, dim=2)
        return self.out(y.transpose(1, 2).reshape(b, t, c))
