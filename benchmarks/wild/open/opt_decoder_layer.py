"""The queries are scaled after their projection and SDPA then scales the scores again.

huggingface/transformers #38290 (2025)
https://github.com/huggingface/transformers/pull/38290
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def sdpa_attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None):
    """attention_mask: additive float mask [batch, 1, query, key] or None for plain causal attention."""
    attn_output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=attention_mask is None)
    return attn_output.transpose(1, 2).contiguous()


class _OPTAttentionBase(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)


class OPTDecoderLayer(nn.Module):
    def __init__(self, self_attn, embed_dim, ffn_dim):
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = hidden_states + self.self_attn(self.self_attn_layer_norm(hidden_states), attention_mask)
        return hidden_states + self.fc2(F.relu(self.fc1(self.final_layer_norm(hidden_states))))


def broken() -> nn.Module:
    class OPTAttention(_OPTAttentionBase):
        """Multi-headed attention from 'Attention Is All You Need' paper"""

        def forward(self, hidden_states, attention_mask=None):
            bsz, tgt_len, _ = hidden_states.size()

            # Scaling is susceptible to floating point arithmetics' inprecisions
            # which can lead to different results (this is dependent from model
            # to model, e.g. whisper is one such case). We therefore keep the
            # original order of scaling to follow the original implementation.
            query_states = self.q_proj(hidden_states) * self.scaling
            query_states = query_states.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
            key_states = self.k_proj(hidden_states).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
            value_states = self.v_proj(hidden_states).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)

            attn_output = sdpa_attention_forward(
                self, query_states, key_states, value_states, attention_mask,
                dropout=0.0 if not self.training else self.dropout,
                scaling=self.scaling,
            )
            attn_output = attn_output.reshape(bsz, tgt_len, -1).contiguous()
            return self.out_proj(attn_output)

    torch.manual_seed(0)
    return OPTDecoderLayer(OPTAttention(64, 4), 64, 128)


def fixed() -> nn.Module:
    class OPTAttention(_OPTAttentionBase):
        """Multi-headed attention from 'Attention Is All You Need' paper"""

        def forward(self, hidden_states, attention_mask=None):
            bsz, tgt_len, _ = hidden_states.size()

            # Scaling is susceptible to floating point arithmetics' inprecisions
            # which can lead to different results (this is dependent from model
            # to model, e.g. whisper is one such case). We therefore keep the
            # original order of scaling to follow the original implementation.
            query_states = self.q_proj(hidden_states) * self.scaling
            query_states = query_states.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
            key_states = self.k_proj(hidden_states).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
            value_states = self.v_proj(hidden_states).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)

            attn_output = sdpa_attention_forward(
                self, query_states, key_states, value_states, attention_mask,
                dropout=0.0 if not self.training else self.dropout,
                scaling=1.0,
            )
            attn_output = attn_output.reshape(bsz, tgt_len, -1).contiguous()
            return self.out_proj(attn_output)

    torch.manual_seed(0)
    return OPTDecoderLayer(OPTAttention(64, 4), 64, 128)
