"""An encoder-decoder for text to text: translation, summaries, replies. Vaswani et al. 2017, arXiv:1706.03762.

An encoder reads the source; a decoder writes the target one token after another, with cross-attention to the source.
Dimension letters: B batch, K source length, Q target length, M model, V target vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import linear

from headwise import masks
from headwise.errors import ArgumentError
from headwise.models.bert import Bert, BertConfig
from headwise.models.copy_head import CopyHead, mixed
from headwise.models.cross_entropy import linear_cross_entropy, summed_cross_entropy
from headwise.models.ids import check_ids
from headwise.models.packed import Packable
from headwise.nn import Cache, Decoder, Encoder, MultiHeadAttention, options
from headwise.nn.dropout import Dropout
from headwise.nn.feed_forward import Activation
from headwise.nn.positions import Learned, Rope, Sinusoidal
from headwise.parallel import context as parallel


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """The sizes and options of an `EncoderDecoder`.

    Args:
        vocab_size: the size of the target's vocabulary, and of the source's if `source_vocab_size` is None: source,
            target and output layer then share one table of embeddings (Press & Wolf 2017, three-way tying). None = the
            vocabulary of `bert`, whose table all three then share.
        source_vocab_size: the size of the source's vocabulary, if it is another one; the source then has its own table.
        dim: M, the dimensions of the hidden states.
        num_heads: H, the number of heads of every attention.
        encoder_layers, decoder_layers: the numbers of layers.
        ffn_dim: the hidden dimension of the feed-forward networks; None = 4 M.
        activation: the activation of the feed-forward networks.
        dropout: the probability for the embeddings and for the output of each branch.
        attention_dropout, ffn_dropout: the probabilities for attention weights, and inside the feed-forward networks.
        positions: "rope" in every self-attention; or, added to the embeddings, "sinusoidal" or "learned".
        max_positions: the number of rows of the table of "learned" positions. The other kinds have no limit.
        copies: whether the decoder may copy tokens of the source (`CopyHead`). Source and target must share the
            vocabulary.
        bert: the config of a BERT that serves as the encoder, with its embeddings (BERT2RND, Rothe et al. 2020).

    Raises:
        ArgumentError: a value that is impossible for such a model.
    """

    vocab_size: int | None
    source_vocab_size: int | None = None
    dim: int = 256
    num_heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    ffn_dim: int | None = None
    activation: Activation = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    positions: Literal["rope", "sinusoidal", "learned"] = "rope"
    max_positions: int = 512
    copies: bool = False
    bert: BertConfig | None = None

    def __post_init__(self) -> None:
        if self.vocab_size is not None:
            options.whole("vocab_size", self.vocab_size)
        elif self.bert is None:
            raise ArgumentError(
                "vocab_size: expected the number of tokens where there is no bert. Received: vocab_size=None"
            )
        elif self.dim != (width := self.bert.embedding_width):
            raise ArgumentError(f"dim: expected {width}, as the embeddings of bert have it. Received: dim={self.dim}")
        for name in ("dim", "num_heads", "encoder_layers", "decoder_layers", "max_positions"):
            options.whole(name, getattr(self, name))
        options.check_known("positions", self.positions, ("rope", "sinusoidal", "learned"))
        head_dim = options.divisible("dim", self.dim, "num_heads", self.num_heads)
        if self.positions == "rope" and head_dim % 2:
            raise ArgumentError(
                'dim: expected an even dim / num_heads for positions="rope". '
                f"Received: dim={self.dim}, num_heads={self.num_heads}"
            )
        if self.bert is not None and self.source_vocab_size is not None:
            raise ArgumentError(
                f"source_vocab_size: expected None with bert. Received: source_vocab_size={self.source_vocab_size}"
            )
        if self.copies and not self.is_shared:
            raise ArgumentError(
                "copies: expected one vocabulary for source and target. "
                f"Received: source_vocab_size={self.source_vocab_size}"
            )

    @property
    def is_shared(self) -> bool:
        """Whether source and target have the same vocabulary."""
        return self.source_vocab_size is None and (self.bert is None or self.vocab_size is None)


class EncoderDecoder(Packable):
    """A transformer that reads a source and writes a target.

        memory = Encoder(E_source[source] √M)
        p(next token) = softmax(E_target · Decoder(E_target[target] √M, memory))

    Norms are before the branches (Xiong et al. 2020). The output layer uses the embeddings of the target.

    >>> model = EncoderDecoder(EncoderDecoderConfig(vocab_size=8000))
    >>> logits_BQV = model(source_ids, target_ids, source_real)

    To decode with a cache: the memory and its projections are computed once, and each step computes one token.

    >>> memory, cache = model.encode(source_ids, source_real), Cache()
    >>> logits_B1V = model.logits(
    ...     model.decode(target_ids[:, -1:], memory, source_real, cache), memory, source_ids, source_real
    ... )
    """

    def __init__(self, config: EncoderDecoderConfig, bert: Bert | None = None) -> None:
        """`bert` is the encoder if the config has a BERT; None = a new BERT with random weights."""
        super().__init__()
        self.config = config
        dim, heads = config.dim, config.num_heads
        is_rotary = config.positions == "rope"

        def attention() -> MultiHeadAttention:
            positions = Rope(dim // heads) if is_rotary else None
            return MultiHeadAttention(dim, heads, dropout=config.attention_dropout, positions=positions)

        # None if another module's table is used: under two names it would be saved twice.
        self.embedding = None if config.vocab_size is None else _embedding(config.vocab_size, dim)
        self.source_embedding = None if config.source_vocab_size is None else _embedding(config.source_vocab_size, dim)
        self.encoder: Encoder | Bert
        if config.bert is not None:
            self.encoder = Bert(config.bert) if bert is None else bert
        else:
            self.encoder = Encoder(
                dim,
                num_layers=config.encoder_layers,
                attention=attention,
                ffn_dim=config.ffn_dim,
                activation=config.activation,
                dropout=config.dropout,
                ffn_dropout=config.ffn_dropout,
            )
        self.decoder = Decoder(
            dim,
            num_layers=config.decoder_layers,
            num_heads=heads,
            memory_dim=None if config.bert is None else config.bert.dim,
            self_attention=attention,
            ffn_dim=config.ffn_dim,
            activation=config.activation,
            attention_dropout=config.attention_dropout,
            dropout=config.dropout,
            ffn_dropout=config.ffn_dropout,
        )
        self.positions: Sinusoidal | None = Sinusoidal(dim) if config.positions == "sinusoidal" else None
        learned = config.positions == "learned"
        self.source_positions = Learned(config.max_positions, dim) if learned and config.bert is None else None
        self.target_positions = Learned(config.max_positions, dim) if learned else None
        self.copy = CopyHead(dim) if config.copies else None
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_real: Tensor | None = None,
        *,
        at: Tensor | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """The logits of the token that follows each target token, given the source and the target up to that token.

        Args:
            source_ids: [B, K].
            target_ids: [B, Q], beginning with the token that starts a text. Padding is on the right and needs no mask:
                later tokens do not change the output at a token.
            source_real: bool or integers [B, K], True or 1 = a real token, False or 0 = padding; None = all are real.
            at: int64 [N], indices into the flattened [B · Q]: only the logits at these places are computed.
            labels: int64 [N], only with `at`: the tokens that follow these places. Then the loss is returned instead of
                the logits, which are never all in memory.
            label_smoothing: the share of the target's probability that the loss spreads evenly over all tokens.

        Returns:
            Logits [B, Q, V], or [N, V] with `at`; with `labels` the sum of the cross-entropies of all labels, a scalar.

        Raises:
            ShapeError, DtypeError: an argument that does not fit.
            ArgumentError: an id that is not in the vocabulary; more tokens than there are learned positions.
        """
        memory_BKM = self.encode(source_ids, source_real)
        hidden_BQM = self.decode(target_ids, memory_BKM, source_real)
        if labels is None:
            return self.logits(hidden_BQM, memory_BKM, source_ids, source_real, at=at)
        if at is None:
            raise ArgumentError("labels: expected `at`, the places of these labels, too. Received: no `at`")
        if self.copy is None:
            weight = self.target_embedding.weight
            return linear_cross_entropy(hidden_BQM.flatten(0, 1)[at], weight, labels, label_smoothing=label_smoothing)
        logits_NV = self.logits(hidden_BQM, memory_BKM, source_ids, source_real, at=at)
        return summed_cross_entropy(logits_NV, labels, label_smoothing=label_smoothing)

    def encode(self, source_ids: Tensor, source_real: Tensor | None = None) -> Tensor:
        """Compute the memory: the encoder's output [B, K, M] (for a BERT, its own M). Arguments as in `forward`."""
        with parallel.treat_memory_as_own():
            if isinstance(self.encoder, Bert):
                return self.encoder(source_ids, source_real)
            memory: Tensor = self.encoder(self.embed_source(source_ids), real=source_real)
        return memory

    def embed_source(self, source_ids: Tensor) -> Tensor:
        """Compute the embeddings [B, K, M] that the encoder reads, unless it is a BERT. Arguments as in `forward`."""
        table = self.target_embedding if self.source_embedding is None else self.source_embedding
        return self._embed("source_ids", source_ids, table, self.source_positions)

    def decode(
        self, target_ids: Tensor, memory: Tensor, source_real: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Compute the decoder's last hidden states [B, Q, M] for target tokens [B, Q].

        With a cache, the tokens follow the tokens in the cache. Pass the same memory at every step; if the cache was
        reordered, reorder the memory and `source_real` in the same way.
        """
        start = 0 if cache is None else cache.length
        x_BQM = self._embed("target_ids", target_ids, self.target_embedding, self.target_positions, start)
        # A single token may see all tokens before it.
        mask = masks.causal() if parallel.find_length(target_ids.shape[1]) > 1 else None
        hidden: Tensor = self.decoder(x_BQM, memory, mask=mask, cache=cache, memory_real=source_real)
        return hidden

    def logits(
        self,
        hidden: Tensor,
        memory: Tensor,
        source_ids: Tensor,
        source_real: Tensor | None = None,
        *,
        at: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits [B, Q, V], or with `at` [N, V], from the output of `decode`, [B, Q, M].

        They are products with the target's embeddings. A model that copies also uses the source, and returns
        log-probabilities instead.
        """
        chosen = hidden if at is None else hidden.flatten(0, 1)[at]
        logits = linear(chosen, self.target_embedding.weight)
        if self.copy is None:
            return logits
        length = hidden.shape[1]
        if parallel.find_length(memory.shape[1], memory=True) != memory.shape[1]:
            raise ArgumentError(
                "copies: expected the whole source in every process. Received: its rows of one of them. Pass "
                "context_parallel(memory='whole')"
            )
        weights_BQK, gate_BQ = self.copy(hidden, memory, source_real)
        if at is None:
            ids_BQK = source_ids[:, None].expand(-1, length, -1)
            return mixed(logits, weights_BQK, gate_BQ, ids_BQK)
        return mixed(logits, weights_BQK.flatten(0, 1)[at], gate_BQ.flatten()[at], source_ids[at // length])

    @property
    def target_embedding(self) -> nn.Embedding:
        """The table of the target's tokens: [V, M]."""
        if self.embedding is not None:
            return self.embedding
        assert isinstance(self.encoder, Bert)
        return self.encoder.embeddings.word

    def _embed(self, name: str, ids: Tensor, table: nn.Embedding, learned: Learned | None, start: int = 0) -> Tensor:
        check_ids(name, ids, table.num_embeddings)
        x = table(ids) * math.sqrt(self.config.dim)
        positions = self.positions if learned is None else learned
        if positions is not None:
            x = x + positions(start + parallel.positions_here(ids.shape[1], ids.device)).to(x.dtype)
        return self.dropout(x)


def _embedding(size: int, dim: int) -> nn.Embedding:
    """Make a table of variance 1 / M: rows times √M are as large as layers' outputs, unscaled rows suit the output."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
