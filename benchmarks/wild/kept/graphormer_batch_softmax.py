"""Softmax runs over all nodes of the batched graphs and is zeroed across graphs only afterwards.

leffff/graphormer-pyg #14 (2023)
https://github.com/leffff/graphormer-pyg/issues/14
"""
import torch
from torch import nn


class _GraphormerAttentionHeadBase(nn.Module):
    def __init__(self, dim_in: int, dim_q: int, dim_k: int):
        """
        :param dim_in: node feature matrix input number of dimension
        :param dim_q: query node feature matrix input number dimension
        :param dim_k: key node feature matrix input number of dimension
        """
        super().__init__()
        self.q = nn.Linear(dim_in, dim_q)
        self.k = nn.Linear(dim_in, dim_k)
        self.v = nn.Linear(dim_in, dim_k)

    def scores(self, query, key, b):
        return self.q(query).mm(self.k(key).transpose(0, 1)) / self.q.out_features ** 0.5 + b


class _GraphormerAttention(nn.Module):
    """Multi head attention on disjointly batched graphs with a learnt spatial bias."""

    def __init__(self, head, num_heads=2, dim_in=32, dim_k=16, max_path_distance=5):
        super().__init__()
        self.b = nn.Parameter(torch.randn(max_path_distance))
        self.heads = nn.ModuleList([head(dim_in, dim_k, dim_k) for _ in range(num_heads)])
        self.linear = nn.Linear(num_heads * dim_k, dim_in)

    def forward(self, x: torch.Tensor, distances: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
        """
        :param x: node feature matrix of all graphs of the batch, (num_nodes, dim_in)
        :param distances: (num_nodes, num_nodes) shortest path lengths, clipped; 0 between graphs
        :param ptr: batch pointer, graph i owns the nodes ptr[i] .. ptr[i + 1] - 1
        :return: torch.Tensor, node embeddings after all attention heads
        """
        b = self.b[distances.clamp(max=len(self.b) - 1)]
        return self.linear(torch.cat([head(x, x, x, b, ptr) for head in self.heads], dim=-1))


def broken() -> nn.Module:
    class GraphormerAttentionHead(_GraphormerAttentionHeadBase):
        def forward(self, query, key, value, b, ptr):
            batch_mask_zeros = torch.zeros(query.shape[0], query.shape[0], device=query.device)
            for i in range(len(ptr) - 1):
                batch_mask_zeros[ptr[i]:ptr[i + 1], ptr[i]:ptr[i + 1]] = 1
            a = self.scores(query, key, b)
            softmax = torch.softmax(a, dim=-1) * batch_mask_zeros
            return softmax.mm(self.v(value))

    torch.manual_seed(0)
    return _GraphormerAttention(GraphormerAttentionHead)


def fixed() -> nn.Module:
    class GraphormerAttentionHead(_GraphormerAttentionHeadBase):
        def forward(self, query, key, value, b, ptr):
            batch_mask_neg_inf = torch.full((query.shape[0], query.shape[0]), -1e6, device=query.device)
            for i in range(len(ptr) - 1):
                batch_mask_neg_inf[ptr[i]:ptr[i + 1], ptr[i]:ptr[i + 1]] = 0
            a = self.scores(query, key, b) + batch_mask_neg_inf
            softmax = torch.softmax(a, dim=-1)
            return softmax.mm(self.v(value))

    torch.manual_seed(0)
    return _GraphormerAttention(GraphormerAttentionHead)


def example():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(11, 32, generator=g)
    ptr = torch.tensor([0, 4, 7, 11])
    idx = torch.arange(11)
    graph = torch.bucketize(idx, ptr[1:-1], right=True)
    distances = (idx[:, None] - idx[None]).abs() * (graph[:, None] == graph[None])
    return (x, distances, ptr), {}
