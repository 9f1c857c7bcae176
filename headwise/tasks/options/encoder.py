"""The options of tasks with a text encoder: a checkpoint, or a small encoder from scratch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headwise.tasks.options.train import TrainOptions, check_heads, option

SCRATCH = "scratch"


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(TrainOptions):
    """Options of tasks with a text encoder: their defaults differ between fine-tuning and training from scratch.

    Raises:
        ArgumentError, DtypeError: see `TrainOptions`.
    """

    model: str | None = option(
        None,
        'A BERT to fine-tune: hub id, folder, or run folder; or "scratch": a new small one. Default: MiniLM from '
        "the extra demo.",
    )
    max_length: int | None = option(None, "Most tokens in an input. Default: the limit of the model.", least=8)
    dim: int = option(64, "From scratch: the dimension of the model.", least=8)
    layers: int = option(1, "From scratch: number of layers.", least=1)
    heads: int = option(2, "From scratch: heads per layer.", least=1)
    vocab_size: int = option(8000, "From scratch: most subwords learned from the data.", least=100)
    lowercase: bool = option(True, "From scratch: ignore case.")
    new_characters: bool = option(True, "Add characters that the checkpoint does not know to its vocabulary.")
    epochs: int = option(None, "Number of epochs. Default: 3, from scratch 6.", least=1)
    lr: float = option(None, "The highest learning rate. Default: 5e-5, from scratch 2e-3.")
    dropout: float = option(None, "Dropout in training. Default: 0.1, from scratch 0.5.", least=0)
    batch_size: int | None = option(32, "Most examples in a batch.", least=1)

    @property
    def is_pretrained(self) -> bool:
        """Whether the model starts from a checkpoint."""
        return self.model != SCRATCH

    def defaults(self) -> dict[str, float]:
        """Return the default values of the options that were not given, by name."""
        if self.is_pretrained:
            return {"epochs": 3, "lr": 5e-5, "dropout": 0.1}
        return {"epochs": 6, "lr": 2e-3, "dropout": 0.5}

    def __post_init__(self) -> None:
        filled = self.defaults()
        for each in fields(self):
            if each.name in filled and getattr(self, each.name) is None:
                object.__setattr__(self, each.name, filled[each.name])
        super().__post_init__()
        if not self.is_pretrained:
            check_heads(self, even=self.model == SCRATCH)
