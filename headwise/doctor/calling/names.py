"""What the names of arguments and attributes mean: the vocabulary with which the doctor reads the user's code.

Names come first but are not trusted: what they say is checked by trial (`search.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def _words(text: str) -> list[str]:
    return text.split()


# A name is one of these and words that say nothing: `input_k` is `k`.
_FILLING = frozenset(_words("x input inputs in hidden state states tensor seq sequence token tokens embeds embeddings"))
_NAMES = {
    "query": """
        query queries q qs quer xq text texts tgt trg target targets embedding emb embs seqs features feats feat inp
        sentence dec decoder x1 data src source residual latents latent activations qkv words patches z image images
        img u idx ids indices token_idx x_ids
    """,
    "key": "key keys k ks xk kx",
    "value": "value values v vs val vals xv vx",
    "memory": """
        memory mem mems memories context contexts ctx encoder enc encoded encodings encoder_output encoder_outputs
        enc_output enc_outputs enc_out encoder_out src_output src_out enc_src kv kvs xkv kv_source key_value key_values
        keys_values cross cross_attention crossattention cond condition conditioning other y media x2 second to_attend
        attend_to against prefix
    """,
    "cache": """
        cache caches kv_cache layer_cache layer_past past past_kv past_key_value past_key_values incremental prev_kv
        saved init kvcache k_cache v_cache cached_kv
    """,
    "other": "dropout dropout_p scale layer_idx layer batch_size seq_len max_len max_seq_len num_heads heads h w "
    "height width",
}
_VOCABULARY = {word: role for role, text in _NAMES.items() for word in text.split()}
# Of other names, words that say what they are, the plainest first.
_PARTS = {
    "cache": {"past", "cache"},
    "query": {"query", "queries"},
    "key": {"key", "keys"},
    "value": {"value", "values"},
    "memory": {"memory", "context", "encoder", "encoded", "enc", "cross"},
    "": {*_words("decoder dec hidden embed embeds embedding embeddings input inputs token tokens state states x")},
}
_MASKS = frozenset(_words("pad padding valid real visible allowed forbidden blocked ignore adj adjacency"))
_OF_KEYS = frozenset(_words("key k keys value valid real"))
_OTHER_MASKS = frozenset(_words("head global query q queries ratio mod loss additional position"))
_POSITIONS = frozenset(
    _words("pos position positions positional posemb rotary rope freq freqs cos sin cis alibi offset step timestep r")
)
_ASKING = frozenset(_words("return output need with get average keep store save give"))
_WEIGHTS = frozenset(_words("attn attention attentions att weight weights scores probs map maps record"))
_FLAGS = frozenset(_words("is use need return output with do should enable training train average deterministic debug"))
# The sides of a map whose tokens come row by row: forward(x, H, W).
SIDES = {"h": "h", "height": "h", "hh": "h", "w": "w", "width": "w", "ww": "w"}
# What a loss compares the output with, if it may be left out: forward(idx, targets=None).
LABELS = frozenset(_words("target targets label labels target_ids"))
# Next to a clearer query, these are the memory: forward(src, tgt).
_SOURCES = frozenset(_words("src source src_seq encoder_input"))
_TARGETS = frozenset(_words("tgt trg target targets target_seq dec decoder decoder_input dec_input dec_inputs"))
# The state of an RNN.
STATE = re.compile(r"((last|prev|previous|decoder|dec|rnn)_)?(hiddens?|hidden_state|state|h|s)(_(t|0|prev))?")
GRID = re.compile(r"^(hw|h_w|x_size|grid(_size|_shape)?|patch_grid|spatial_(shape|size)|(feat|feature|map)_size)$")
PAGES = re.compile(r"^(block|page)_tables?$")  # of a cache: which pages each sequence has
STARTS = re.compile(r"^cu_?(seq_?)?lens?(_[qk])?$|^cumulative_(seq_?)?len(gth)?s$")  # where packed documents begin
# Which document each token of a row belongs to.
DOCUMENTS = re.compile(
    r"(^|_)(seg(ment)?|doc(ument)?|pack(ing|ed)?|sequence|seq|sample|example|image|graph)_?"
    r"(ids?|index|indices|idx|ranks?)s?$|^segments$"
)


def simple(name: str) -> str:
    """`encoderHiddenStates`, `_query` and `Q` as `encoder_hidden_states`, `query` and `q`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return "_".join(word for word in spaced.lower().split("_") if word)


def _in_vocabulary(name: str) -> str | None:
    """The role of a name that is one of the vocabulary, beside words that say nothing."""
    told = "_".join(word for word in name.split("_") if word not in _FILLING)
    return _VOCABULARY.get(name) or _VOCABULARY.get(told) or (None if told else "cache" if name == "state" else "query")


def role(name: str, default: Any = None, annotation: str = "") -> str:
    """The role of an argument of forward by its name; "unknown" if the name says nothing."""
    name = simple(name)
    each = name.split("_") or [""]
    words, first, last = {*each}, each[0], each[-1]
    if words & {"causal", "autoregressive"}:
        return "mask" if "mask" in words and not isinstance(default, bool) and first != "use" else "causal"
    if name == "record" or (first in _ASKING and words & _WEIGHTS):
        return "weights-flag"
    if isinstance(default, bool) or annotation.strip() == "bool":
        return "flag"
    if (found := _in_vocabulary(name)) is not None:
        return found
    if is_types(name):
        return "other"
    if last in ("len", "lens", "length", "lengths", "seqlen", "seqlens") or name == "num_valid":
        # cu_seqlens holds the starts of packed documents, and max_seqlen the length of the longest.
        # An int is one number for all examples, as the length of a cache.
        one = isinstance(default, int) or annotation.strip() == "int"
        return "other" if one or name.startswith(("cu", "max")) else "lengths"
    if "mask" in name or words & _MASKS or last == "keep":
        if ("mask" in words and words & _OTHER_MASKS) or name == "mask_token":
            return "other"
        return "padding" if "pad" in name or words & _OF_KEYS else "mask"
    if last == "bias" and (words <= {"bias"} or words & {"attn", "attention", "score", "scores", "logit", "logits"}):
        return "mask"
    if words & _POSITIONS:
        return "positions"
    if first in _FLAGS:
        return "flag"
    if len(each) > 1 and first in ("num", "n"):  # a count
        return "other"
    return next((part or "query" for part, of in _PARTS.items() if words & of), "unknown")


