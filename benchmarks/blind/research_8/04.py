import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvFrontEnd(nn.Module):
    def __init__(self, dim, kernels=(10, 3, 3), strides=(5, 2, 2)):
        super().__init__()
        layers, ch = [], 1
        for k, s in zip(kernels, strides):
            layers += [nn.Conv1d(ch, dim, k, stride=s, bias=False), nn.GELU()]
            ch = dim
        self.layers = nn.Sequential(*layers)

    def forward(self, wav):
        return self.layers(wav.unsqueeze(1)).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim, num_heads, ffn_dim):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.ln1 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.ln2 = nn.LayerNorm(dim)

    def forward(self, x, valid=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mask = None if valid is None else valid[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.ln1(x + self.out(y.transpose(1, 2).reshape(b, t, d)))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))


class SpeechEncoder(nn.Module):
    """wav2vec2-style encoder.

    Args:
        wav: [B, S] raw samples, zero padded.
        lengths: [B] number of samples of each utterance.
    Returns:
        frame features [B, T, dim]
    """

    def __init__(self, dim=64, num_heads=4, num_layers=2, ffn_dim=128, pos_kernel=15, pos_groups=4):
        super().__init__()
        self.frontend = ConvFrontEnd(dim)
        self.feat_norm = nn.LayerNorm(dim)
        self.pos_conv = nn.Conv1d(dim, dim, pos_kernel, padding=pos_kernel // 2, groups=pos_groups)
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, num_heads, ffn_dim) for _ in range(num_layers))

    def forward(self, wav, lengths=None):
        x = self.feat_norm(self.frontend(wav))
        valid = None
        if lengths is not None:
            frames = torch.arange(x.size(1), device=x.device)
            valid = frames[None, :] < lengths[:, None]
            x = x * valid.unsqueeze(-1)
        x = x + F.gelu(self.pos_conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, valid)
        return x
