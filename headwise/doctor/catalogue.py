"""Every kind of finding: a short title, its usual severity, what it is in released code, and where it was reported.

The numbers are those of the list of mistakes in docs/doctor.md.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import cast

from headwise.doctor.finding import Severity
from headwise.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Entry:
    """One kind of finding."""

    name: str
    severity: Severity  # the usual one; each finding has its own
    title: str
    way: int | None = None
    sources: tuple[str, ...] = ()


# Name, usual severity, number in the list of mistakes, title, and threads in which it was reported.
_TABLE = """
mask-polarity | bug | 1 | The mask has the opposite polarity of what its name or documentation says | pytorch #21518
mask-added | bug | 1 | A mask of 0 and 1 is added to the scores | pytorch #170415
mask-ignored | bug | 2 | A mask is passed but has no effect | keras #23038, transformers #46634 #47946, diffusers #8886
layers-shared | risk | | A list of layers holds the same layer several times
grid-transposed | bug | | The height of a map stands where its width should
state-kept | bug | | An earlier call changes the output of a later one | transformers #48509
causal-leak | bug | 3 | A position attends to later positions | transformers #48745, minGPT #75
mask-fill-too-small | risk | 9 | Large scores exceed the mask's fill value | flashinfer #4401
causal-corner | bug | 4 | A rectangular causal mask is aligned with the wrong corner
    | pytorch #108108, flash-attention #282 #351
window-off-by-one | bug | 5 | The window is one position too wide or too narrow | transformers #39408 #40163
window-wraps | bug | | The window wraps around the ends of the sequence
masked-key-counts | bug | | A masked key keeps a weight
padding-attended | bug | | Tokens attend to the padding of blocks
padding-read | bug | | What stands in padding reaches the output
shift-mask | bug | | Opposite borders of a shifted map attend to one another | zsyOAOA/ResShift #81, timm #2438
positions-ignored | bug | | Its positions change nothing | facebookresearch/xformers #841
window-ignored | bug | 5 | The window that it has is not applied | keras-team/keras-hub #2186
empty-row-nan | risk | 6 | A query with no allowed key gives NaN | pytorch #41508 #103963
masked-nan-leaks | note | 7 | NaN in a masked position reaches the output | pytorch #101967
mask-overflows-half | note | 8 | The mask's fill value overflows half precision
    | apex #93, fairseq #3575, transformers #17306
softmax-axis | bug | 10 | The softmax is taken over the wrong axis | labml annotated #146, fastNLP #254
softmax-split | bug | 10 | Parts of the keys have a softmax each and are merged wrongly | sglang #40903
wrong-scale | bug | 11 | The scores are not divided by the square root of the head width
    | vit-pytorch #65, set_transformer #18
head-split | bug | 12 | Splitting into heads mixes positions | jsbaan/transformer-from-scratch #6
head-merge | bug | 12 | Merging the heads mixes positions | hyunwoongko/transformer #15
mask-head-order | bug | 13 | The mask is repeated in a different order from the heads
    | lsdefine/attention-is-all-you-need-keras #36
mask-broadcast | bug | 14 | The mask is broadcast along the wrong axis | pytorch #120810, hyunwoongko/transformer #40
dropout-in-eval | bug | 15 | Dropout is active in eval mode | timm #1978
dropout-misplaced | risk | 15 | Dropout is applied to the wrong tensor | torchtune #1791
left-padding | bug | 16 | Padding on the left changes the output | transformers #36151
cache-mismatch | bug | 16 | Decoding with the cache differs from one forward over the whole sequence
    | transformers #47597 #25104
