"""Analyses of records: attention through several layers, weighted by values or gradients, or compared between runs.

They need only records, and read a block of rows at a time: no matrix [N, N] is made except as a result.
"""

from headwise.analyses.attention_flow import flow
from headwise.analyses.attention_rollout import rollout
from headwise.analyses.comparison import Comparison, compare
from headwise.analyses.gradient_relevance import cross_relevance, relevance
from headwise.analyses.importance import head_importance
from headwise.analyses.norms import norm_based, summed_norm_based, value_norms
from headwise.analyses.patterns import PatternScores, pattern_scores, repeated_block
from headwise.analyses.sinks import key_zero_rate

__all__ = [
    "Comparison",
    "PatternScores",
    "compare",
    "cross_relevance",
    "flow",
    "head_importance",
    "key_zero_rate",
    "norm_based",
    "pattern_scores",
    "relevance",
    "repeated_block",
    "rollout",
    "summed_norm_based",
    "value_norms",
]
