"""Decoder-only dialogue model: left padded prompts, speaker embeddings, batched generation with a cache."""
import math
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Cache = Tuple[torch.Tensor, torch.Tensor]


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, visible, past: Optional[Cache]):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        y = (self.dropout(att) @ v).transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y), (k, v)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, visible, past):
        y, present = self.attn(self.ln_1(x), visible, past)
        x = x + self.drop(y)
        return x + self.drop(self.mlp(self.ln_2(x))), present


class DialogueLM(nn.Module):
    """speakers: 0 for the user, 1 for the assistant, one id per token."""

    def __init__(self, vocab_size: int = 1000, max_len: int = 256, width: int = 128, heads: int = 4,
                 layers: int = 3, dropout: float = 0.1, pad_id: int = 0, eos_id: int = 2):
        super().__init__()
        self.pad_id, self.eos_id, self.max_len = pad_id, eos_id, max_len
        self.wte = nn.Embedding(vocab_size, width)
        self.wpe = nn.Embedding(max_len, width)
        self.speaker = nn.Embedding(2, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab_size, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        nn.init.normal_(self.speaker.weight, std=0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids, speakers, attention_mask=None, past: Optional[List[Cache]] = None):
        """
        ids, speakers: (B, T) the new tokens.
        attention_mask: (B, past + T), 1 for tokens, 0 for padding; all ones when not given.
        Returns the logits (B, T, vocab) and the cache.
        """
        B, T = ids.shape
        n_past = 0 if past is None else past[0][0].size(2)
        S = n_past + T
        if attention_mask is None:
            attention_mask = torch.ones(B, S, dtype=torch.long, device=ids.device)
        valid = attention_mask.bool()

        # the first real token has position 0, however much padding stands before it
        positions = (valid.long().cumsum(dim=1) - 1).clamp(min=0)[:, n_past:]
        x = self.drop(self.wte(ids) + self.wpe(positions) + self.speaker(speakers))

        q_idx = torch.arange(n_past, S, device=ids.device)[:, None]
        k_idx = torch.arange(S, device=ids.device)[None, :]
        visible = (k_idx <= q_idx) & valid[:, None, :]
        visible = (visible | (k_idx == q_idx)).unsqueeze(1)  # padding sees itself, no empty rows

        presents = []
        for i, block in enumerate(self.blocks):
            x, present = block(x, visible, None if past is None else past[i])
            presents.append(present)
        return self.lm_head(self.ln_f(x)), presents

    def loss(self, ids, speakers):
        """Next-token loss on the words of the assistant only."""
        mask = ids != self.pad_id
        logits, _ = self(ids[:, :-1], speakers[:, :-1], mask[:, :-1])
        learn = mask[:, 1:] & (speakers[:, 1:] == 1)
        target = ids[:, 1:].masked_fill(~learn, -100)
        total = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100, reduction="sum")
        return total / learn.sum().clamp(min=1)

    @torch.inference_mode()
    def reply(self, ids, speakers, max_new_tokens: int = 32):
        """Greedy replies (B, n) to left padded histories, ``pad_id`` after the end of a reply.

        The longest history plus ``max_new_tokens`` must not exceed ``max_len``. Call in eval mode.
        """
        mask = (ids != self.pad_id).long()
        done = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)
        past, out = None, []
        for _ in range(max_new_tokens):
            logits, past = self(ids, speakers, mask, past)
            token = logits[:, -1].argmax(dim=-1).masked_fill(done, self.pad_id)
            out.append(token)
            done = done | (token == self.eos_id)
            if done.all():
                break
            ids, speakers = token[:, None], torch.ones_like(token[:, None])
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        return torch.stack(out, dim=1)
