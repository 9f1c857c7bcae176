import torch
import torch.nn as nn
import torch.nn.functional as F


class InteractingLayer(nn.Module):
    """Self-attention between feature fields (AutoInt).

    There is no output projection. The paper does not scale the scores (``scaled=False``). The residual goes through its
    own matrix because the width changes from ``in_dim`` to ``heads * head_dim``.
    """

    def __init__(self, in_dim, head_dim, heads, scaled=True, dropout=0.0):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        out_dim = heads * head_dim
        self.factor = head_dim ** -0.5 if scaled else 1.0
        self.W_query = nn.Parameter(torch.empty(in_dim, out_dim))
        self.W_key = nn.Parameter(torch.empty(in_dim, out_dim))
        self.W_value = nn.Parameter(torch.empty(in_dim, out_dim))
        self.W_res = nn.Parameter(torch.empty(in_dim, out_dim))
        for w in (self.W_query, self.W_key, self.W_value, self.W_res):
            nn.init.xavier_uniform_(w)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """(B, fields, in_dim) -> (B, fields, heads * head_dim)"""

        def split(t):
            return torch.stack(torch.split(t, self.head_dim, dim=-1))  # heads first

        q, k, v = split(x @ self.W_query), split(x @ self.W_key), split(x @ self.W_value)
        inner = torch.einsum("hbik,hbjk->hbij", q, k) * self.factor
        attn = self.dropout(F.softmax(inner, dim=-1))
        result = torch.matmul(attn, v)                                  # (heads, B, fields, head_dim)
        result = torch.cat(result.unbind(0), dim=-1)
        return F.relu(result + x @ self.W_res)


class AutoInt(nn.Module):
    """Click prediction with automatic feature interactions and a parallel MLP.

    Args:
        field_sizes: number of values of each categorical field.
        num_dense: number of numerical features; each is a field whose embedding is scaled by its value.

    Inputs: ``sparse`` (B, len(field_sizes)) ids within each field, ``dense`` (B, num_dense).
    Output: logits (B,).
    """

    def __init__(self, field_sizes=(100, 50, 20, 1000, 7), num_dense=3, emb_dim=16, head_dim=8, heads=2,
                 layers=3, mlp=(64, 32), scaled=True, dropout=0.1):
        super().__init__()
        self.num_fields = len(field_sizes) + num_dense
        # one table for all categorical fields, each field begins at its own offset
        starts = torch.tensor([0, *field_sizes[:-1]]).cumsum(0)
        self.register_buffer("offsets", starts, persistent=False)
        self.embedding = nn.Embedding(sum(field_sizes), emb_dim)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.dense_embedding = nn.Parameter(torch.randn(num_dense, emb_dim) * 0.05)

        # there are no positions: a field is known by its embeddings, the order of the fields is fixed
        blocks, width = [], emb_dim
        for _ in range(layers):
            blocks.append(InteractingLayer(width, head_dim, heads, scaled, dropout))
            width = heads * head_dim
        self.interacting = nn.Sequential(*blocks)
        self.attn_out = nn.Linear(self.num_fields * width, 1)

        tower, width = [], self.num_fields * emb_dim
        for h in mlp:
            tower += [nn.Linear(width, h), nn.ReLU(), nn.Dropout(dropout)]
            width = h
        self.mlp = nn.Sequential(*tower, nn.Linear(width, 1))

    def forward(self, sparse, dense):
        fields = torch.cat(
            [self.embedding(sparse + self.offsets), dense.unsqueeze(-1) * self.dense_embedding], dim=1
        )
        attention_logit = self.attn_out(self.interacting(fields).flatten(1))
        deep_logit = self.mlp(fields.flatten(1))
        return (attention_logit + deep_logit).squeeze(-1)
