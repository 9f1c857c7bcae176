import torch
import torch.nn as nn


class TransformerLayer(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, dropout=dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.ffn = nn.Sequential(
            nn.Linear(dim, 4 * dim),
            nn.LeakyReLU(),
            nn.Linear(4 * dim, dim),
        )

    def forward(self, x):
        s, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm1(x + self.dropout(s))
        return self.norm2(x + self.dropout(self.ffn(x)))


class BehaviorSequenceTransformer(nn.Module):
    """Behavior Sequence Transformer for CTR prediction (Chen et al., DLP-KDD 2019).

    Args:
        history: (batch, seq_len) item ids
        target: (batch,) candidate item
        other: (batch, other_dim) user / context features
    """

    def __init__(self, num_items=1000, seq_len=20, emb_dim=32, num_heads=4, num_layers=1, other_dim=8, dropout=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(num_items, emb_dim)
        self.pos_emb = nn.Embedding(seq_len + 1, emb_dim)
        self.layers = nn.ModuleList([TransformerLayer(emb_dim, num_heads, dropout) for _ in range(num_layers)])
        self.mlp = nn.Sequential(
            nn.Linear(emb_dim * (seq_len + 1) + other_dim, 128), nn.LeakyReLU(),
            nn.Linear(128, 64), nn.LeakyReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, history, target, other):
        seq = torch.cat([history, target.unsqueeze(1)], dim=1)
        pos = torch.arange(seq.size(1), device=seq.device)
        x = self.item_emb(seq) + self.pos_emb(pos)
        for layer in self.layers:
            x = layer(x)
        features = torch.cat([x.flatten(1), other], dim=1)
        return torch.sigmoid(self.mlp(features)).squeeze(1)
