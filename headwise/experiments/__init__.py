"""What heads do, found out by changing them: experiments on whole models with `headwise.edit`.

patching      which heads carry what differs between two inputs (activation patching, and its approximation)
knockout      through which layers information flows from some tokens to others
"""

from headwise.experiments.ablation import Ablation, ablation
from headwise.experiments.knockout import Knockout, knockout
from headwise.experiments.patching import Patching, patching

__all__ = ["Ablation", "Knockout", "Patching", "ablation", "knockout", "patching"]
