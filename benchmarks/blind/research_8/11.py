import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseGraphAttention(nn.Module):
    """GAT layer on dense graphs.

    x: [B, N, in_features]
    adj: [B, N, N] 0/1, with self loops; adj[b, i, j] = 1 when i receives from j
    """

    def __init__(self, in_features=16, out_features=32, num_heads=4, alpha=0.2, dropout=0.0):
        super().__init__()
        assert out_features % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = out_features // num_heads
        self.W = nn.Linear(in_features, out_features, bias=False)
        self.a_recv = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.a_send = nn.Parameter(torch.empty(num_heads, self.head_dim))
        nn.init.xavier_uniform_(self.a_recv, gain=1.414)
        nn.init.xavier_uniform_(self.a_send, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, adj):
        b, n, _ = x.shape
        h = self.W(x).view(b, n, self.num_heads, self.head_dim)
        recv = (h * self.a_recv).sum(-1).permute(0, 2, 1)
        send = (h * self.a_send).sum(-1).permute(0, 2, 1)
        e = self.leakyrelu(recv.unsqueeze(-1) + send.unsqueeze(-2))
        e = e * adj.unsqueeze(1)
        attention = self.dropout(F.softmax(e, dim=-1))
        out = torch.einsum("bhij,bjhd->bihd", attention, h)
        return F.elu(out.reshape(b, n, -1))
