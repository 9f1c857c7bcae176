"""What the names of arguments and attributes mean: the vocabulary with which the doctor reads the user's code.

Names come first but are not trusted: what they say is checked by trial (`search.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def _words(text: str) -> list[str]:
    return text.split()


# The role of an argument of forward. "unknown" is left to trial.
ROLES = (
    *("query", "key", "value", "memory"),
    *("mask", "padding", "lengths", "causal"),
    *("cache", "positions", "weights-flag", "flag", "other", "unknown"),
)

_WORDS = {
    "query": """
        query queries q qs quer x text texts input inputs hidden hidden_states hidden_state states tgt trg target
        targets tokens embeddings embedding embeds emb embs seq sequence seqs features feats feat inp xq x_q q_in qx
        query_states query_input input_tensor tensor input_embeds inputs_embeds sentence dec decoder_input
        decoder_hidden decoder_hidden_states decoder_states dec_input dec_inputs x1 data src source src_seq residual
        latents latent activations qkv x_in words patches z input_q inputs_q q_input q_inputs input_query query_tensor
        image images img query_seq query_sequence target_seq u idx ids indices token_idx x_ids xb
    """,
    "key": """
        key keys k ks key_states key_input k_in x_k xk kx input_k inputs_k k_input k_inputs key_tensor input_key key_seq
    """,
    "value": """
        value values v vs val vals value_states value_input v_in x_v xv vx input_v inputs_v v_input v_inputs
        value_tensor input_value value_seq
    """,
    "memory": """
        memory mem mems context ctx contexts encoder_hidden_states encoder_output encoder_outputs enc_output enc_outputs
        enc_out encoder_out encoder_states encoder_hidden enc memories kv kvs x_kv kv_states key_value key_values
        keys_values key_value_states kv_input inputs_kv input_kv cond condition conditioning other y media source_states
        cross_states crossattention_states cross_attention_states cross_inputs cross kv_seq src_output src_out enc_src
        encoder_input encoder_inputs encoded encodings x2 second xkv kv_x x_context x_memory to_attend attend_to against
        enc_hidden encoder_memory src_memory memory_states kv_in kv_source key_value_input prefix
    """,
    "cache": """
        cache kv_cache layer_past past past_kv past_key_value past_key_values past_keys_values past_state past_states
        state incremental_state prev_kv layer_cache caches key_value_cache kvcache saved_state init_state k_cache
        v_cache cached_kv
    """,
    "other": """
        dropout dropout_p scale layer_idx layer batch_size seq_len max_len max_seq_len num_heads heads h w height width
    """,
}
_VOCABULARY = {word: role for role, text in _WORDS.items() for word in text.split()}
# The sides of a map whose tokens come row by row: forward(x, H, W).
SIDES = {"h": "h", "height": "h", "hh": "h", "w": "w", "width": "w", "ww": "w"}
# What a loss compares the output with, if it may be left out: forward(idx, targets=None).
LABELS = frozenset(_words("target targets label labels target_ids"))
# Next to a clearer query, these are the memory: forward(src, tgt).
_SOURCES = frozenset(_words("src source src_seq encoder_input"))
_TARGETS = frozenset(
    _words("tgt trg target targets target_seq dec decoder_input dec_input dec_inputs decoder_hidden_states")
)
# The state of an RNN.
STATE = re.compile(r"((last|prev|previous|decoder|dec|rnn)_)?(hiddens?|hidden_state|state|h|s)(_(t|0|prev))?")

_CAUSAL = re.compile(r"^(is_)?causal|^use_causal_mask$|^autoregressive$|is_causal$")
_WEIGHTS_FLAG = re.compile(
    r"need_?weights|return_record|^record$"
    r"|(return|output|need|with|get|average|keep|store|save|give|visuali[sz]e)_?"
    r"(attn|attention|attentions|att|weights?|scores?|probs?|maps?|head_weights)"
)
_LENGTHS = re.compile(r"(^|_)(lens?|lengths?|num_valid|seqlens?)$")
_MASK = re.compile(
    r"mask|(^|_)(pad|padding|is_pad|valid|real|visible|allowed|forbidden|blocked|ignore|adj|adjacency)(_|$)"
    r"|(^|_)keep$"
)
_OTHER_MASK = re.compile(
    r"(^|_)head_mask|(^|_)global_|query_mask|q_mask|queries_mask|mask_token|mask_ratio|mask_mod|loss_mask|mem_mask$|additional_|position_mask"
)
_PADDING = re.compile(r"pad|(key|k|keys|value)_mask|valid|(^|_)real(_|$)")
_BIAS = re.compile(r"(^|_)(attn|attention|score|logit)s?_bias$|^bias$")
_POSITIONS = re.compile(
    r"^r(_emb)?$|(^|_)(pos|position|positions|positional|rotary|rope|freqs?|cos|sin|rel_pos|alibi|offset|start_pos|input_pos|cis"
    r"|step|time_step|timestep)(_|$)|pos_emb|pos_enc|position_|posemb|_pos$"
)
_FLAG = re.compile(
    r"^(is|use|need|return|output|with|do|should|enable|training|train|average|deterministic|verbose|debug|self_attn)(_|$)"
)
_PARTS = (  # of names that are not in the vocabulary
    (re.compile(r"^(num|n)_"), "other"),  # a count
    (re.compile(r"(^|_)(past|cache)(_|$)"), "cache"),
    (re.compile(r"(^|_)(query|queries)(_|$)"), "query"),
    (re.compile(r"(^|_)keys?(_|$)"), "key"),
    (re.compile(r"(^|_)values?(_|$)"), "value"),
    (re.compile(r"(^|_)(memory|context|encoder|encoded|enc|cross)(_|$)"), "memory"),
    (re.compile(r"(^|_)(decoder|dec|hidden|embeds?|embeddings?|inputs?|tokens?|states?|x)(_|$)"), "query"),
)

COORDINATES = re.compile(r"(^|_)(xyz|xy|coords?|coordinates?|points?|centers?|centroids?|locations?)$")
GRID = re.compile(r"^(hw|h_w|x_size|grid(_size|_shape)?|patch_grid|spatial_(shape|size)|(feat|feature|map)_size)$")
PAGES = re.compile(r"^(block|page)_tables?$")  # of a cache: which pages each sequence has
STARTS = re.compile(r"^cu_?(seq_?)?lens?(_[qk])?$|^cumulative_(seq_?)?len(gth)?s$")  # where packed documents begin
TYPES = re.compile(r"^(token|tok)?_?types?(_?(ids?|labels?|idx))?$|^segment_labels?$")  # which of two sentences
# Which document each token of a row belongs to.
DOCUMENTS = re.compile(
    r"(^|_)(seg(ment)?|doc(ument)?|pack(ing|ed)?|sequence|seq|sample|example|image|graph)_?"
    r"(ids?|index|indices|idx|ranks?)s?$|^segments$"
)


def simple(name: str) -> str:
    """`encoderHiddenStates`, `_query` and `Q` as `encoder_hidden_states`, `query` and `q`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"_+", "_", spaced).strip("_").lower()


