import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, n_head, dropout):
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(d, dim=2)
        q, k, v = (y.view(b, t, self.n_head, d // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class DecisionTransformer(nn.Module):
    """Return-conditioned behaviour cloning. Tokens are ordered (R_1, s_1, a_1, R_2, s_2, a_2, ...).

    The three tokens of a step share the embedding of the time step. The action is read from the
    state token and the next state and return from the action token. Short trajectories are padded
    on the left; ``attention_mask`` ``[B, T]`` is 1 for real steps.
    """

    def __init__(self, state_dim=6, act_dim=3, hidden_size=64, n_head=4, n_layer=2, max_ep_len=100, dropout=0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(state_dim, hidden_size)
        self.embed_action = nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList([Block(hidden_size, n_head, dropout) for _ in range(n_layer)])
        self.predict_state = nn.Linear(hidden_size, state_dim)
        self.predict_action = nn.Sequential(nn.Linear(hidden_size, act_dim), nn.Tanh())
        self.predict_return = nn.Linear(hidden_size, 1)

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        b, t = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        tokens = torch.stack(
            (
                self.embed_return(returns_to_go) + time,
                self.embed_state(states) + time,
                self.embed_action(actions) + time,
            ),
            dim=1,
        )
        x = tokens.permute(0, 2, 1, 3).reshape(b, 3 * t, self.hidden_size)
        x = self.embed_ln(x)
        keep = torch.stack((attention_mask,) * 3, dim=1).permute(0, 2, 1).reshape(b, 3 * t).bool()

        causal = torch.ones(3 * t, 3 * t, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None, None] & keep[:, None, None, :]
        bias = torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        for block in self.blocks:
            x = block(x, bias)

        x = x.view(b, t, 3, self.hidden_size).permute(0, 2, 1, 3)
        return self.predict_state(x[:, 2]), self.predict_action(x[:, 1]), self.predict_return(x[:, 2])
