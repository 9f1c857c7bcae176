"""Language models: a model that fills masked tokens (BERT's head on `Bert`), and one that writes from left to right.

Devlin et al. 2018, arXiv:1810.04805, section 3.1; Radford et al. 2018. In both the output is tied to the embeddings
(Press & Wolf 2017). Dimension letters: B batch, S sequence, M model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from headwise import masks
from headwise.errors import ArgumentError, CheckpointError
from headwise.models import checkpoint
from headwise.models.bert import Bert
from headwise.models.cross_entropy import linear_cross_entropy
from headwise.models.ids import check_ids
from headwise.models.packed import Packable
from headwise.nn import Cache, Encoder, MultiHeadAttention, options
from headwise.nn.dropout import Dropout
from headwise.nn.positions import Rope

HEAD = "cls.predictions."  # prefix of the names of the head's tensors in a checkpoint


class MaskedLanguageModel(nn.Module):
    """A BERT with a head that predicts masked tokens.

        logits = E · Norm(gelu(W h + b)) + c,   E the embeddings of the words

    >>> model = MaskedLanguageModel(Bert(BertConfig(vocab_size=8000, dim=256, num_layers=4, num_heads=4)))
    >>> logits_NV = model(input_ids, real, at=input_ids == mask_id)

    Its submodules are `bert`, `transform` and `norm`; it has the parameter `bias` [V].
    """

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        config = bert.config
        self.bert = bert
        self.transform = nn.Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        nn.init.normal_(self.transform.weight, std=0.02)
        nn.init.zeros_(self.transform.bias)

    @classmethod
    def from_pretrained(cls, path_or_id: str | Path, *, dropout: float | None = None) -> MaskedLanguageModel:
        """Load the encoder and the head of a checkpoint, in eval mode. A head that it lacks gets random weights.

        `dropout` replaces the dropout rates of the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, or not a BERT encoder.
        """
        folder = checkpoint.resolve(path_or_id)
        bert = Bert.from_pretrained(folder, dropout=dropout)
        if bert.config.family != "bert":
            raise CheckpointError(
                f"expected a BERT, whose head for masked tokens is known here. Received: family={bert.config.family!r}"
            )
        model = cls(bert)
        tensors = checkpoint.load_tensors(folder)
        names = model.head_names()
        found = {ours: tensors[theirs] for ours, theirs in names.items() if theirs in tensors}
        if found:
            if missing := [theirs for ours, theirs in names.items() if ours not in found]:
                raise CheckpointError(f"the checkpoint lacks {missing[0]} of its head for masked tokens")
            own = dict(model.named_parameters())
            for ours, tensor in found.items():
                if tensor.shape != own[ours].shape:
                    raise CheckpointError(
                        f"{names[ours]}: expected {list(own[ours].shape)}, the checkpoint has {list(tensor.shape)}"
                    )
                own[ours].data.copy_(tensor)
        return model.eval()

    def forward(self, input_ids: Tensor, real: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """Compute the logits at every token, or only at the tokens that `at` selects.

        Args:
            input_ids: [B, S].
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding. None = all tokens are real.
            at: bool [B, S], True = compute the logits of this token. If few are True, this saves most of the work.

        Returns:
            Logits [B, S, V]; with `at` [N, V], for the N tokens whose `at` is True, in order.
        """
        x = self.bert(input_ids, real)
        x = self.norm(gelu(self.transform(x if at is None else x[at])))
        return linear(x, self.bert.embeddings.word.weight, self.bias)

    def head_names(self) -> dict[str, str]:
        """Return a dict from our name of each parameter of the head to its name in a Hugging Face checkpoint."""
        names = {"transform": "transform.dense", "norm": "transform.LayerNorm"}
        pairs = {f"{ours}.{x}": f"{HEAD}{theirs}.{x}" for ours, theirs in names.items() for x in ("weight", "bias")}
        return pairs | {"bias": f"{HEAD}bias"}


@dataclass(frozen=True)
class CausalConfig:
    """The sizes of a `CausalLanguageModel`: V, M, the number of layers, H (heads), and the dropout probability.

    Raises:
        ArgumentError: dimensions that are not divisible.
    """

    vocab_size: int
    dim: int = 256
    num_layers: int = 4
    num_heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "num_layers", "num_heads"):
            options.whole(name, getattr(self, name))
        options.divisible("dim", self.dim, "num_heads", self.num_heads)
        options.probability("dropout", self.dropout)


class CausalLanguageModel(Packable):
    """A decoder-only transformer: pre-norm, RMSNorm, SwiGLU, RoPE and no biases (Touvron et al. 2023, LLaMA).

    >>> model = CausalLanguageModel(CausalConfig(vocab_size=8000))
    >>> logits_BSV = model(input_ids)
    >>> cache = Cache()                                # one token per step
    >>> logits_B1V = model(input_ids[:, :1], cache=cache)

    Its submodules are `embedding` and `decoder`.
    """

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        self.config = config
        dim, heads = config.dim, config.num_heads

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(dim, heads, bias=False, dropout=config.dropout, positions=Rope(dim // heads))

        self.embedding = nn.Embedding(config.vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # so that the first logits are near 1 in size
        self.dropout = Dropout(config.dropout)
        self.decoder = Encoder(
            dim,
            num_layers=config.num_layers,
            attention=attention,
            norm="rms",
            activation="swiglu",
            bias=False,
            dropout=config.dropout,
        )

    def forward(
        self,
        input_ids: Tensor,
        real: Tensor | None = None,
        cache: Cache | None = None,
        at: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the token that follows each token.

        Args:
            input_ids: [B, S].
            real: bool or integers [B, S], True or 1 = a real token, False or 0 = padding; with a cache, padding must be
                on the left of each row.
            cache: holds the keys and values of the earlier tokens; those of the new tokens are appended to it.
            at: bool [B, S], True = compute the logits after this token. Default: all.
            labels: int64 [N], only with `at`: the token that follows each of the N selected tokens. Then the loss is
                returned instead of the logits, which are never all in memory.

        Returns:
            Logits [B, S, V]; with `at` [N, V], for the N tokens whose `at` is True, in order; with `labels` the sum of
            the cross-entropies of all labels, a scalar.

        Raises:
            ShapeError, DtypeError, ArgumentError: an invalid argument; the message names it.
        """
        check_ids("input_ids", input_ids, self.config.vocab_size)
        x = self.dropout(self.embedding(input_ids))
        hidden: Tensor = self.decoder(x, mask=masks.causal(), real=real, cache=cache)
        if labels is not None:
            if at is None:
                raise ArgumentError("labels: expected `at`, the places of these labels, too. Received: no `at`")
            return linear_cross_entropy(hidden[at], self.embedding.weight, labels)
        return linear(hidden if at is None else hidden[at], self.embedding.weight)