rope-pairing | bug | 17 | RoPE rotates other pairs of features than usual | transformers #25199 #39687
rope-asymmetric | bug | 17 | RoPE rotates queries and keys differently | transformers #25199
rope-half-precision | risk | 18 | RoPE's angles are computed in half precision | transformers #29285 #25681
gqa-order | bug | 21 | Query heads use other key heads than usual | onnx #7274
qkv-order | bug | 22 | The packed QKV projection is split in the wrong order | litgpt #1013
alibi-slopes | bug | 23 | ALiBi's slopes are wrong for this number of heads | mlx #3071
t5-scaled | bug | 24 | The scores of T5 attention are scaled | transformers #46946
packing-leak | bug | 25 | Packed documents attend to one another | axolotl #3796
cross-mask | bug | 26 | Cross-attention uses the padding mask of the queries | transformers #35032
output-misplaced | bug | | Outputs stand at other positions than their queries
weights-averaged | note | 27 | The returned weights are averaged over heads | pytorch #34537 #47583
softmax-half | risk | 28 | The softmax is computed in half precision | pytorch #123911, transformers #30186
noncontiguous-input | risk | 29 | A non-contiguous input raises an error or changes the output | fairseq #2598
input-modified | bug | 29 | The inputs are modified in place | pytorch #138340
heads-not-dividing | risk | 30 | A width that is not divisible by the number of heads is accepted
    | pytorch #28719 #103668
batch-mixing | bug | 31 | Examples of a batch influence one another
train-eval-differ | bug | 32 | Train mode and eval mode give different outputs | pytorch #86120 #97111
projection-reused | bug | 33 | One projection is used in place of another
argument-order | bug | 33 | Query, key and value are passed in the wrong order
unused-parameter | bug | 34 | A parameter never gets a gradient
rope-axis | bug | | RoPE's table runs over another axis than the positions
relative-bias-shared | bug | | Different relative positions share an entry of their table
    | nnFormer #88, x-transformers #10