def role(name: str, default: Any = None, annotation: str = "") -> str:
    """The role of an argument of forward by its name; "unknown" if the name says nothing."""
    name = simple(name)
    if _CAUSAL.search(name):
        return "mask" if "mask" in name and not isinstance(default, bool) and name != "use_causal_mask" else "causal"
    if _WEIGHTS_FLAG.search(name):
        return "weights-flag"
    if isinstance(default, bool) or annotation.strip() == "bool":
        return "flag"
    if name in _VOCABULARY:
        return _VOCABULARY[name]
    if TYPES.search(name):
        return "other"
    if _LENGTHS.search(name):
        # cu_seqlens holds the starts of packed documents, and max_seqlen the length of the longest.
        return "other" if name.startswith(("cu", "max")) else "lengths"
    if _MASK.search(name):
        return "other" if _OTHER_MASK.search(name) else "padding" if _PADDING.search(name) else "mask"
    for pattern, found in ((_BIAS, "mask"), (_POSITIONS, "positions"), (_FLAG, "flag"), *_PARTS):
        if pattern.search(name):
            return found
    return "unknown"


def exact(name: str) -> bool:
    """Whether the whole name is in the vocabulary, not only a part of it."""
    return simple(name) in _VOCABULARY


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


def about_memory(name: str) -> bool | None:
    """Whether a mask is, by its name, for the memory (True), for the query's own sequence (False), or neither."""
    name = simple(name)
    if re.search(r"(^|_)(memory|mem|context|ctx|enc|encoder|cross|src|source|kv)(_|$)", name):
        return True
    if re.search(r"(^|_)(tgt|trg|target|dec|decoder|self|look_ahead|causal|x)(_|$)", name):
        return False
    return None


def about(mask: str, argument: str) -> bool:
    """Whether a mask is named after an argument: question_mask after encoded_question."""
    words = set(re.split("_", simple(mask))) - {"mask", "padding", "pad", "valid", "key", "attn", "attention"}
    of = set(simple(argument).split("_"))
    return bool(words) and words <= of | {word.removesuffix("s") for word in of}  # region_mask after regions


# Attributes, the most likely first. Read from the module, from its config, then from its submodules.
WIDTHS = _words("""
    embed_dim d_model embed_size hidden_size emb_size n_embd dim model_dim dim_model emb_dim embedding_dim
    embedding_size d_embed embed hid_dim hidden_dim
    model_size query_dim q_dim d_in input_dim in_dim input_size in_features in_channels
    dim_in channels width query_size units d_emb dmodel size features n_units hidden embed_dimension n_state n_hidden
""")
VARIABLES = _words(
    "c_in enc_in n_vars num_vars n_variables num_variables nvars n_series num_series n_features num_features"
)
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
