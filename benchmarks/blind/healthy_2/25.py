"""Point Transformer classifier (vector attention in k-nearest-neighbour balls)."""
import torch
import torch.nn as nn


def knn(xyz, k):
    """Indices (B, N, k) of the k nearest points, the point itself included."""
    dist = torch.cdist(xyz, xyz)
    return dist.topk(k, dim=-1, largest=False).indices


def gather_points(feats, idx):
    """feats (B, N, C), idx (B, N, k) -> (B, N, k, C)"""
    batch = torch.arange(feats.size(0), device=feats.device).view(-1, 1, 1)
    return feats[batch, idx]


class PointTransformerLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.pos_mlp = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.attn_mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x, xyz, idx):
        q = self.to_q(x).unsqueeze(2)                 # (B, N, 1, C)
        k = gather_points(self.to_k(x), idx)          # (B, N, k, C)
        v = gather_points(self.to_v(x), idx)
        delta = self.pos_mlp(xyz.unsqueeze(2) - gather_points(xyz, idx))
        # subtraction relation: one weight per channel, normalised over the neighbours
        weight = self.attn_mlp(q - k + delta).softmax(dim=2)
        return (weight * (v + delta)).sum(dim=2)


class PointTransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.attn = PointTransformerLayer(dim)
        self.fc2 = nn.Linear(dim, dim)

    def forward(self, x, xyz, idx):
        y = self.fc1(self.norm(x))
        return x + self.fc2(torch.relu(self.attn(y, xyz, idx)))


class PointCloudClassifier(nn.Module):
    """
    xyz:      (B, N, 3) coordinates
    features: (B, N, feat_dim) per-point features such as normals
    Clouds are centred and scaled to the unit ball, the class logits do not depend on the order
    of the points.
    """

    def __init__(self, feat_dim=3, num_classes=40, dim=64, depth=3, k=16, dropout=0.3):
        super().__init__()
        self.k = k
        self.stem = nn.Sequential(nn.Linear(3 + feat_dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList([PointTransformerBlock(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(
            nn.Linear(2 * dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, num_classes)
        )

    @staticmethod
    def normalise(xyz):
        xyz = xyz - xyz.mean(dim=1, keepdim=True)
        radius = xyz.norm(dim=-1).amax(dim=1).clamp(min=1e-6)
        return xyz / radius[:, None, None]

    def forward(self, xyz, features):
        xyz = self.normalise(xyz)
        idx = knn(xyz, min(self.k, xyz.size(1)))
        x = self.stem(torch.cat([xyz, features], dim=-1))
        for block in self.blocks:
            x = block(x, xyz, idx)
        x = self.norm(x)
        pooled = torch.cat([x.amax(dim=1), x.mean(dim=1)], dim=-1)
        return self.head(pooled)
