"""The config of an encoder: the options of BERT, and the differences of later families."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headwise.errors import ArgumentError
from headwise.nn import feed_forward
from headwise.nn.feed_forward import Activation

ACTIVATIONS: dict[str, Activation] = {  # Hugging Face's name: our name
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
GATED: dict[str, Activation] = {plain: gated for gated, plain in feed_forward.GATED.items()}


@dataclass(frozen=True)
class ModernLayers:
    """Layers like those of ModernBERT (Warner et al. 2024, arXiv:2412.13663, section 2.1).

    There is a norm before each branch (except the first attention) and one after the last layer. Feed-forward networks
    have a gate. Positions are rotary. In the layers whose numbers are in `local_layers`, a token attends only to
    `window` neighbours on each side.

    Raises:
        ArgumentError: a value that is impossible for such layers.
    """

    local_layers: tuple[int, ...] = ()
    window: int = 64
    rope_base: float = 160_000.0
    local_rope_base: float = 10_000.0
    bias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_layers", tuple(self.local_layers))  # JSON has lists
        _check_whole("window", self.window, 0)


@dataclass(frozen=True)
class BertConfig:
    """The sizes and options of a BERT, or of a similar encoder; the defaults are BERT-base.

    `initializer_range` is the standard deviation of the initial weights. 0.02 suits widths near 768; a narrow
    model, whose scores would all begin near 0, learns faster with `dim ** -0.5`.

    Args:
        max_positions: the maximum number of tokens of a text.
        num_token_types: 0 = no token types (DistilBERT, MPNet, ModernBERT).
        family: a name in `headwise.models.families`, which has the parameter names in checkpoints.
        embedding_dim: the width of the embeddings, if a linear map projects them to `dim` (ELECTRA); None = `dim`.
        first_position: the row of the position table that the first token gets (RoBERTa, MPNet: 2). If it is not 0,
            padding does not count as a position.
        relative_buckets: the number of buckets of T5's relative positions, whose biases all layers share (MPNet); 0 =
            no relative positions.
        modern: options of layers like ModernBERT's, without a table of positions; None = layers like BERT's.

    Raises:
        ArgumentError: a value that is impossible for such an encoder.
    """

    vocab_size: int = 30522
    dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_dim: int = 3072
    max_positions: int = 512
    num_token_types: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pooler: bool = True
    initializer_range: float = 0.02
    family: str = "bert"
    embedding_dim: int | None = None
    first_position: int = 0
    relative_buckets: int = 0
    modern: ModernLayers | None = None

    def __post_init__(self) -> None:
        if isinstance(self.modern, dict):  # it comes from JSON
            object.__setattr__(self, "modern", ModernLayers(**self.modern))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                _check_whole(field.name, value, 0 if field.name in _MAY_BE_0 else 1)
            if field.type == "float" and (not isinstance(value, int | float) or not 0 <= value < 1):
                raise ArgumentError(
                    f"{field.name}: expected a number from 0 to 1, 1 excluded. Received: {field.name}={value!r}"
                )
        if self.embedding_dim is not None:
            _check_whole("embedding_dim", self.embedding_dim, 1)
        if self.dim % self.num_heads:
            raise ArgumentError(f"dim: expected a multiple of num_heads={self.num_heads}. Received: dim={self.dim}")
        if self.hidden_act not in list(ACTIVATIONS):
            known = ", ".join(ACTIVATIONS)
            raise ArgumentError(f"hidden_act: expected one of {known}. Received: hidden_act={self.hidden_act!r}")
        if self.modern is not None and ACTIVATIONS[self.hidden_act] not in GATED:
            raise ArgumentError(f"hidden_act: expected one with a gate. Received: hidden_act={self.hidden_act!r}")

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables: `embedding_dim`, or `dim` if that is None."""
        return self.dim if self.embedding_dim is None else self.embedding_dim

    @property
    def has_bert_layers(self) -> bool:
        """Whether the layers are like BERT's: norms after the sums, and no positions in the attention."""
        return self.modern is None and not self.relative_buckets

    @property
    def is_bert(self) -> bool:
        """Whether the model computes the same as a BERT, embeddings included, whatever its family's parameter names."""
        return (
            self.has_bert_layers
            and self.embedding_dim is None
            and self.first_position == 0
            and self.num_token_types > 0
        )

    def require_bert(self, what: str) -> None:
        """Raise ArgumentError unless `is_bert`; `what` names the code that needs a BERT."""
        if not self.is_bert:
            raise ArgumentError(
                f"{what}: expected a BERT. Received: family={self.family!r}, which is computed otherwise"
            )


_MAY_BE_0 = ("num_token_types", "first_position", "relative_buckets")


def _check_whole(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        wanted = "a whole number above 0" if least else "a whole number, 0 or more"
        raise ArgumentError(f"{name}: expected {wanted}. Received: {name}={value!r}")
