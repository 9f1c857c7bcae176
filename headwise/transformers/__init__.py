"""Any Hugging Face model on headwise's kernels: importing this package registers the attention named "headwise".

    import headwise.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="headwise")
    model.set_attn_implementation("headwise")  # of a model that is loaded

transformers asks two registries by that name: one for the function that computes attention (attention.py), one for the
function that makes the masks of a forward (mask_functions.py). docs/transformers.md has the table of models.
"""

from headwise.transformers.attention import attend
from headwise.transformers.explaining import Kernels, explain
from headwise.transformers.mask_functions import make_mask
from headwise.transformers.mask_tensor import MaskTensor

__all__ = ["NAME", "Kernels", "MaskTensor", "attend", "explain", "make_mask", "register"]

NAME = "headwise"


def register(name: str = NAME) -> None:
    """Register the attention and its masks in transformers under a name. Importing the package does so for NAME."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)


register()
