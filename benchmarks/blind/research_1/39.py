import torch
import torch.nn as nn


class QFormerAttention(nn.Module):
    def __init__(self, dim, kv_dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(kv_dim, dim)
        self.value = nn.Linear(kv_dim, dim)
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.LayerNorm = nn.LayerNorm(dim)

    def split_heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q = self.split_heads(self.query(hidden_states))
        k = self.split_heads(self.key(source))
        v = self.split_heads(self.value(source))

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        if attention_mask is not None:
            blocked = (~attention_mask).bool()[:, None, None, :]
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        probs = self.dropout(scores.softmax(dim=-1))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        return self.LayerNorm(hidden_states + self.dropout(self.dense(context)))


class QFormerLayer(nn.Module):
    """Learned query tokens that gather information from a frozen image encoder.

    Args:
        image_embeds (`torch.FloatTensor` of shape `(batch, num_patches, encoder_width)`)
        image_attention_mask (`torch.LongTensor` of shape `(batch, num_patches)`, *optional*):
            1 for patches that are attended to, 0 for padded ones.
    Returns:
        `torch.FloatTensor` of shape `(batch, num_query_tokens, hidden_size)`
    """

    def __init__(self, hidden_size=64, encoder_width=96, num_heads=4, num_query_tokens=8, intermediate_size=128,
                 dropout=0.1):
        super().__init__()
        self.query_tokens = nn.Parameter(torch.empty(1, num_query_tokens, hidden_size))
        nn.init.normal_(self.query_tokens, std=0.02)
        self.layernorm = nn.LayerNorm(hidden_size)
        self.attention = QFormerAttention(hidden_size, hidden_size, num_heads, dropout)
        self.crossattention = QFormerAttention(hidden_size, encoder_width, num_heads, dropout)
        self.intermediate_query = nn.Linear(hidden_size, intermediate_size)
        self.output_query = nn.Linear(intermediate_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image_embeds, image_attention_mask=None):
        queries = self.query_tokens.expand(image_embeds.shape[0], -1, -1)
        hidden_states = self.dropout(self.layernorm(queries))
        hidden_states = self.attention(hidden_states)
        hidden_states = self.crossattention(hidden_states, image_embeds, image_attention_mask)
        ff = self.output_query(nn.functional.gelu(self.intermediate_query(hidden_states)))
        return self.output_norm(hidden_states + self.dropout(ff))
