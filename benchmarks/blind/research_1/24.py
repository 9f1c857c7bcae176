import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim, n_head, dropout):
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x, keep):
        b, n, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, n, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2)) / (d // self.n_head) ** 0.5
        w = w.masked_fill(~keep, torch.finfo(w.dtype).min).softmax(-1)
        y = (self.attn_dropout(w) @ v).transpose(1, 2).reshape(b, n, d)
        x = x + self.resid_dropout(self.c_proj(y))
        return x + self.mlp(self.ln_2(x))


class DecisionTransformer(nn.Module):
    """
    Models (R_1, s_1, a_1, R_2, s_2, a_2, ...) with a causal transformer and predicts action a_t
    from the output at the token of s_t. Sequences are padded on the left.
    """

    def __init__(self, state_dim=17, act_dim=6, hidden_size=64, n_layer=2, n_head=2, max_ep_len=1000,
                 dropout=0.1, action_tanh=True):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed_timestep = nn.Embedding(max_ep_len, hidden_size)
        self.embed_return = nn.Linear(1, hidden_size)
        self.embed_state = nn.Linear(state_dim, hidden_size)
        self.embed_action = nn.Linear(act_dim, hidden_size)
        self.embed_ln = nn.LayerNorm(hidden_size)
        self.blocks = nn.ModuleList([Block(hidden_size, n_head, dropout) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(hidden_size)
        self.predict_action = nn.Sequential(
            *([nn.Linear(hidden_size, act_dim)] + ([nn.Tanh()] if action_tanh else [])))

    def forward(self, states, actions, returns_to_go, timesteps, attention_mask=None):
        """
        states (B, T, state_dim), actions (B, T, act_dim), returns_to_go (B, T, 1), timesteps (B, T) long,
        attention_mask (B, T) with 1 for real steps. Returns action predictions (B, T, act_dim).
        """
        batch_size, seq_length = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(batch_size, seq_length, dtype=torch.long, device=states.device)

        # there is no separate position embedding: the three tokens of a step share its time embedding
        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = self.embed_state(states) + time_embeddings
        action_embeddings = self.embed_action(actions) + time_embeddings
        returns_embeddings = self.embed_return(returns_to_go) + time_embeddings

        n = 3 * seq_length
        stacked_inputs = torch.stack((returns_embeddings, state_embeddings, action_embeddings), dim=2)
        x = self.embed_ln(stacked_inputs.reshape(batch_size, n, self.hidden_size))

        token_mask = attention_mask.bool().repeat_interleave(3, dim=1)
        keep = torch.ones(n, n, dtype=torch.bool, device=x.device).tril() & token_mask[:, None, :]
        # padded positions see themselves, which keeps their rows well defined
        keep = (keep | torch.eye(n, dtype=torch.bool, device=x.device)).unsqueeze(1)

        for block in self.blocks:
            x = block(x, keep)
        x = self.ln_f(x).reshape(batch_size, seq_length, 3, self.hidden_size).permute(0, 2, 1, 3)
        return self.predict_action(x[:, 1])
