"""Each mistake of these layers, and the finding that must name it."""

NAMES = {
    "no factor": "wrong-scale",
    "scale of the width": "wrong-scale",
    "mask ignored": "mask-ignored",
    "mask turned round": "mask-polarity",
    "mask over queries": "mask-broadcast",
    "weights multiplied": "mask-after-softmax",
    "softmax over queries": "softmax-axis",
    "softmax over heads": "softmax-axis",
    "heads split without transpose": "head-split",
    "heads merged without transpose": "head-merge",
    "keys for values": "projection-reused",
    "queries for keys": "projection-reused",
    "dropout always on": "dropout-in-eval",
    "one ahead": "causal-leak",
    "future": "mask-polarity",
    "not causal": "causal-leak",
    "weights turned": "weights-transposed",
}

# Class -> its mistakes.
TUTORIAL = {
    "CrossAttention": ["scale of the width", "mask turned round", "weights multiplied", "dropout always on"],
}
OPERATIONS = {
    "MultiHeadSelfAttention": [
        *("scale of the width", "mask ignored", "mask turned round", "mask over queries", "softmax over queries"),
        *("heads split without transpose", "heads merged without transpose", "keys for values", "dropout always on"),
    ],
    "CausalSelfAttention": [
        *(
            "no factor",
            "one ahead",
            "future",
            "not causal",
            "softmax over heads",
            "weights turned",
            "queries for keys",
        ),
    ],
}
IN_JAX = {
    "Attention": [
        *(
            "no factor",
            "mask ignored",
            "mask turned round",
            "softmax over queries",
            "heads split without transpose",
        ),
        *("heads merged without transpose", "keys for values"),
    ],
}

# Backend -> file -> its classes.
FILES = {
    "tensorflow": {"operations": OPERATIONS, "tutorial": TUTORIAL},
    "jax": {"operations": OPERATIONS, "in_jax": IN_JAX},
    "torch": {"operations": OPERATIONS},
}
# Class -> the arguments of its constructor.
SIZES = {
    "CrossAttention": {"width": 16, "heads": 4},
    "MultiHeadSelfAttention": {"embed_dim": 16, "num_heads": 4},
    "CausalSelfAttention": {"width": 16, "heads": 4},
    "Attention": {"units": 16, "num_heads": 4},
}
