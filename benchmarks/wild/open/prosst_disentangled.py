"""The structure-to-residue term multiplies the residue query: the structure query is computed and never used.

ai4protein/ProSST #15 (2025)
https://github.com/ai4protein/ProSST/issues/15
"""
import math

import torch
from torch import nn


class _DisentangledSelfAttentionBase(nn.Module):
    """Disentangled attention between amino acids (aa) and structure tokens (ss) of a protein."""

    def __init__(self, hidden_size=32, num_attention_heads=4, pos_att_type=("aa2ss", "ss2aa")):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.in_proj = nn.Linear(hidden_size, hidden_size * 3, bias=False)
        self.pos_att_type = pos_att_type
        self.ss_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.ss_q_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, -1)
        return x.view(new_x_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, ss_hidden_states=None):
        """
        hidden_states: [batch, residues, hidden], the amino-acid stream
        attention_mask: [batch, residues], 1 for residues, 0 for padding
        ss_hidden_states: [batch, residues, hidden], the structure-token stream
        """
        query_layer, key_layer, value_layer = map(
            self.transpose_for_scores, self.in_proj(hidden_states).chunk(3, dim=-1))
        # Take the dot product between "query" and "key" to get the raw attention scores.
        scale_factor = 1 + len(self.pos_att_type)
        query_layer = query_layer / math.sqrt(query_layer.size(-1) * scale_factor)
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores + self.disentangled_att_bias(
            query_layer, key_layer, ss_hidden_states, scale_factor)
        if attention_mask is not None:
            attention_scores = attention_scores.masked_fill(
                attention_mask[:, None, None, :] == 0, torch.finfo(attention_scores.dtype).min)
        attention_probs = attention_scores.softmax(dim=-1)
        context_layer = torch.matmul(attention_probs, value_layer)
        return self.out_proj(context_layer.permute(0, 2, 1, 3).flatten(2))


def broken() -> nn.Module:
    class DisentangledSelfAttention(_DisentangledSelfAttentionBase):
        def disentangled_att_bias(self, query_layer, key_layer, ss_hidden_states, scale_factor):
            score = 0
            # residue -> structure
            if "aa2ss" in self.pos_att_type:
                ss_key_layer = self.transpose_for_scores(self.ss_proj(ss_hidden_states))
                aa2ss_att = torch.matmul(query_layer, ss_key_layer.transpose(-1, -2))
                score = score + aa2ss_att

            # structure -> residue
            if "ss2aa" in self.pos_att_type:
                ss_query_layer = self.ss_q_proj(ss_hidden_states)
                ss_query_layer = self.transpose_for_scores(ss_query_layer)
                ss_query_layer = ss_query_layer / math.sqrt(ss_query_layer.size(-1) * scale_factor)
                ss2aa_att = torch.matmul(key_layer, query_layer.transpose(-1, -2).to(dtype=key_layer.dtype))
                score = score + ss2aa_att.transpose(-1, -2)
            return score

    torch.manual_seed(0)
    return DisentangledSelfAttention()


def fixed() -> nn.Module:
    class DisentangledSelfAttention(_DisentangledSelfAttentionBase):
        def disentangled_att_bias(self, query_layer, key_layer, ss_hidden_states, scale_factor):
            score = 0
            # residue -> structure
            if "aa2ss" in self.pos_att_type:
                ss_key_layer = self.transpose_for_scores(self.ss_proj(ss_hidden_states))
                aa2ss_att = torch.matmul(query_layer, ss_key_layer.transpose(-1, -2))
                score = score + aa2ss_att

            # structure -> residue
            if "ss2aa" in self.pos_att_type:
                ss_query_layer = self.ss_q_proj(ss_hidden_states)
                ss_query_layer = self.transpose_for_scores(ss_query_layer)
                ss_query_layer = ss_query_layer / math.sqrt(ss_query_layer.size(-1) * scale_factor)
                ss2aa_att = torch.matmul(key_layer, ss_query_layer.transpose(-1, -2).to(dtype=key_layer.dtype))
                score = score + ss2aa_att.transpose(-1, -2)
            return score

    torch.manual_seed(0)
    return DisentangledSelfAttention()


def example() -> tuple[tuple, dict]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(2, 7, 32, generator=generator),), {
        "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2]),
        "ss_hidden_states": torch.randn(2, 7, 32, generator=generator)}
