import math

import torch
from torch import nn


@torch.no_grad()
def gaussian_orthogonal_random_matrix(nb_rows, nb_columns):
    """Rows are orthogonal within blocks of `nb_columns` and have the norms of gaussian vectors."""
    blocks = []
    for _ in range(math.ceil(nb_rows / nb_columns)):
        q, _ = torch.linalg.qr(torch.randn(nb_columns, nb_columns))
        blocks.append(q.t())
    matrix = torch.cat(blocks)[:nb_rows]
    multiplier = torch.randn(nb_rows, nb_columns).norm(dim=1)
    return multiplier[:, None] * matrix


def softmax_kernel(data, projection, is_query, mask=None, eps=1e-4):
    """Positive random features phi with E[phi(q) . phi(k)] = exp(q . k / sqrt(d)).

    A constant is subtracted from the exponent for stability: one per query, one per head for keys.
    Both cancel in the normalised attention.
    """
    normalizer = data.shape[-1] ** -0.25
    ratio = projection.shape[0] ** -0.5
    dash = torch.einsum("bhnd,md->bhnm", normalizer * data, projection)
    diag = (data**2).sum(dim=-1, keepdim=True) / 2.0 * normalizer**2
    if mask is not None:
        dash = dash.masked_fill(~mask[:, None, :, None], -1e4)
    if is_query:
        stab = dash.amax(dim=-1, keepdim=True).detach()
    else:
        stab = dash.amax(dim=(-1, -2), keepdim=True).detach()
    features = ratio * (torch.exp(dash - diag - stab) + eps)
    if mask is not None:
        # the features themselves vanish, so padding leaves the numerator and the denominator
        features = features.masked_fill(~mask[:, None, :, None], 0.0)
    return features


class PerformerSelfAttention(nn.Module):
    """FAVOR+ linear attention (bidirectional).

    Args:
        dim: model width.
        heads: number of heads.
        nb_features: random features per head, ``d log d`` if not given.

    The projection is a buffer and stays fixed; call :meth:`redraw_projection_matrix` between training
    steps for fresh features. ``mask`` is ``(batch, n)`` bool, True = token (at least one per sequence).
    """

    def __init__(self, dim=128, heads=4, nb_features=None, dropout=0.0):
        super().__init__()
        assert dim % heads == 0, "dimension must be divisible by number of heads"
        self.heads = heads
        self.dim_head = dim // heads
        self.nb_features = nb_features or int(self.dim_head * math.log(self.dim_head))
        projection = gaussian_orthogonal_random_matrix(self.nb_features, self.dim_head)
        self.register_buffer("projection_matrix", projection)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    @torch.no_grad()
    def redraw_projection_matrix(self):
        projection = gaussian_orthogonal_random_matrix(self.nb_features, self.dim_head)
        self.projection_matrix.copy_(projection)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q, k, v = (
            proj(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        if mask is not None:
            mask = mask.bool()
        q = softmax_kernel(q, self.projection_matrix, is_query=True)
        k = softmax_kernel(k, self.projection_matrix, is_query=False, mask=mask)

        k_sum = k.sum(dim=-2)
        d_inv = 1.0 / torch.einsum("bhnm,bhm->bhn", q, k_sum)
        context = torch.einsum("bhnm,bhnd->bhmd", k, v)
        out = torch.einsum("bhmd,bhnm,bhn->bhnd", context, q, d_inv)
        out = out.transpose(1, 2).reshape(b, n, self.heads * self.dim_head)
        return self.dropout(self.to_out(out))