norm-axis | bug | | A norm is taken over positions or heads
norm-swapped | bug | | A norm of queries or keys is applied to another tensor | diffusers #13533, MegaVIT #17
normaliser-wrong | bug | | The weights do not sum to 1 | performer-pytorch #40
paths-differ | bug | | Two code paths of one attention do not compute the same | transformers #44397
causal-unasked | bug | | A module that should see all positions is causal
weights-wrong | bug | | The returned weights are not those that were used
weights-misaligned | bug | | The weights are multiplied with the values of other keys
scores-misaligned | bug | | A term of other tokens is added to the scores | espnet #2684
memory-ignored | bug | | A memory is passed but has no effect
reshape-scrambles | bug | | A view or reshape stands in the place of a transpose
tokens-unread | bug | | Tokens behind some position are not read | transformers #36477
result-discarded | bug | | A result is computed and thrown away | flamingo-pytorch #10
residual-dropped | bug | | A residual is not added, or not passed on
projection-zero | bug | | A projection is 0 for every input
head-idle | bug | | The weights of a head are not used
mask-after-softmax | bug | | The mask is applied after the softmax
bias-after-softmax | bug | | A bias is added to the weights, after the softmax
mask-multiplied | bug | | The scores are multiplied by the mask
weights-transposed | bug | | The weights are multiplied with the values transposed
softmax-unstable | risk | | Large scores give infinity or NaN
gradient-blocked | bug | | No gradient reaches an input or a parameter
gradient-wrong | bug | | The gradient does not match the output
zero-start | bug | | Weights that begin with 0 never get a gradient | LAVT-RIS #25
state-dict | bug | | Saving and loading changes the output
weights-unregistered | bug | | Forward uses weights that are not in the state dict
sizes-fixed | risk | | Other lengths, or a batch of 1, raise an error
fails-in-half | risk | | The module does not run in half precision
fails-in-double | note | | The module does not run in double precision
does-not-run | bug | | The module raises an error
hangs | bug | | The code does not finish
crashes | bug | | The code ends the process
too-large | bug | | The code takes too much memory
not-attention | note | | The module does not compute attention
output-shape | bug | | The output has another shape than expected, or is NaN
"""


def _entry(row: str) -> Entry:
    name, severity, way, title, *sources = (cell.strip() for cell in row.split("|"))
    threads = tuple(sources[0].split(", ")) if sources else ()
    return Entry(name, cast(Severity, severity), title, int(way) if way else None, threads)


CATALOGUE = {entry.name: entry for entry in map(_entry, _TABLE.replace("\n    ", " ").strip().splitlines())}


def check_names(names: Iterable[str], argument: str) -> frozenset[str]:
    """The names as a set. Raises ArgumentError for a name that is not a finding."""
    given = frozenset((names,) if isinstance(names, str) else names)
    for name in sorted(given - CATALOGUE.keys()):
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "docs/doctor.md lists them"
        raise ArgumentError(f"{argument}: every name must be a finding's. Received: {name!r}. {hint}")
    return given


# --- What a finding becomes in released code --------------------------------------------------------------------------

# There a habit of the code may be a convention that trained weights rely on. A check that knows of one names the
# finding and the case to `Subject.severity` or `Subject.reports`. All others are the same wherever the code is.
# "finding: case" -> the gravest that it is there; None: it is not looked for.
GRAVEST: dict[str, Severity | None] = {
    # The weights were trained with it, and the results are right for them.
    "gqa-order: tiled": "note",
    "qkv-order: of a fused projection": "note",
    "projection-reused: of slices": "risk",
    "rope-axis: of the table": "risk",
    "t5-scaled: beside a T5 bias": None,
    "wrong-scale: of the scores": "risk",
    "wrong-scale: none": None,
    "wrong-scale: of a bias": "note",
    "wrong-scale: without YaRN's temperature": "note",
    "window-off-by-one: the other reading": "note",  # a window of w has w keys, or w before the query
    # It is meant: papers reduce over the batch, attend to their padding, estimate a gradient.
    "batch-mixing: in the outputs": "risk",
    "dropout-in-eval: random numbers": "note",  # slots and latents that are drawn
    "gradient-wrong: a custom backward": "risk",
    "padding-attended: of blocks": "risk",
    "shift-mask: between borders": "risk",
    "softmax-axis: over the queries": "risk",  # keys choose among queries, as in slots and groups
    "softmax-unstable: in float32": "risk",
    # Its own model passes what is right for it.
    "batch-mixing: said to be batch first": "risk",
    "left-padding: promised": None,  # `generate` passes the positions
    "weights-averaged: without a choice": "note",  # what PyTorch's own attention returns
    "sizes-fixed: more keys than queries": "risk",
    "sizes-fixed: queries, keys and values": "note",  # it may be meant for one sequence
    # An option of its config leaves a part without use.
    "unused-parameter: of a vector": "risk",
    "window-ignored: in every layer": None,
    # Its outputs are in a layout that is not known here.
    "output-shape: no output": None,
}


# --- Where it was reported --------------------------------------------------------------------------------------------

_REPOSITORIES = {
    "apex": "NVIDIA/apex",
    "axolotl": "axolotl-ai-cloud/axolotl",
    "diffusers": "huggingface/diffusers",
    "espnet": "espnet/espnet",
    "fairseq": "facebookresearch/fairseq",
    "fastNLP": "fastnlp/fastNLP",
    "flamingo-pytorch": "lucidrains/flamingo-pytorch",
    "flash-attention": "Dao-AILab/flash-attention",
    "flashinfer": "flashinfer-ai/flashinfer",
    "keras": "keras-team/keras",
    "labml annotated": "labmlai/annotated_deep_learning_paper_implementations",
    "LAVT-RIS": "yz93/LAVT-RIS",
    "litgpt": "Lightning-AI/litgpt",
    "MegaVIT": "kyegomez/MegaVIT",
    "minGPT": "karpathy/minGPT",
    "mlx": "ml-explore/mlx",
    "nnFormer": "282857341/nnFormer",
    "onnx": "onnx/onnx",
    "performer-pytorch": "lucidrains/performer-pytorch",
    "pytorch": "pytorch/pytorch",
    "sglang": "sgl-project/sglang",
    "set_transformer": "juho-lee/set_transformer",
    "timm": "huggingface/pytorch-image-models",
    "torchtune": "meta-pytorch/torchtune",
    "transformers": "huggingface/transformers",
    "vit-pytorch": "lucidrains/vit-pytorch",
    "x-transformers": "lucidrains/x-transformers",
}


def links(source: str) -> list[tuple[str, str | None]]:
    """The parts of a source, each with its URL or None: "pytorch #1 #2" is two threads."""
    name, *numbers = (part.strip() for part in source.split("#"))
    repository = _REPOSITORIES.get(name, name if name.count("/") == 1 and " " not in name else None)
    if not numbers or repository is None:
        return [(source, None)]
    address = f"https://github.com/{repository}/issues/"
    return [(f"{name} #{x}" if i == 0 else f"#{x}", address + x) for i, x in enumerate(numbers)]
