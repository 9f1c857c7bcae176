from typing import Optional

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, allowed):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        att = att.masked_fill(~allowed, torch.finfo(att.dtype).min)
        y = (self.drop(att.softmax(-1)) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.drop(self.c_proj(y))
        return x + self.mlp(self.ln_2(x))


class DecisionTransformer(nn.Module):
    """Decision Transformer: models (R_1, s_1, a_1, R_2, s_2, a_2, ...) and predicts a_t from the token s_t.

    states [B, T, state_dim], actions [B, T, act_dim], returns_to_go [B, T, 1], timesteps [B, T];
    attention_mask [B, T] is 1 for real steps. Short trajectories are padded on the left.
    """

    def __init__(
        self,
        state_dim: int = 11,
        act_dim: int = 3,
        hidden_size: int = 64,
        n_layer: int = 2,
        n_head: int = 4,
        max_ep_len: int = 1000,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(state_dim, hidden_size)
        self.embed_action = nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList([Block(hidden_size, n_head, dropout) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Sequential(nn.Linear(hidden_size, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask: Optional[torch.Tensor] = None):
        B, T = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(B, T, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time

        x = torch.stack((r, s, a), dim=1).permute(0, 2, 1, 3).reshape(B, 3 * T, self.hidden_size)
        x = self.embed_ln(x)
        stacked_mask = torch.cat((attention_mask, attention_mask, attention_mask), dim=1).bool()

        causal = torch.ones(3 * T, 3 * T, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None, None] & stacked_mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, allowed)
        x = self.ln_f(x).view(B, T, 3, self.hidden_size)
        return self.predict_action(x[:, :, 1])
