import torch
import torch.nn as nn


class GatedAttentionMIL(nn.Module):
    """Attention-based deep multiple instance learning, gated variant.

    Input is a batch of bags (B, N, in_features). Returns the bag logits and the attention of
    each instance in its bag (B, N).
    """

    def __init__(self, in_features=512, L=128, D=64, n_classes=2, dropout=0.25):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(in_features, L),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.attention_V = nn.Sequential(nn.Linear(L, D), nn.Tanh())
        self.attention_U = nn.Sequential(nn.Linear(L, D), nn.Sigmoid())
        self.attention_weights = nn.Linear(D, 1)
        self.classifier = nn.Linear(L, n_classes)

    def forward(self, bags):
        H = self.encoder(bags)                                # B x N x L
        gated = self.attention_V(H) * self.attention_U(H)     # B x N x D
        A = self.attention_weights(gated)                     # B x N x 1
        A = torch.softmax(A, dim=-1)

        M = torch.matmul(A.transpose(1, 2), H).squeeze(1)     # B x L
        return self.classifier(M), A.squeeze(-1)
