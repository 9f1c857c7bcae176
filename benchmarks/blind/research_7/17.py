import torch
import torch.nn as nn


class EncoderBlock(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class RegisterViT(nn.Module):
    """Vision transformer with a class token and register tokens.

    The classifier sees the class token next to the mean of the patch tokens. Registers carry
    no position and are discarded at the output.
    """

    def __init__(self, img_size=32, patch_size=8, in_chans=3, dim=64, depth=2, num_heads=4,
                 num_registers=4, num_classes=10):
        super().__init__()
        self.num_registers = num_registers
        self.patch_embed = nn.Conv2d(in_chans, dim, patch_size, stride=patch_size)
        num_patches = (img_size // patch_size) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, num_registers, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, dim))
        self.blocks = nn.ModuleList(EncoderBlock(dim, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(2 * dim, num_classes)
        for p in (self.cls_token, self.register_tokens, self.pos_embed):
            nn.init.trunc_normal_(p, std=0.02)

    def prepare_tokens(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.size(0), -1, -1), x), dim=1)
        x = x + self.pos_embed
        return torch.cat((x, self.register_tokens.expand(x.size(0), -1, -1)), dim=1)

    def forward_features(self, images):
        x = self.prepare_tokens(images)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return {"cls": x[:, 0], "patches": x[:, 1 + self.num_registers:]}

    def forward(self, images):
        feats = self.forward_features(images)
        pooled = torch.cat((feats["cls"], feats["patches"].mean(dim=1)), dim=-1)
        return self.head(pooled)
