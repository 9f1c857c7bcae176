"""Cross-modal fusion of text, audio and video for sentiment regression (after MulT)."""
import torch
import torch.nn as nn


class CrossModalLayer(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.norm_q = nn.LayerNorm(dim)
        self.norm_kv = nn.LayerNorm(dim)
        # add_zero_attn: a zero key is always present, so an absent modality yields a zero
        # message (before the output bias) instead of a softmax over nothing
        self.attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True, add_zero_attn=True)
        self.norm_ff = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, source, source_mask):
        kv = self.norm_kv(source)
        msg, _ = self.attn(self.norm_q(x), kv, kv, key_padding_mask=~source_mask, need_weights=False)
        x = x + self.dropout(msg)
        return x + self.dropout(self.ff(self.norm_ff(x)))


class CrossModalStack(nn.Module):
    def __init__(self, dim, num_heads, depth, dropout):
        super().__init__()
        self.layers = nn.ModuleList(CrossModalLayer(dim, num_heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, source, source_mask):
        for layer in self.layers:
            x = layer(x, source, source_mask)
        return self.norm(x)


class MultimodalSentiment(nn.Module):
    """Each modality has its own length and is not aligned with the others.

    Args of forward: for each of text, audio and video a (B, L_m, dim_m) float tensor and a
    (B, L_m) bool mask that is True on real frames. A mask may be all False for a sample whose
    modality is missing.
    """

    MODALITIES = ("text", "audio", "video")

    def __init__(self, text_dim=300, audio_dim=74, video_dim=35, dim=40, num_heads=4, depth=2,
                 dropout=0.1, max_len=512, num_outputs=1):
        super().__init__()
        dims = dict(zip(self.MODALITIES, (text_dim, audio_dim, video_dim)))
        self.proj = nn.ModuleDict({m: nn.Linear(d, dim) for m, d in dims.items()})
        self.pos = nn.ModuleDict({m: nn.Embedding(max_len, dim) for m in self.MODALITIES})
        self.cross = nn.ModuleDict({
            f"{m}_from_{n}": CrossModalStack(dim, num_heads, depth, dropout)
            for m in self.MODALITIES for n in self.MODALITIES if m != n
        })
        self.head = nn.Sequential(nn.Linear(6 * dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, num_outputs))

    @staticmethod
    def masked_mean(x, mask):
        w = mask.unsqueeze(-1).to(x.dtype)
        return (x * w).sum(dim=1) / w.sum(dim=1).clamp(min=1.0)

    def forward(self, text, text_mask, audio, audio_mask, video, video_mask):
        masks = {"text": text_mask, "audio": audio_mask, "video": video_mask}
        feats = {}
        for m, x in zip(self.MODALITIES, (text, audio, video)):
            steps = torch.arange(x.size(1), device=x.device)
            feats[m] = self.proj[m](x) + self.pos[m](steps)

        pooled = []
        for m in self.MODALITIES:
            for n in self.MODALITIES:
                if m != n:
                    fused = self.cross[f"{m}_from_{n}"](feats[m], feats[n], masks[n])
                    pooled.append(self.masked_mean(fused, masks[m]))
        return self.head(torch.cat(pooled, dim=-1))
