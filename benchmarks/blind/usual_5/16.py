import torch
import torch.nn as nn


class GatedMILPooling(nn.Module):
    """Gated attention pooling of a bag of instances (Ilse et al., 2018).

    a_i = softmax_i( w^T (tanh(V h_i) * sigmoid(U h_i)) ),  one set of weights per class.

    Returns class logits (batch, n_classes) and weights (batch, n_classes, bag_size).
    A bag without any instance gets the embedding 0.
    """

    def __init__(self, in_dim=256, hidden=128, n_classes=2):
        super().__init__()
        self.V = nn.Linear(in_dim, hidden)
        self.U = nn.Linear(in_dim, hidden)
        self.w = nn.Linear(hidden, n_classes)
        # one row of weights per class, each applied to that class's own embedding
        self.classifier = nn.Parameter(torch.empty(n_classes, in_dim))
        self.classifier_bias = nn.Parameter(torch.zeros(n_classes))
        nn.init.xavier_normal_(self.classifier)

    def forward(self, bag, bag_mask=None):
        gate = torch.tanh(self.V(bag)) * torch.sigmoid(self.U(bag))
        a = self.w(gate).transpose(1, 2)
        if bag_mask is not None:
            keep = bag_mask.bool().unsqueeze(1)
            a = a.masked_fill(~keep, torch.finfo(a.dtype).min)
            a = torch.softmax(a, dim=-1) * keep
        else:
            a = torch.softmax(a, dim=-1)
        z = a @ bag
        logits = (z * self.classifier).sum(-1) + self.classifier_bias
        return logits, a