def is_types(name: str) -> bool:
    """Whether it tells which of two sentences each token belongs to: `token_type_ids`."""
    words = {*simple(name).split("_")}
    return bool(words & {"type", "types"}) and words <= {"token", "tok", "type", "types", "id", "ids", "idx", "labels"}


def exact(name: str) -> bool:
    """Whether the whole name is in the vocabulary, not only a part of it."""
    return _in_vocabulary(simple(name)) is not None


def untangle(roles: dict[str, str]) -> dict[str, str]:
    """Roles with at most one query: forward(src, tgt) attends to src."""
    queries = [name for name, role_ in roles.items() if role_ == "query"]
    if queries == ["q"] and not {"key", "value"} & set(roles.values()) and next(iter(roles.values())) == "unknown":
        return {**roles, "q": "unknown"}  # forward(c, q): q is a question, for example
    if len(queries) < 2:
        return roles
    found = dict(roles)
    exact = [n for n in queries if simple(n) in ("query", "queries", "q")]
    targets = [n for n in queries if simple(n) in _TARGETS]
    sources = [n for n in queries if simple(n) in _SOURCES]
    first = (exact or (targets if sources else []) or queries)[0]
    has_memory = any(r in ("memory", "key", "value") for r in roles.values())
    for name in queries:
        if name != first and simple(name) == "residual":
            found[name] = "other"  # it is added to the output
        elif name != first:
            found[name] = "unknown" if has_memory else "memory"
            has_memory = True
    return found


_OF_MEMORY = frozenset(_words("memory mem context ctx enc encoder cross src source kv"))
_OF_QUERIES = frozenset(_words("tgt trg target dec decoder self ahead causal x"))


def about_memory(name: str) -> bool | None:
    """Whether a mask is, by its name, for the memory (True), for the query's own sequence (False), or neither."""
    words = {*simple(name).split("_")}
    return True if words & _OF_MEMORY else False if words & _OF_QUERIES else None


def about(mask: str, argument: str) -> bool:
    """Whether a mask is named after an argument: question_mask after encoded_question."""
    words = {*simple(mask).split("_")} - {"mask", "padding", "pad", "valid", "key", "attn", "attention"}
    of = {*simple(argument).split("_")}
    return bool(words) and words <= of | {word.removesuffix("s") for word in of}  # region_mask after regions


# Attributes, the most likely first. Read from the module, from its config, then from its submodules.
WIDTHS = _words("""
    embed_dim d_model embed_size hidden_size emb_size n_embd dim model_dim dim_model emb_dim embedding_dim
    embedding_size d_embed embed hid_dim hidden_dim
    model_size query_dim q_dim d_in input_dim in_dim input_size in_features in_channels
    dim_in channels width query_size units d_emb dmodel size features n_units hidden embed_dimension n_state n_hidden
""")
KEY_WIDTHS = _words("""
    kdim key_size k_dim dim_context context_dim cross_attention_dim memory_dim kv_dim encoder_dim d_context context_size
    encoder_hidden_size dim_key_value ctx_dim kv_size memory_size cond_dim
""")
VALUE_WIDTHS = _words("vdim value_size v_dim")
HEADS = _words("""
    num_heads n_heads n_head nhead heads num_attention_heads head_num num_head n_local_heads nheads nh h head
    num_query_heads num_q_heads n_q_heads n_attention_heads attention_heads number_of_heads head_count heads_count H
""")
KV_HEADS = _words("""
    num_key_value_heads n_kv_heads kv_heads num_kv_heads n_kv_head kv_head num_kv_groups n_local_kv_heads nkv n_kv
    num_groups n_groups num_query_groups n_query_groups kv_groups groups g
""")
HEAD_DIMS = _words("""
    head_dim d_k dim_head d_head head_size dim_per_head attention_head_size key_dim dk depth size_per_head hd head_width
    qk_head_dim head_features d_kv key_value_proj_dim dh
""")
ROPE_DIMS = _words("qk_rope_head_dim rope_dim rotary_dim rope_head_dim rotary_ndims rot_dim d_rope")
LENGTHS = _words("""
    block_size max_len max_seq_len seq_len context_length max_length n_positions max_position_embeddings n_ctx ctx_len
    num_patches sequence_length num_tokens n_tokens max_seq_length window_area maxlen seq_length length
    original_max_position_embeddings max_seq_len_cached max_positions max_position original_max_len
    context context_window context_len input_len history history_len lookback look_back lookback_len input_length
""")
CONFIGS = ("config", "cfg", "args", "hparams", "params", "opt", "conf", "options", "model_args")


def attribute(place: Any, names: list[str], fits: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The first of `names` that `place` (an object or a mapping) has with a value that fits, with or without a
    leading underscore."""
    for name in names:
        for spelling in (name, f"_{name}"):
            value = place.get(spelling) if isinstance(place, dict) else _of(place, spelling)
            if fits(value):
                return spelling, value
    return None


def _of(place: Any, name: str) -> Any:
    """An attribute, or None: that of a property may raise any error, as what differs from layer to layer does."""
    try:
        return getattr(place, name, None)
    except Exception:
        return None
