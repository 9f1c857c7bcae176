"""The model sets encoder_attention_mask to None before cross-attention, so padded encoder states are attended.

huggingface/transformers #47946 (2026)
https://github.com/huggingface/transformers/pull/47946
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def create_bidirectional_mask(attention_mask, encoder_hidden_states):
    """2D padding mask (1 = keep, 0 = pad) of the encoder to a boolean [batch, 1, 1, key] mask, True = attend."""
    if attention_mask is None:
        return None
    assert attention_mask.shape[-1] == encoder_hidden_states.shape[1]
    return attention_mask[:, None, None, :].bool()


class GPT2Attention(nn.Module):
    def __init__(self, hidden_size, num_heads, is_cross_attention=False):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = hidden_size, num_heads, hidden_size // num_heads
        self.is_cross_attention = is_cross_attention
        if is_cross_attention:
            self.c_attn = nn.Linear(hidden_size, 2 * hidden_size)
            self.q_attn = nn.Linear(hidden_size, hidden_size)
        else:
            self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, encoder_hidden_states=None, encoder_attention_mask=None):
        if self.is_cross_attention:
            query = self.q_attn(hidden_states)
            key, value = self.c_attn(encoder_hidden_states).split(self.embed_dim, dim=2)
            mask = encoder_attention_mask
        else:
            query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
            mask = None
        query, key, value = (t.view(*t.shape[:-1], -1, self.head_dim).transpose(1, 2) for t in (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=not self.is_cross_attention)
        return self.c_proj(out.transpose(1, 2).flatten(2))


class GPT2Block(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_size)
        self.attn = GPT2Attention(hidden_size, num_heads)
        self.ln_cross_attn = nn.LayerNorm(hidden_size)
        self.crossattention = GPT2Attention(hidden_size, num_heads, is_cross_attention=True)
        self.ln_2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(), nn.Linear(4 * hidden_size, hidden_size))

    def forward(self, hidden_states, encoder_hidden_states=None, encoder_attention_mask=None):
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states))
        if encoder_hidden_states is not None:
            hidden_states = hidden_states + self.crossattention(
                self.ln_cross_attn(hidden_states), encoder_hidden_states, encoder_attention_mask)
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class _GPT2ModelBase(nn.Module):
    def __init__(self, vocab_size=40, n_positions=32, hidden_size=32, num_heads=4, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden_size)
        self.wpe = nn.Embedding(n_positions, hidden_size)
        self.h = nn.ModuleList([GPT2Block(hidden_size, num_heads) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(hidden_size)


def broken() -> nn.Module:
    class GPT2Model(_GPT2ModelBase):
        def forward(self, input_ids, encoder_hidden_states=None, encoder_attention_mask=None):
            """
            input_ids: [batch, seq]
            encoder_hidden_states: [batch, encoder_seq, hidden_size]
            encoder_attention_mask: [batch, encoder_seq], 1 for tokens that are not masked, 0 for padding
            """
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
            hidden_states = self.wte(input_ids) + self.wpe(position_ids)

            # If a 2D or 3D attention mask is provided for the cross-attention
            # we need to make broadcastable to [batch_size, num_heads, seq_length, seq_length]
            encoder_attention_mask = None
            if encoder_hidden_states is not None:
                encoder_attention_mask = create_bidirectional_mask(
                    attention_mask=encoder_attention_mask,
                    encoder_hidden_states=encoder_hidden_states,
                )

            for block in self.h:
                hidden_states = block(hidden_states, encoder_hidden_states, encoder_attention_mask)
            return self.ln_f(hidden_states)

    torch.manual_seed(0)
    return GPT2Model()


def fixed() -> nn.Module:
    class GPT2Model(_GPT2ModelBase):
        def forward(self, input_ids, encoder_hidden_states=None, encoder_attention_mask=None):
            """
            input_ids: [batch, seq]
            encoder_hidden_states: [batch, encoder_seq, hidden_size]
            encoder_attention_mask: [batch, encoder_seq], 1 for tokens that are not masked, 0 for padding
            """
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
            hidden_states = self.wte(input_ids) + self.wpe(position_ids)

            # If a 2D or 3D attention mask is provided for the cross-attention
            # we need to make broadcastable to [batch_size, num_heads, seq_length, seq_length]
            if encoder_hidden_states is not None:
                encoder_attention_mask = create_bidirectional_mask(
                    attention_mask=encoder_attention_mask,
                    encoder_hidden_states=encoder_hidden_states,
                )

            for block in self.h:
                hidden_states = block(hidden_states, encoder_hidden_states, encoder_attention_mask)
            return self.ln_f(hidden_states)

    torch.manual_seed(0)
    return GPT2Model()


def example() -> tuple[tuple, dict]:
    input_ids = torch.tensor([[3, 17, 8, 31, 5], [29, 12, 9, 33, 7]])
    states = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    return (input_ids,), {"encoder_hidden_states": states,
                          "encoder_attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}
