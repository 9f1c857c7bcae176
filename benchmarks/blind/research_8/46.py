import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5 + bias, dim=-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    """Offline RL as sequence modelling, (R_1, s_1, a_1, R_2, s_2, a_2, ...).

    states [B, T, state_dim], actions [B, T, act_dim], returns_to_go [B, T, 1], timesteps [B, T],
    attention_mask [B, T] with 1 for real steps (short trajectories are padded on the left).
    Returns the predicted actions [B, T, act_dim].
    """

    def __init__(self, state_dim=11, act_dim=3, dim=64, num_heads=4, num_layers=2, max_ep_len=200):
        super().__init__()
        self.embed_timestep = nn.Embedding(max_ep_len, dim)
        self.embed_return = nn.Linear(1, dim)
        self.embed_state = nn.Linear(state_dim, dim)
        self.embed_action = nn.Linear(act_dim, dim)
        self.embed_ln = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(dim)
        self.predict_action = nn.Sequential(nn.Linear(dim, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        b, t = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time
        x = torch.stack((r, s, a), dim=2).reshape(b, 3 * t, -1)
        x = self.embed_ln(x)

        keep = attention_mask.bool().repeat(1, 3)
        causal = torch.ones(3 * t, 3 * t, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None] & keep[:, None, :]
        bias = torch.zeros(b, 1, 3 * t, 3 * t, dtype=x.dtype, device=x.device)
        bias = bias.masked_fill(~allowed[:, None], torch.finfo(x.dtype).min)

        for block in self.blocks:
            x = block(x, bias)
        x = self.ln_f(x).view(b, t, 3, -1)
        return self.predict_action(x[:, :, 1])
