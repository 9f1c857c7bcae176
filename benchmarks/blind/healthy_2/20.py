"""Dialogue GPT with speaker (token type) embeddings and left-padded batches."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class DialogueAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.scale = 1.0 / math.sqrt(dim // num_heads)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x, visible):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, -1).transpose(1, 2)
        k = k.view(B, T, self.num_heads, -1).permute(0, 2, 3, 1)
        v = v.view(B, T, self.num_heads, -1).transpose(1, 2)
        w = torch.matmul(q, k) * self.scale
        w = w.masked_fill(~visible, torch.finfo(w.dtype).min)
        w = self.attn_dropout(F.softmax(w, dim=-1))
        a = torch.matmul(w, v).transpose(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(a))


class DialogueBlock(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = DialogueAttention(dim, num_heads, dropout)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x, visible):
        x = x + self.attn(self.ln_1(x), visible)
        return x + self.mlp(self.ln_2(x))


class DialogueGPT(nn.Module):
    """Causal language model over ``<user> ... <bot> ...`` turns.

    Args of forward:
        input_ids:      (B, T)
        token_type_ids: (B, T) speaker of every token, 0 .. num_speakers - 1
        attention_mask: (B, T) 1 on real tokens, 0 on padding (either side); default: all real
        position_ids:   (B, T); default: counted from the first real token
        labels:         (B, T) copy of input_ids with -100 wherever no loss is wanted; the shift
                        by one happens inside

    Returns (logits, loss); loss is None without labels.
    """

    def __init__(self, vocab_size=2000, num_speakers=2, dim=96, num_heads=4, num_layers=2,
                 max_positions=256, dropout=0.1):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, dim)
        self.wpe = nn.Embedding(max_positions, dim)
        self.wse = nn.Embedding(num_speakers, dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([DialogueBlock(dim, num_heads, dropout) for _ in range(num_layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)
        for emb in (self.wte, self.wpe, self.wse):
            nn.init.normal_(emb.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids, token_type_ids, attention_mask: Optional[torch.Tensor] = None,
                position_ids: Optional[torch.Tensor] = None, labels: Optional[torch.Tensor] = None):
        B, T = input_ids.shape
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if position_ids is None:
            position_ids = (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)

        causal = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
        eye = torch.eye(T, dtype=torch.bool, device=input_ids.device)
        visible = (causal & attention_mask.bool()[:, None, None, :]) | eye

        x = self.wte(input_ids) + self.wpe(position_ids) + self.wse(token_type_ids)
        x = self.drop(x)
        for block in self.blocks:
            x = block(x, visible)
        logits = self.lm_head(self.ln_f(x))

        loss = None
        if labels is not None:
            loss = F.cross_entropy(
                logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1), ignore_index=-100
            )
        return logits, loss
