import torch
import torch.nn as nn


class CausalBlock(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, allowed):
        b, n, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)) / q.size(-1) ** 0.5
        att = att.masked_fill(~allowed, torch.finfo(att.dtype).min)
        att = self.drop(att.softmax(dim=-1))
        x = x + self.drop(self.proj((att @ v).transpose(1, 2).reshape(b, n, c)))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    """Decision Transformer (Chen et al., 2021).

    The sequence is R_1, s_1, a_1, R_2, s_2, a_2, ...; the action of each step is predicted from its state token.
    Trajectories shorter than the context are padded on the left, as ``attention_mask`` says.
    """

    def __init__(self, state_dim=11, act_dim=3, hidden_size=128, num_heads=4, num_layers=2, max_ep_len=1000,
                 dropout=0.1):
        super().__init__()
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(state_dim, hidden_size)
        self.embed_action = nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList([CausalBlock(hidden_size, num_heads, dropout) for _ in range(num_layers)])
        self.ln_f = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Sequential(nn.Linear(hidden_size, act_dim), nn.Tanh())

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        """
        Args:
            states: [B, T, state_dim]; actions: [B, T, act_dim]; returns_to_go: [B, T, 1]; timesteps: [B, T].
            attention_mask: [B, T], 1 for real steps and 0 for padding.
        """
        b, t = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.long, device=states.device)

        time = self.embed_timestep(timesteps)
        tokens = torch.stack(
            (self.embed_return(returns_to_go) + time, self.embed_state(states) + time, self.embed_action(actions) + time),
            dim=2,
        )
        x = self.embed_ln(tokens.reshape(b, 3 * t, -1))

        token_mask = attention_mask.repeat(1, 3).bool()
        causal = torch.ones(3 * t, 3 * t, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None, None] & token_mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, allowed)
        x = self.ln_f(x).view(b, t, 3, -1)
        return self.predict_action(x[:, :, 1])
