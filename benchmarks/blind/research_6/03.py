import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalBlock(nn.Module):
    def __init__(self, hidden, heads, drop):
        super().__init__()
        self.h = heads
        self.ln1 = nn.LayerNorm(hidden)
        self.ln2 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden), nn.Dropout(drop))
        self.drop = nn.Dropout(drop)

    def forward(self, x, allowed):
        B, L, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(B, L, self.h, D // self.h).transpose(1, 2) for t in (q, k, v))
        w = q @ k.transpose(-1, -2) / math.sqrt(D // self.h)
        w = w.masked_fill(~allowed, torch.finfo(w.dtype).min)
        w = self.drop(F.softmax(w, dim=-1))
        y = (w @ v).transpose(1, 2).reshape(B, L, D)
        x = x + self.drop(self.proj(y))
        return x + self.mlp(self.ln2(x))


class TrajectoryTransformer(nn.Module):
    """
    Return-conditioned policy. Models (R_1, s_1, a_1, R_2, s_2, a_2, ...) and predicts
    a_t from the token of s_t, i.e. from everything up to and including s_t.

    states [B, T, state_dim], actions [B, T, act_dim], returns_to_go [B, T, 1],
    timesteps [B, T] (long), attention_mask [B, T] with 1 for real steps.
    """

    def __init__(self, state_dim=11, act_dim=3, dim=64, num_heads=4, depth=2, max_ep_len=1000, dropout=0.1):
        super().__init__()
        self.dim = dim
        self.embed_timestep = nn.Embedding(max_ep_len, dim)
        self.embed_return = nn.Linear(1, dim)
        self.embed_state = nn.Linear(state_dim, dim)
        self.embed_action = nn.Linear(act_dim, dim)
        self.embed_ln = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList([CausalBlock(dim, num_heads, dropout) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(dim)
        self.predict_action = nn.Sequential(nn.Linear(dim, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        B, T = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(B, T, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time

        tokens = torch.stack((r, s, a), dim=1).reshape(B, 3 * T, self.dim)
        tokens = self.embed_ln(tokens)

        keep = attention_mask.bool().repeat_interleave(3, dim=1)
        causal = torch.ones(3 * T, 3 * T, dtype=torch.bool, device=states.device).tril()
        allowed = causal[None, None] & keep[:, None, None, :]

        for blk in self.blocks:
            tokens = blk(tokens, allowed)
        out = self.ln_f(tokens).reshape(B, T, 3, self.dim)
        return self.predict_action(out[:, :, 1])
