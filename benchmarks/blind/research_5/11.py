import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseGraphAttention(nn.Module):
    """GAT layer on dense adjacency matrices.

    x:   [B, N, in_features]
    adj: [B, N, N], non-zero where node i receives from node j (self loops included)
    """

    def __init__(self, in_features=32, out_features=16, n_heads=4, alpha=0.2, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.out_features = out_features
        self.W = nn.Linear(in_features, n_heads * out_features, bias=False)
        self.a_dst = nn.Parameter(torch.empty(n_heads, out_features))
        self.a_src = nn.Parameter(torch.empty(n_heads, out_features))
        self.leakyrelu = nn.LeakyReLU(alpha)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.a_dst, gain=1.414)
        nn.init.xavier_uniform_(self.a_src, gain=1.414)

    def forward(self, x, adj):
        B, N, _ = x.shape
        h = self.W(x).view(B, N, self.n_heads, self.out_features)
        f_dst = (h * self.a_dst).sum(-1).permute(0, 2, 1)
        f_src = (h * self.a_src).sum(-1).permute(0, 2, 1)
        e = self.leakyrelu(f_dst.unsqueeze(-1) + f_src.unsqueeze(-2))

        attention = F.softmax(e, dim=-1)
        attention = attention * (adj != 0).unsqueeze(1).to(attention.dtype)
        attention = self.dropout(attention)

        out = torch.einsum("bhij,bjhd->bihd", attention, h)
        return F.elu(out.reshape(B, N, -1))
