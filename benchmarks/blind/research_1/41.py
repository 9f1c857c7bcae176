import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class CausalLinearAttention(nn.Module):
    """Causal linear attention (Katharopoulos et al., "Transformers are RNNs").

    Arguments
    ---------
        d_model: width of the input
        n_heads: number of heads
        eps: float, a small number for the stability of the denominator
    """

    def __init__(self, d_model=64, n_heads=4, eps=1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.eps = eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, x):
        N, L, D = x.shape
        H = self.n_heads
        queries = self.query_projection(x).view(N, L, H, -1)
        keys = self.key_projection(x).view(N, L, H, -1)
        values = self.value_projection(x).view(N, L, H, -1)

        # Apply the feature map to the queries and keys
        Q = elu_feature_map(queries)
        K = elu_feature_map(keys)

        # Compute the normalizers
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)

        # Compute the unnormalized result from the running key-value products
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, values).cumsum(dim=1)
        V = torch.einsum("nlhd,nlhdm->nlhm", Q, KV)

        out = (V * Z.unsqueeze(-1)).reshape(N, L, D)
        return self.out_projection(out)
