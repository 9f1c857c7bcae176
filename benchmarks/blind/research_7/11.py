import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, allowed):
        B, T, C = x.shape
        qkv = self.qkv(self.ln_1(x)).view(B, T, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) * (C // self.num_heads) ** -0.5
        att = att.masked_fill(~allowed, torch.finfo(att.dtype).min)
        att = self.drop(att.softmax(dim=-1))
        x = x + self.drop(self.proj((att @ v).transpose(1, 2).reshape(B, T, C)))
        return x + self.mlp(self.ln_2(x))


class DecisionTransformer(nn.Module):
    """Predicts actions from (return-to-go, state, action) triples.

    Trajectories shorter than the context are padded on the left; ``attention_mask`` [B, L]
    is 1 for real timesteps and 0 for padding.
    """

    def __init__(self, state_dim=11, act_dim=3, hidden_size=64, num_heads=4, num_layers=2, max_ep_len=1000, dropout=0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(state_dim, hidden_size)
        self.embed_action = nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, dropout) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Sequential(nn.Linear(hidden_size, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        B, L = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(B, L, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time

        x = torch.stack((r, s, a), dim=1).permute(0, 2, 1, 3).reshape(B, 3 * L, self.hidden_size)
        x = self.embed_ln(x)
        keys = torch.cat((attention_mask, attention_mask, attention_mask), dim=1).bool()

        causal = torch.ones(3 * L, 3 * L, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None, None] & keys[:, None, None, :]
        for block in self.blocks:
            x = block(x, allowed)
        x = self.ln_f(x).reshape(B, L, 3, self.hidden_size)
        return self.predict_action(x[:, :, 1])
