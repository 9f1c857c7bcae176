import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderCrossAttention(nn.Module):
    """Scaled dot-product cross-attention for the decoder of a speech model (OPT/Whisper style).

    Keys and values may be computed once with ``project_memory`` and passed in again.
    """

    def __init__(self, embed_dim=64, num_heads=4, dropout=0.0, bias=True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _shape(self, tensor):
        bsz, n, _ = tensor.shape
        return tensor.view(bsz, n, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def project_memory(self, encoder_states):
        return self._shape(self.k_proj(encoder_states)), self._shape(self.v_proj(encoder_states))

    def forward(self, hidden_states, encoder_states=None, memory=None, encoder_mask=None):
        """encoder_mask: bool (batch, src), True for valid frames."""
        bsz, tgt_len, _ = hidden_states.size()
        query_states = self._shape(self.q_proj(hidden_states) * self.scaling)
        if memory is None:
            memory = self.project_memory(encoder_states)
        key_states, value_states = memory

        attn_mask = None if encoder_mask is None else encoder_mask[:, None, None, :]
        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(attn_output)
