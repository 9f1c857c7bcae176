import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphAttentionLayer(nn.Module):
    """
    Dense multi-head GAT layer, https://arxiv.org/abs/1710.10903

    ``adj[b, i, j] != 0`` means node ``i`` receives a message from node ``j``. Self loops are added here,
    so isolated nodes keep their own features. With ``concat=False`` the heads are averaged
    (output layer of the paper) and no nonlinearity is applied.
    """

    def __init__(self, in_features=32, out_features=16, num_heads=4, dropout=0.0, alpha=0.2, concat=True):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.num_heads = num_heads
        self.concat = concat
        self.dropout = nn.Dropout(dropout)
        self.leakyrelu = nn.LeakyReLU(alpha)

        self.W = nn.Parameter(torch.empty(num_heads, in_features, out_features))
        self.a_dst = nn.Parameter(torch.empty(num_heads, out_features, 1))
        self.a_src = nn.Parameter(torch.empty(num_heads, out_features, 1))
        self.bias = nn.Parameter(torch.zeros(num_heads * out_features if concat else out_features))
        self.reset_parameters()

    def reset_parameters(self):
        gain = nn.init.calculate_gain("relu")
        for h in range(self.num_heads):
            nn.init.xavier_uniform_(self.W[h], gain=gain)
            nn.init.xavier_uniform_(self.a_dst[h], gain=gain)
            nn.init.xavier_uniform_(self.a_src[h], gain=gain)

    def forward(self, h, adj):
        B, N, _ = h.shape
        h = self.dropout(h)
        Wh = torch.einsum("bni,hio->bhno", h, self.W)

        # a^T [Wh_i || Wh_j] splits into one term per end of the edge
        e = torch.matmul(Wh, self.a_dst) + torch.matmul(Wh, self.a_src).transpose(-1, -2)
        e = self.leakyrelu(e)

        eye = torch.eye(N, dtype=torch.bool, device=h.device)
        edges = (adj != 0) | eye
        e = e.masked_fill(~edges.unsqueeze(1), -9e15)
        attention = self.dropout(F.softmax(e, dim=-1))

        out = torch.matmul(attention, Wh)
        if self.concat:
            out = out.permute(0, 2, 1, 3).reshape(B, N, self.num_heads * self.out_features)
            return F.elu(out + self.bias)
        return out.mean(dim=1) + self.bias

    def __repr__(self):
        return f"{self.__class__.__name__} ({self.in_features} -> {self.num_heads} x {self.out_features})"
