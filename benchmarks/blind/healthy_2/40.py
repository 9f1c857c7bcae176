"""Multi-actor attention critic (Iqbal & Sha, 2019)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionCritic(nn.Module):
    """Centralised critic for ``num_agents`` agents with discrete actions.

    For agent i it estimates Q_i(o, a) for each of the agent's own actions, given what the
    *other* agents observe and do. Agents share the attention projections while the encoders and
    the heads are individual.

    Args of forward:
        observations: (B, num_agents, obs_dim)
        actions:      (B, num_agents) long
        alive:        optional (B, num_agents) bool; a dead agent is ignored by the others
        return_all_q: also return the values of all actions

    Returns q (B, num_agents), the value of the taken actions, and with ``return_all_q`` also
    all values (B, num_agents, num_actions).
    """

    def __init__(self, num_agents=4, obs_dim=12, num_actions=5, dim=64, num_heads=4):
        super().__init__()
        if num_agents < 2:
            raise ValueError("the attention critic needs at least two agents")
        assert dim % num_heads == 0
        self.num_actions = num_actions
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.state_encoders = nn.ModuleList(nn.Linear(obs_dim, dim) for _ in range(num_agents))
        self.sa_encoders = nn.ModuleList(nn.Linear(obs_dim + num_actions, dim) for _ in range(num_agents))
        self.selector = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.critics = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * dim, dim), nn.LeakyReLU(), nn.Linear(dim, num_actions))
            for _ in range(num_agents)
        )
        # an agent's own action must not leak into its own baseline
        self.register_buffer("others", ~torch.eye(num_agents, dtype=torch.bool), persistent=False)

    def _heads(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

    def attend(self, states, state_actions, alive):
        q = self._heads(self.selector(states))
        k = self._heads(self.key(state_actions))
        v = self._heads(F.leaky_relu(self.value(state_actions)))
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        visible = self.others[None, None]
        if alive is not None:
            visible = visible & alive[:, None, None, :]
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        # the last agent alive has nobody to look at: its message is zero
        weights = logits.softmax(dim=-1) * visible.to(logits.dtype)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, observations, actions, alive=None, return_all_q=False):
        one_hot = F.one_hot(actions, self.num_actions).to(observations.dtype)
        pairs = torch.cat([observations, one_hot], dim=-1)
        states = torch.stack(
            [F.leaky_relu(enc(observations[:, i])) for i, enc in enumerate(self.state_encoders)], dim=1
        )
        state_actions = torch.stack(
            [F.leaky_relu(enc(pairs[:, i])) for i, enc in enumerate(self.sa_encoders)], dim=1
        )
        message = self.attend(states, state_actions, alive)
        joint = torch.cat([states, message], dim=-1)
        all_q = torch.stack([critic(joint[:, i]) for i, critic in enumerate(self.critics)], dim=1)
        q = all_q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return (q, all_q) if return_all_q else q
