"""Finds out what heads do, by experiments that edit a model (`headwise.edit`), or read its activations or weights.

They change the model:
    patching             which heads, positions or edges carry the difference between two inputs
    ablation             what the model loses without each head
    knockout             through which layers information flows from some tokens to others

They read what heads add and attend to:
    direct_logit_attribution    what each head adds to a logit by itself
    head_scores                 induction, previous-token and duplicate-token heads
    retrieval_scores            heads that attend to what is copied from far back
    massive_activations         hidden states that are far larger than others, and attention sinks

They read the weights of heads:
    projections          W_Q, W_K, W_V and W_O of each head, found by trial in any model
    circuits             which heads copy, by the eigenvalues of their OV circuit (W_V W_O) and QK circuit (W_Q W_Kᵀ)
    composition          which heads read the outputs of others
"""

from headwise.experiments.ablation import Ablation, ablation
from headwise.experiments.circuits import Circuits, circuits
from headwise.experiments.composition import Composition, composition
from headwise.experiments.knockout import Knockout, knockout
from headwise.experiments.logits import LogitAttribution, direct_logit_attribution
from headwise.experiments.massive import Massive, massive_activations
from headwise.experiments.patching import Patching, patching
from headwise.experiments.projections import Projections, projections
from headwise.experiments.retrieval import Retrieval, retrieval_scores
from headwise.experiments.scores import HeadScores, head_scores

__all__ = [
    "Ablation",
    "Circuits",
    "Composition",
    "HeadScores",
    "Knockout",
    "LogitAttribution",
    "Massive",
    "Patching",
    "Projections",
    "Retrieval",
    "ablation",
    "circuits",
    "composition",
    "direct_logit_attribution",
    "head_scores",
    "knockout",
    "massive_activations",
    "patching",
    "projections",
    "retrieval_scores",
]
