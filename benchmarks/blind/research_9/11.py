import torch
import torch.nn as nn


class BehaviorSequenceTransformer(nn.Module):
    """Behavior Sequence Transformer for CTR prediction (Alibaba, 2019).

    The target item is appended to the history of clicked items and the whole sequence goes through a
    transformer layer; the flattened result and the user profile feed an MLP.

    Inputs
        history: LongTensor [batch, max_len], item ids
        target:  LongTensor [batch]
        profile: FloatTensor [batch, profile_dim]
    Output
        logits [batch]
    """

    def __init__(
        self,
        num_items: int = 1000,
        emb_dim: int = 32,
        num_heads: int = 4,
        num_layers: int = 1,
        max_len: int = 20,
        profile_dim: int = 8,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.max_len = max_len
        self.item_emb = nn.Embedding(num_items, emb_dim)
        self.pos_emb = nn.Embedding(max_len + 1, emb_dim)
        layer = nn.TransformerEncoderLayer(
            d_model=emb_dim,
            nhead=num_heads,
            dim_feedforward=4 * emb_dim,
            dropout=dropout,
            activation=nn.functional.leaky_relu,
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=num_layers)
        self.profile_net = nn.Linear(profile_dim, emb_dim)
        self.mlp = nn.Sequential(
            nn.Linear((max_len + 1) * emb_dim + emb_dim, 128),
            nn.LeakyReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 64),
            nn.LeakyReLU(),
            nn.Linear(64, 1),
        )
        nn.init.normal_(self.item_emb.weight, std=0.02)
        nn.init.normal_(self.pos_emb.weight, std=0.02)

    def forward(self, history: torch.Tensor, target: torch.Tensor, profile: torch.Tensor) -> torch.Tensor:
        seq = torch.cat([history, target.unsqueeze(1)], dim=1)
        steps = torch.arange(seq.size(1), device=seq.device)
        x = self.item_emb(seq) + self.pos_emb(steps)
        x = self.encoder(x)
        features = torch.cat([x.flatten(1), self.profile_net(profile)], dim=-1)
        return self.mlp(features).squeeze(-1)
