import torch
import torch.nn as nn
import torch.nn.functional as F


class TextClassifier(nn.Module):
    """Small Transformer text classifier on token ids (0 is the padding id)."""

    def __init__(self, vocab_size=1000, dim=64, num_heads=4, num_layers=2, num_classes=3,
                 max_len=128, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, dim)
        layer = nn.TransformerEncoderLayer(
            dim, num_heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, input_ids):
        pad = input_ids.eq(self.pad_id)
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        h = self.tok(input_ids) + self.pos(pos)
        h = self.encoder(h, src_key_padding_mask=pad)
        h = self.norm(h)
        pooled = h.mean(dim=1)
        return self.head(F.relu(pooled))
