"""Every kind of finding: a short title, its usual severity, and where it was reported.

The numbers are those of the list of mistakes in docs/doctor.md.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from urllib.parse import quote

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


def _entries() -> Iterable[Entry]:
    yield Entry(
        "mask-polarity",
        "bug",
        "The mask has the opposite polarity of what its name or documentation says",
        1,
        ("pytorch #21518",),
    )
    yield Entry("mask-added", "bug", "A mask of 0 and 1 is added to the scores", 1, ("pytorch #170415",))
    yield Entry(
        "mask-ignored",
        "bug",
        "A mask is passed but has no effect",
        2,
        ("keras #23038", "transformers #46634 #47946", "diffusers #8886"),
    )
    yield Entry("layers-shared", "risk", "A list of layers holds the same layer several times")
    yield Entry("grid-transposed", "bug", "The height of a map stands where its width should")
    yield Entry(
        "state-kept", "bug", "An earlier call changes the output of a later one", None, ("transformers #48509",)
    )
    yield Entry("causal-leak", "bug", "A position attends to later positions", 3, ("transformers #48745", "minGPT #75"))
    yield Entry("mask-fill-too-small", "risk", "Large scores exceed the mask's fill value", 9, ("flashinfer #4401",))
    yield Entry(
        "causal-corner",
        "bug",
        "A rectangular causal mask is aligned with the wrong corner",
        4,
        ("pytorch #108108", "flash-attention #282 #351"),
    )
    yield Entry(
        "window-off-by-one",
        "bug",
        "The window is one position too wide or too narrow",
        5,
        ("transformers #39408 #40163",),
    )
    yield Entry("window-wraps", "bug", "The window wraps around the ends of the sequence")
    yield Entry("masked-key-counts", "bug", "A masked key keeps a weight")
    yield Entry("padding-attended", "bug", "Tokens attend to the padding of blocks")
    yield Entry("padding-read", "bug", "What stands in padding reaches the output")
    yield Entry(
        "shift-mask",
        "bug",
        "Opposite borders of a shifted map attend to one another",
        None,
        ("zsyOAOA/ResShift #81", "timm #2438"),
    )
    yield Entry("positions-ignored", "bug", "Its positions change nothing", None, ("facebookresearch/xformers #841",))
    yield Entry("window-ignored", "bug", "The window that it has is not applied", 5, ("keras-team/keras-hub #2186",))
    yield Entry("empty-row-nan", "risk", "A query with no allowed key gives NaN", 6, ("pytorch #41508 #103963",))
    yield Entry("masked-nan-leaks", "note", "NaN in a masked position reaches the output", 7, ("pytorch #101967",))
    yield Entry(
        "mask-overflows-half",
        "note",
        "The mask's fill value overflows half precision",
        8,
        ("apex #93", "fairseq #3575", "transformers #17306"),
    )
    yield Entry(
        "softmax-axis", "bug", "The softmax is taken over the wrong axis", 10, ("labml annotated #146", "fastNLP #254")
    )
    yield Entry(
        "softmax-split", "bug", "Parts of the keys have a softmax each and are merged wrongly", 10, ("sglang #40903",)
    )
    yield Entry(
        "wrong-scale",
        "bug",
        "The scores are not divided by the square root of the head width",
        11,
        ("vit-pytorch #65", "set_transformer #18"),
    )
    yield Entry(
        "head-split",
        "bug",
        "Splitting into heads mixes positions",
        12,
        ("jsbaan/transformer-from-scratch #6",),
    )
    yield Entry("head-merge", "bug", "Merging the heads mixes positions", 12, ("hyunwoongko/transformer #15",))
    yield Entry(
        "mask-head-order",
        "bug",
        "The mask is repeated in a different order from the heads",
        13,
        ("lsdefine/attention-is-all-you-need-keras #36",),
    )
    yield Entry(
        "mask-broadcast",
        "bug",
        "The mask is broadcast along the wrong axis",
        14,
        ("pytorch #120810", "hyunwoongko/transformer #40"),
    )
    yield Entry("dropout-in-eval", "bug", "Dropout is active in eval mode", 15, ("timm #1978",))
    yield Entry("dropout-misplaced", "risk", "Dropout is applied to the wrong tensor", 15, ("torchtune #1791",))
    yield Entry("left-padding", "bug", "Padding on the left changes the output", 16, ("transformers #36151",))
    yield Entry(
        "cache-mismatch",
        "bug",
        "Decoding with the cache differs from one forward over the whole sequence",
        16,
        ("transformers #47597 #25104",),
    )
    yield Entry(
        "rope-pairing", "bug", "RoPE rotates other pairs of features than usual", 17, ("transformers #25199 #39687",)
    )
    yield Entry("rope-asymmetric", "bug", "RoPE rotates queries and keys differently", 17, ("transformers #25199",))
    yield Entry(
        "rope-half-precision",
        "risk",
        "RoPE's angles are computed in half precision",
        18,
        ("transformers #29285 #25681",),
    )
    yield Entry("gqa-order", "bug", "Query heads use other key heads than usual", 21, ("onnx #7274",))
    yield Entry("qkv-order", "bug", "The packed QKV projection is split in the wrong order", 22, ("litgpt #1013",))
    yield Entry("alibi-slopes", "bug", "ALiBi's slopes are wrong for this number of heads", 23, ("mlx #3071",))
    yield Entry("t5-scaled", "bug", "The scores of T5 attention are scaled", 24, ("transformers #46946",))
    yield Entry("packing-leak", "bug", "Packed documents attend to one another", 25, ("axolotl #3796",))
    yield Entry(
        "cross-mask", "bug", "Cross-attention uses the padding mask of the queries", 26, ("transformers #35032",)
    )
    yield Entry("output-misplaced", "bug", "Outputs stand at other positions than their queries")
    yield Entry(
        "weights-averaged", "note", "The returned weights are averaged over heads", 27, ("pytorch #34537 #47583",)
    )
    yield Entry(
        "softmax-half",
        "risk",
        "The softmax is computed in half precision",
        28,
        ("pytorch #123911", "transformers #30186"),
    )
    yield Entry(
        "noncontiguous-input",
        "risk",
        "A non-contiguous input raises an error or changes the output",
        29,
        ("fairseq #2598",),
    )
    yield Entry("input-modified", "bug", "The inputs are modified in place", 29, ("pytorch #138340",))
    yield Entry(
        "heads-not-dividing",
        "risk",
        "A width that is not divisible by the number of heads is accepted",
        30,
        ("pytorch #28719 #103668",),
    )
    yield Entry("batch-mixing", "bug", "Examples of a batch influence one another", 31)
    yield Entry(
        "train-eval-differ", "bug", "Train mode and eval mode give different outputs", 32, ("pytorch #86120 #97111",)
    )
    yield Entry("projection-reused", "bug", "One projection is used in place of another", 33)
    yield Entry("argument-order", "bug", "Query, key and value are passed in the wrong order", 33)
    yield Entry("unused-parameter", "bug", "A parameter never gets a gradient", 34)
    yield Entry("rope-axis", "bug", "RoPE's table runs over another axis than the positions")
    yield Entry(
        "relative-bias-shared",
        "bug",
        "Different relative positions share an entry of their table",
        None,
        ("nnFormer #88", "x-transformers #10"),
    )
    yield Entry("norm-axis", "bug", "A norm is taken over positions or heads")
    yield Entry(
        "norm-swapped",
        "bug",
        "A norm of queries or keys is applied to another tensor",
        None,
        ("diffusers #13533", "MegaVIT #17"),
    )
    yield Entry(
        "normaliser-wrong",
        "bug",
        "The weights do not sum to 1",
        None,
        ("performer-pytorch #40",),
    )
    yield Entry(
        "paths-differ", "bug", "Two code paths of one attention do not compute the same", None, ("transformers #44397",)
    )
    yield Entry("causal-unasked", "bug", "A module that should see all positions is causal")
    yield Entry("weights-wrong", "bug", "The returned weights are not those that were used")
    yield Entry("weights-misaligned", "bug", "The weights are multiplied with the values of other keys")
    yield Entry("scores-misaligned", "bug", "A term of other tokens is added to the scores", None, ("espnet #2684",))
    yield Entry("memory-ignored", "bug", "A memory is passed but has no effect")
    yield Entry("reshape-scrambles", "bug", "A view or reshape stands in the place of a transpose")
    yield Entry("tokens-unread", "bug", "Tokens behind some position are not read", None, ("transformers #36477",))
    yield Entry("result-discarded", "bug", "A result is computed and thrown away", None, ("flamingo-pytorch #10",))
    yield Entry("residual-dropped", "bug", "A residual is not added, or not passed on")
    yield Entry("projection-zero", "bug", "A projection is 0 for every input")
    yield Entry("head-idle", "bug", "The weights of a head are not used")
    yield Entry("output-projection-missing", "risk", "The output projection is missing or not used")
    yield Entry("mask-after-softmax", "bug", "The mask is applied after the softmax")
    yield Entry("bias-after-softmax", "bug", "A bias is added to the weights, after the softmax")
    yield Entry("mask-multiplied", "bug", "The scores are multiplied by the mask")
    yield Entry("weights-transposed", "bug", "The weights are multiplied with the values transposed")
    yield Entry("softmax-unstable", "risk", "Large scores give infinity or NaN")
    yield Entry("gradient-blocked", "bug", "No gradient reaches an input or a parameter")
    yield Entry("gradient-wrong", "bug", "The gradient does not match the output")
    yield Entry("zero-start", "bug", "Weights that begin with 0 never get a gradient", None, ("LAVT-RIS #25",))
    yield Entry("state-dict", "bug", "Saving and loading changes the output")
    yield Entry("weights-unregistered", "bug", "Forward uses weights that are not in the state dict")
    yield Entry("sizes-fixed", "risk", "Other lengths, or a batch of 1, raise an error")
    yield Entry("fails-in-half", "risk", "The module does not run in half precision")
    yield Entry("fails-in-double", "note", "The module does not run in double precision")
    yield Entry("does-not-run", "bug", "The module raises an error")
    yield Entry("hangs", "bug", "The code does not finish")
    yield Entry("crashes", "bug", "The code ends the process")
    yield Entry("too-large", "bug", "The code takes too much memory")
    yield Entry("not-attention", "note", "The module does not compute attention")
    yield Entry("output-shape", "bug", "The output has another shape than expected, or is NaN")


CATALOGUE = {entry.name: entry for entry in _entries()}


def check_names(names: Iterable[str], argument: str) -> frozenset[str]:
    """The names as a set. Raises ArgumentError for a name that is not a finding."""
    given = frozenset((names,) if isinstance(names, str) else names)
    for name in sorted(given - CATALOGUE.keys()):
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "docs/doctor.md lists them"
        raise ArgumentError(f"{argument}: every name must be a finding's. Received: {name!r}. {hint}")
    return given


# --- Where it was reported --------------------------------------------------------------------------------------------

_REPOSITORIES = {
    "apex": "NVIDIA/apex",
    "ai-toolkit": "ostris/ai-toolkit",
    "axolotl": "axolotl-ai-cloud/axolotl",
    "diffusers": "huggingface/diffusers",
    "espnet": "espnet/espnet",
    "fairseq": "facebookresearch/fairseq",
    "fastNLP": "fastnlp/fastNLP",
    "flamingo-pytorch": "lucidrains/flamingo-pytorch",
    "flash-attention": "Dao-AILab/flash-attention",
    "flashinfer": "flashinfer-ai/flashinfer",
    "keras-hub": "keras-team/keras-hub",
    "nanochat": "karpathy/nanochat",
    "keras": "keras-team/keras",
    "labml annotated": "labmlai/annotated_deep_learning_paper_implementations",
    "LAVT-RIS": "yz93/LAVT-RIS",
    "litgpt": "Lightning-AI/litgpt",
    "Megatron-LM": "NVIDIA/Megatron-LM",
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
    "vllm": "vllm-project/vllm",
    "x-transformers": "lucidrains/x-transformers",
}


def links(source: str) -> list[tuple[str, str | None]]:
    """The parts of a source, each with its URL or None: "pytorch #1 #2" is two threads, "arXiv 1706.03762" a paper."""
    if source.startswith(("http://", "https://")):
        return [(source, quote(source, safe=":/?#[]@!$&'()*+,;=%~"))]
    if source.startswith("arXiv "):
        return [(source, f"https://arxiv.org/abs/{source.split()[1]}")]
    name, *numbers = (part.strip() for part in source.split("#"))
    repository = _REPOSITORIES.get(name, name if name.count("/") == 1 and " " not in name else None)
    if not numbers or repository is None:
        return [(source, None)]
    address = f"https://github.com/{repository}/issues/"
    return [(f"{name} #{x}" if i == 0 else f"#{x}", address + x) for i, x in enumerate(numbers)]
