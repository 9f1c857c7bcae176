"""Decision Transformer (Chen et al., 2021) for continuous control."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(dropout)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
                   for t in self.qkv(x).chunk(3, dim=-1))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(mask == 0, float("-inf"))
        att = self.attn_drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.proj_drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = CausalSelfAttention(dim, num_heads, dropout)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x, mask):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    """
    Models (return-to-go, state, action) triples: the action of a step is predicted from the
    token of its state, which sees the step's return-to-go but not its action.

    forward(states, actions, returns_to_go, timesteps, attention_mask=None)
        states (B, K, state_dim), actions (B, K, act_dim), returns_to_go (B, K, 1),
        timesteps (B, K) long in [0, max_ep_len), attention_mask (B, K) 1 = real step.
    Short histories are padded on the left. Returns actions (B, K, act_dim) in [-1, 1].
    """

    def __init__(self, state_dim=11, act_dim=3, dim=64, num_heads=2, num_layers=2,
                 max_ep_len=1000, dropout=0.1):
        super().__init__()
        self.embed_timestep = nn.Embedding(max_ep_len, dim)
        self.embed_return = nn.Linear(1, dim)
        self.embed_state = nn.Linear(state_dim, dim)
        self.embed_action = nn.Linear(act_dim, dim)
        self.embed_ln = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList([Block(dim, num_heads, dropout) for _ in range(num_layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.predict_action = nn.Sequential(nn.Linear(dim, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        B, K = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(B, K, dtype=torch.long, device=states.device)
        time = self.embed_timestep(timesteps)
        r = self.embed_return(returns_to_go) + time
        s = self.embed_state(states) + time
        a = self.embed_action(actions) + time
        # interleave to r_1, s_1, a_1, r_2, s_2, a_2, ...
        x = torch.stack([r, s, a], dim=2).reshape(B, 3 * K, -1)
        x = self.embed_ln(x)

        real = attention_mask.bool().repeat_interleave(3, dim=1)
        causal = torch.ones(3 * K, 3 * K, dtype=torch.bool, device=x.device).tril()
        eye = torch.eye(3 * K, dtype=torch.bool, device=x.device)  # for the padded rows
        mask = ((causal & real[:, None, :]) | eye).unsqueeze(1)
        for block in self.blocks:
            x = block(x, mask)
        x = self.ln_f(x).reshape(B, K, 3, -1)
        return self.predict_action(x[:, :, 1])

    @torch.no_grad()
    def get_action(self, states, actions, returns_to_go, timesteps, context=20):
        """Next action for one unbatched history (T, .); the last row of ``actions`` is a dummy."""
        was_training = self.training
        self.eval()
        args = [t[-context:].unsqueeze(0) for t in (states, actions, returns_to_go, timesteps)]
        action = self(*args)[0, -1]
        self.train(was_training)
        return action

    def loss(self, states, actions, returns_to_go, timesteps, attention_mask):
        pred = self(states, actions, returns_to_go, timesteps, attention_mask)
        keep = attention_mask.bool()
        return F.mse_loss(pred[keep], actions[keep])
