import torch
import torch.nn as nn
import torch.nn.functional as F


class GATLayer(nn.Module):
    """
    Graph attention layer on an edge list ("Implementation 3" style: gather, softmax over neighborhoods, scatter).

    Args:
        x: node features, (N, in_features)
        edge_index: (2, E); row 0 holds the sources, row 1 the targets. Messages flow from source to target.
            Self edges are added here.
    """

    src_nodes_dim = 0
    trg_nodes_dim = 1
    head_dim = 1

    def __init__(self, in_features=16, out_features=8, num_heads=4, concat=True, dropout_prob=0.6,
                 add_skip_connection=True):
        super().__init__()
        self.num_heads = num_heads
        self.out_features = out_features
        self.concat = concat
        self.linear_proj = nn.Linear(in_features, num_heads * out_features, bias=False)
        self.scoring_fn_target = nn.Parameter(torch.empty(1, num_heads, out_features))
        self.scoring_fn_source = nn.Parameter(torch.empty(1, num_heads, out_features))
        self.skip_proj = nn.Linear(in_features, num_heads * out_features, bias=False) if add_skip_connection else None
        self.bias = nn.Parameter(torch.zeros(num_heads * out_features if concat else out_features))
        self.leakyReLU = nn.LeakyReLU(0.2)
        self.dropout = nn.Dropout(p=dropout_prob)
        nn.init.xavier_uniform_(self.linear_proj.weight)
        nn.init.xavier_uniform_(self.scoring_fn_target)
        nn.init.xavier_uniform_(self.scoring_fn_source)

    def neighborhood_aware_softmax(self, scores_per_edge, index, num_of_nodes):
        scores_per_edge = scores_per_edge - scores_per_edge.max()
        exp_scores_per_edge = scores_per_edge.exp()
        neighborhood_sums = exp_scores_per_edge.new_zeros(num_of_nodes, scores_per_edge.size(1))
        neighborhood_sums = neighborhood_sums.index_add(0, index, exp_scores_per_edge)
        denominator = neighborhood_sums.index_select(0, index)
        return (exp_scores_per_edge / (denominator + 1e-16)).unsqueeze(-1)

    def forward(self, x, edge_index):
        num_of_nodes = x.shape[0]
        loops = torch.arange(num_of_nodes, device=x.device).expand(2, -1)
        edge_index = torch.cat([edge_index, loops], dim=1)
        src, trg = edge_index[self.src_nodes_dim], edge_index[self.trg_nodes_dim]

        x = self.dropout(x)
        proj = self.linear_proj(x).view(-1, self.num_heads, self.out_features)
        scores_source = (proj * self.scoring_fn_source).sum(dim=-1)
        scores_target = (proj * self.scoring_fn_target).sum(dim=-1)
        scores_per_edge = self.leakyReLU(scores_source.index_select(0, src) + scores_target.index_select(0, trg))

        attention = self.neighborhood_aware_softmax(scores_per_edge, src, num_of_nodes)
        attention = self.dropout(attention)

        weighted = proj.index_select(0, src) * attention
        out = weighted.new_zeros(num_of_nodes, self.num_heads, self.out_features).index_add(0, trg, weighted)
        if self.skip_proj is not None:
            out = out + self.skip_proj(x).view(-1, self.num_heads, self.out_features)
        out = out.flatten(1) if self.concat else out.mean(dim=self.head_dim)
        return out + self.bias
