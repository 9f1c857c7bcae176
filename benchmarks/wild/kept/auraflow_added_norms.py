"""The norm of the added text queries is applied to the text keys as well; the key norm is never used.

huggingface/diffusers #13533 (2026)
https://github.com/huggingface/diffusers/pull/13533
"""
import torch
import torch.nn.functional as F
from torch import nn


class FP32RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Joint attention of image (hidden_states) and text (encoder_hidden_states) tokens with qk norm."""

    def __init__(self, query_dim, heads, processor):
        super().__init__()
        self.heads, self.head_dim = heads, query_dim // heads
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(query_dim, query_dim, bias=False)
        self.to_v = nn.Linear(query_dim, query_dim, bias=False)
        self.add_q_proj = nn.Linear(query_dim, query_dim, bias=False)
        self.add_k_proj = nn.Linear(query_dim, query_dim, bias=False)
        self.add_v_proj = nn.Linear(query_dim, query_dim, bias=False)
        self.to_out = nn.Linear(query_dim, query_dim, bias=False)
        self.to_add_out = nn.Linear(query_dim, query_dim, bias=False)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            norm = FP32RMSNorm(self.head_dim)
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            setattr(self, name, norm)
        self.processor = processor

    def forward(self, hidden_states, encoder_hidden_states):
        return self.processor(self, hidden_states, encoder_hidden_states)


class _AuraFlowAttnProcessorBase:
    def __call__(self, attn, hidden_states, encoder_hidden_states):
        batch_size = hidden_states.shape[0]
        view = lambda t: t.view(batch_size, -1, attn.heads, attn.head_dim)
        query, key, value = (view(f(hidden_states)) for f in (attn.to_q, attn.to_k, attn.to_v))
        query, key = attn.norm_q(query), attn.norm_k(key)
        e_query, e_key, e_value = (view(f(encoder_hidden_states))
                                   for f in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        e_query, e_key = self.added_norms(attn, e_query, e_key)

        query, key, value = (torch.cat(p, dim=1).transpose(1, 2)
                             for p in ((e_query, query), (e_key, key), (e_value, value)))
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=0.0, is_causal=False)
        out = out.transpose(1, 2).reshape(batch_size, -1, attn.heads * attn.head_dim)
        n = encoder_hidden_states.shape[1]
        return attn.to_out(out[:, n:]), attn.to_add_out(out[:, :n])


def broken() -> nn.Module:
    class AuraFlowAttnProcessor2_0(_AuraFlowAttnProcessorBase):
        def added_norms(self, attn, encoder_hidden_states_query_proj, encoder_hidden_states_key_proj):
            if attn.norm_added_q is not None:
                encoder_hidden_states_query_proj = attn.norm_added_q(encoder_hidden_states_query_proj)
            if attn.norm_added_k is not None:
                encoder_hidden_states_key_proj = attn.norm_added_q(encoder_hidden_states_key_proj)
            return encoder_hidden_states_query_proj, encoder_hidden_states_key_proj

    torch.manual_seed(0)
    return Attention(32, 4, AuraFlowAttnProcessor2_0())


def fixed() -> nn.Module:
    class AuraFlowAttnProcessor2_0(_AuraFlowAttnProcessorBase):
        def added_norms(self, attn, encoder_hidden_states_query_proj, encoder_hidden_states_key_proj):
            if attn.norm_added_q is not None:
                encoder_hidden_states_query_proj = attn.norm_added_q(encoder_hidden_states_query_proj)
            if attn.norm_added_k is not None:
                encoder_hidden_states_key_proj = attn.norm_added_k(encoder_hidden_states_key_proj)
            return encoder_hidden_states_query_proj, encoder_hidden_states_key_proj

    torch.manual_seed(0)
    return Attention(32, 4, AuraFlowAttnProcessor2_0())


def example():
    g = torch.Generator().manual_seed(40)
    return (torch.randn(2, 9, 32, generator=g), torch.randn(2, 5, 32, generator=g)), {}
