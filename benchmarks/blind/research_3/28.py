import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, h_dim, n_heads, drop_p):
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(h_dim, 3 * h_dim)
        self.c_proj = nn.Linear(h_dim, h_dim)
        self.mlp = nn.Sequential(
            nn.Linear(h_dim, 4 * h_dim), nn.GELU(), nn.Linear(4 * h_dim, h_dim), nn.Dropout(drop_p))
        self.ln1 = nn.LayerNorm(h_dim)
        self.ln2 = nn.LayerNorm(h_dim)
        self.drop = nn.Dropout(drop_p)

    def attention(self, x, keep):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        w = q @ k.transpose(2, 3) * (C // self.n_heads) ** -0.5
        w = F.softmax(w.masked_fill(~keep, torch.finfo(w.dtype).min), dim=-1)
        return self.drop(self.c_proj((self.drop(w) @ v).transpose(1, 2).reshape(B, T, C)))

    def forward(self, x, keep):
        # residual after the norm, as in min-decision-transformer
        x = self.ln1(x + self.attention(x, keep))
        return self.ln2(x + self.mlp(x))


class DecisionTransformer(nn.Module):
    """(R_1, s_1, a_1, R_2, s_2, a_2, ...) -> predictions of return, state and action.

    attention_mask: [B, T], 1 for real steps (short trajectories are padded on the left).
    """

    def __init__(self, state_dim=11, act_dim=3, n_blocks=2, h_dim=64, n_heads=2,
                 drop_p=0.1, max_timestep=4096):
        super().__init__()
        self.h_dim = h_dim
        self.blocks = nn.ModuleList([Block(h_dim, n_heads, drop_p) for _ in range(n_blocks)])
        self.embed_ln = nn.LayerNorm(h_dim)
        self.embed_timestep = nn.Embedding(max_timestep, h_dim)
        self.embed_rtg = nn.Linear(1, h_dim)
        self.embed_state = nn.Linear(state_dim, h_dim)
        self.embed_action = nn.Linear(act_dim, h_dim)
        self.predict_rtg = nn.Linear(h_dim, 1)
        self.predict_state = nn.Linear(h_dim, state_dim)
        self.predict_action = nn.Sequential(nn.Linear(h_dim, act_dim), nn.Tanh())

    def forward(self, timesteps, states, actions, returns_to_go, attention_mask=None):
        B, T, _ = states.shape
        te = self.embed_timestep(timesteps)
        h = torch.stack((
            self.embed_rtg(returns_to_go) + te,
            self.embed_state(states) + te,
            self.embed_action(actions) + te,
        ), dim=2).reshape(B, 3 * T, self.h_dim)
        h = self.embed_ln(h)

        keep = torch.ones(3 * T, 3 * T, dtype=torch.bool, device=h.device).tril()[None, None]
        if attention_mask is not None:
            m = attention_mask.bool().repeat_interleave(3, dim=1)
            keep = keep & m[:, None, None, :]
        for block in self.blocks:
            h = block(h, keep)

        h = h.reshape(B, T, 3, self.h_dim).permute(0, 2, 1, 3)
        return_preds = self.predict_rtg(h[:, 2])    # given r, s, a
        state_preds = self.predict_state(h[:, 2])   # given r, s, a
        action_preds = self.predict_action(h[:, 1])  # given r, s
        return state_preds, action_preds, return_preds
