import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalBlock(nn.Module):
    def __init__(self, h_dim, n_heads, drop_p):
        super().__init__()
        self.n_heads = n_heads
        self.ln1 = nn.LayerNorm(h_dim)
        self.ln2 = nn.LayerNorm(h_dim)
        self.qkv = nn.Linear(h_dim, 3 * h_dim)
        self.proj = nn.Linear(h_dim, h_dim)
        self.att_drop = nn.Dropout(drop_p)
        self.mlp = nn.Sequential(
            nn.Linear(h_dim, 4 * h_dim), nn.GELU(), nn.Linear(4 * h_dim, h_dim), nn.Dropout(drop_p))

    def attention(self, x, key_mask):
        B, T, C = x.shape
        q, k, v = [t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)
                   for t in self.qkv(x).split(C, dim=-1)]
        att = q @ k.transpose(2, 3) / (C // self.n_heads) ** 0.5
        keep = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))
        keep = keep[None, None] & key_mask[:, None, None, :]
        att = att.masked_fill(~keep, torch.finfo(att.dtype).min)
        att = self.att_drop(F.softmax(att, dim=-1))
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x, key_mask):
        x = x + self.attention(self.ln1(x), key_mask)
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    """
    Models (R_1, s_1, a_1, R_2, s_2, a_2, ...) autoregressively; trajectories shorter than the context are
    left-padded and `attention_mask` (B, T) is 0 on the padding.
    """

    def __init__(self, state_dim=11, act_dim=3, n_blocks=2, h_dim=64, n_heads=4, drop_p=0.1, max_timestep=1000):
        super().__init__()
        self.h_dim = h_dim
        self.blocks = nn.ModuleList([CausalBlock(h_dim, n_heads, drop_p) for _ in range(n_blocks)])
        self.embed_ln = nn.LayerNorm(h_dim)
        self.embed_timestep = nn.Embedding(max_timestep, h_dim)
        self.embed_rtg = nn.Linear(1, h_dim)
        self.embed_state = nn.Linear(state_dim, h_dim)
        self.embed_action = nn.Linear(act_dim, h_dim)
        self.predict_action = nn.Sequential(nn.Linear(h_dim, act_dim), nn.Tanh())
        self.predict_state = nn.Linear(h_dim, state_dim)
        self.predict_rtg = nn.Linear(h_dim, 1)

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        B, T, _ = states.shape
        if attention_mask is None:
            attention_mask = torch.ones(B, T, dtype=torch.bool, device=states.device)
        attention_mask = attention_mask.bool()

        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = self.embed_state(states) + time_embeddings
        action_embeddings = self.embed_action(actions) + time_embeddings
        returns_embeddings = self.embed_rtg(returns_to_go) + time_embeddings

        h = torch.stack((returns_embeddings, state_embeddings, action_embeddings), dim=1)
        h = h.permute(0, 2, 1, 3).reshape(B, 3 * T, self.h_dim)
        stacked_mask = torch.cat((attention_mask, attention_mask, attention_mask), dim=1)

        h = self.embed_ln(h)
        for block in self.blocks:
            h = block(h, stacked_mask)

        h = h.reshape(B, T, 3, self.h_dim).permute(0, 2, 1, 3)
        return_preds = self.predict_rtg(h[:, 2])
        state_preds = self.predict_state(h[:, 2])
        action_preds = self.predict_action(h[:, 1])
        return state_preds, action_preds, return_preds
