import torch
import torch.nn as nn


class BehaviorSequenceTransformer(nn.Module):
    """BST ranking model (Chen et al., 2019).

    The candidate item is appended to the click history, the joint sequence goes through one Transformer
    layer and the flattened outputs are scored by an MLP. Histories always hold exactly ``history_len`` ids;
    users with fewer clicks are served by another model.

    Args:
        num_items: size of the catalogue.
        history_len: clicks per user.
    """

    def __init__(self, num_items=1000, dim=64, num_heads=4, history_len=20, mlp_dims=(128, 64), dropout=0.1):
        super().__init__()
        self.history_len = history_len
        self.item_emb = nn.Embedding(num_items, dim)
        self.pos_emb = nn.Embedding(history_len + 1, dim)
        self.encoder = nn.TransformerEncoderLayer(
            d_model=dim,
            nhead=num_heads,
            dim_feedforward=4 * dim,
            dropout=dropout,
            activation="gelu",
        )
        layers = []
        width = dim * (history_len + 1)
        for d in mlp_dims:
            layers += [nn.Linear(width, d), nn.LeakyReLU(), nn.Dropout(dropout)]
            width = d
        layers.append(nn.Linear(width, 1))
        self.mlp = nn.Sequential(*layers)

    def forward(self, history: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        """
        Args:
            history: ``[batch, history_len]`` item ids, oldest first.
            candidate: ``[batch]`` item ids.

        Returns:
            ``[batch]`` click logits.
        """
        seq = torch.cat([history, candidate.unsqueeze(1)], dim=1)
        pos = torch.arange(seq.size(1), device=seq.device)
        x = self.item_emb(seq) + self.pos_emb(pos)
        x = self.encoder(x)
        return self.mlp(x.flatten(1)).squeeze(-1)
