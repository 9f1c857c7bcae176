import torch
import torch.nn as nn
import torch.nn.functional as F


class DenseGATv2(nn.Module):
    """GATv2 convolution on dense adjacency matrices.

    ``adj[b, i, j] != 0`` means that node ``i`` receives a message from node ``j``. Every node also
    receives from itself. In contrast to GAT the nonlinearity comes before the product with the
    attention vector, so there is neither a query-key product nor a scale.

    Shapes: ``x`` (B, N, in_dim), ``adj`` (B, N, N), result (B, N, heads * out_dim).
    """

    def __init__(self, in_dim=32, out_dim=16, heads=4, negative_slope=0.2, dropout=0.0, share_weights=False):
        super().__init__()
        self.heads, self.out_dim = heads, out_dim
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin_l = nn.Linear(in_dim, heads * out_dim)
        self.lin_r = self.lin_l if share_weights else nn.Linear(in_dim, heads * out_dim)
        self.att = nn.Parameter(torch.empty(heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, adj):
        B, N, _ = x.shape
        x_l = self.lin_l(x).view(B, N, self.heads, self.out_dim)   # senders
        x_r = self.lin_r(x).view(B, N, self.heads, self.out_dim)   # receivers

        pair = F.leaky_relu(x_r[:, :, None] + x_l[:, None, :], self.negative_slope)   # (B, i, j, H, D)
        e = torch.einsum("bijhd,hd->bijh", pair, self.att)

        linked = (adj != 0) | torch.eye(N, dtype=torch.bool, device=adj.device)
        e = torch.where(linked.unsqueeze(-1), e, torch.full_like(e, -9e15))
        alpha = F.softmax(e, dim=2)
        alpha = F.dropout(alpha, self.dropout, training=self.training)

        out = torch.einsum("bijh,bjhd->bihd", alpha, x_l)
        return out.reshape(B, N, self.heads * self.out_dim) + self.bias
