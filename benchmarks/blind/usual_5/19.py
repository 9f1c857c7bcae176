import torch
from torch import nn


class LocalPredictiveAttention(nn.Module):
    """Luong et al. (2015), section 3.2, "local-p".

    A centre p_t = (L - 1) * sigmoid(v^T tanh(W h_t)) is predicted within the source
    sentence of length L. The softmax is over the window [p_t - D, p_t + D]; its result
    is multiplied by a Gaussian around p_t with sigma = D / 2. As in the paper, the
    product isn't normalised again, so the returned weights sum to less than one.
    """

    def __init__(self, hidden_size: int = 128, window: int = 5):
        super().__init__()
        assert window >= 1
        self.window = window
        self.score = nn.Linear(hidden_size, hidden_size, bias=False)
        self.W_p = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_p = nn.Linear(hidden_size, 1, bias=False)
        self.W_c = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, h_t, source, lengths=None):
        """h_t: (B, H); source: (B, S, H); lengths: (B,) of the source sentences, all >= 1."""
        B, S, _ = source.shape
        if lengths is None:
            lengths = torch.full((B,), S, device=source.device)
        last = (lengths - 1).to(source.dtype).unsqueeze(1)
        p_t = last * torch.sigmoid(self.v_p(torch.tanh(self.W_p(h_t))))

        positions = torch.arange(S, device=source.device)
        offset = positions.to(source.dtype).unsqueeze(0) - p_t
        usable = (offset.abs() <= self.window) & (positions.unsqueeze(0) < lengths.unsqueeze(1))

        energy = torch.einsum("bh,bsh->bs", self.score(h_t), source)
        align = energy.masked_fill(~usable, float("-inf")).softmax(dim=1)
        sigma = self.window / 2
        align = align * torch.exp(-offset.pow(2) / (2 * sigma ** 2))

        context = torch.einsum("bs,bsh->bh", align, source)
        h_tilde = torch.tanh(self.W_c(torch.cat([context, h_t], dim=1)))
        return h_tilde, align
