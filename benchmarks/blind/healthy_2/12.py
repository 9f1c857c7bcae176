import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.ln_2 = nn.LayerNorm(width)

    def forward(self, x, attn_mask=None):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=attn_mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.resblocks = nn.ModuleList([ResidualAttentionBlock(width, heads) for _ in range(layers)])

    def forward(self, x, attn_mask=None):
        for block in self.resblocks:
            x = block(x, attn_mask)
        return x


class CLIP(nn.Module):
    """Contrastive image-text model.

    The end-of-text token must have the highest id of the vocabulary and occur in each row of
    ``text``; what follows it is padding, which the causal mask hides from the pooled position.
    """

    def __init__(self, embed_dim=64, image_size=32, patch_size=8, vision_width=96, vision_layers=2,
                 vision_heads=4, context_length=32, vocab_size=1000, text_width=64, text_layers=2,
                 text_heads=4):
        super().__init__()
        self.context_length = context_length
        num_patches = (image_size // patch_size) ** 2

        self.conv1 = nn.Conv2d(3, vision_width, patch_size, stride=patch_size, bias=False)
        self.class_embedding = nn.Parameter(vision_width ** -0.5 * torch.randn(vision_width))
        self.visual_pos = nn.Parameter(vision_width ** -0.5 * torch.randn(num_patches + 1, vision_width))
        self.ln_pre = nn.LayerNorm(vision_width)
        self.visual = Transformer(vision_width, vision_layers, vision_heads)
        self.ln_post = nn.LayerNorm(vision_width)
        self.visual_proj = nn.Parameter(vision_width ** -0.5 * torch.randn(vision_width, embed_dim))

        self.token_embedding = nn.Embedding(vocab_size, text_width)
        self.text_pos = nn.Parameter(0.01 * torch.randn(context_length, text_width))
        self.text = Transformer(text_width, text_layers, text_heads)
        self.ln_final = nn.LayerNorm(text_width)
        self.text_proj = nn.Parameter(text_width ** -0.5 * torch.randn(text_width, embed_dim))

        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        # additive float mask: -inf strictly above the diagonal
        mask = torch.full((context_length, context_length), float("-inf")).triu(1)
        self.register_buffer("causal_mask", mask, persistent=False)

    def encode_image(self, image):
        x = self.conv1(image).flatten(2).transpose(1, 2)
        cls = self.class_embedding.expand(x.size(0), 1, -1)
        x = torch.cat([cls, x], dim=1) + self.visual_pos
        x = self.visual(self.ln_pre(x))
        return self.ln_post(x[:, 0]) @ self.visual_proj

    def encode_text(self, text):
        n = text.size(1)
        assert n <= self.context_length
        x = self.token_embedding(text) + self.text_pos[:n]
        x = self.ln_final(self.text(x, self.causal_mask[:n, :n]))
        x = x[torch.arange(x.size(0), device=x.device), text.argmax(dim=-1)]
        return x @ self.text_proj

    def forward(self, image, text):
        img = F.normalize(self.encode_image(image), dim=-1)
        txt = F.normalize(self.encode_text(text), dim=-1)
        scale = self.logit_scale.clamp(max=math.log(100.0)).exp()
        logits_per_image = scale * img @ txt.t()
        return logits_per_image, logits_per_image.t()

    def loss(self, image, text):
        per_image, per_text = self(image, text)
        labels = torch.arange(per_image.size(0), device=per_image.device)
        return 0.5 * (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels))
