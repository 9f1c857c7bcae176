"""What can be chosen where an encoder reads text: a checkpoint, or a small one from scratch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headwise.tasks.options.train import TrainOptions, option

SCRATCH = "scratch"


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(TrainOptions):
    """Fine-tuning and training from scratch each have defaults of their own, which fill in what is not chosen.

    Raises:
        ArgumentError, DtypeError: as of `TrainOptions`.
    """

    model: str | None = option(
        None,
        'A BERT to fine-tune: hub id, folder, or a run that has one; or "scratch": a small one. Default: MiniLM, of '
        "the extra demo.",
    )
    max_length: int | None = option(None, "Tokens of an input at most. Default: what the model can read.", least=8)
    dim: int = option(64, "From scratch: the width of the model.", least=8)
    layers: int = option(1, "From scratch: layers.", least=1)
    heads: int = option(2, "From scratch: heads of each.", least=1)
    vocab_size: int = option(8000, "From scratch: subwords that are learned from the data, at most.", least=100)
    lowercase: bool = option(True, "From scratch: whether upper and lower case are one.")
    new_characters: bool = option(True, "Add characters of the data that a checkpoint does not know to its vocabulary.")
    epochs: int = option(None, "How often the data are read. Default: 3, from scratch 6.", least=1)
    lr: float = option(None, "The highest learning rate. Default: 5e-5, from scratch 2e-3.", least=0)
    dropout: float = option(None, "Dropout of the model, in training. Default: 0.1, from scratch 0.5.", least=0)
    batch_size: int | None = option(32, "Examples in a batch at most.", least=1)

    @property
    def is_pretrained(self) -> bool:
        """Whether the model begins with a checkpoint's weights."""
        return self.model != SCRATCH

    def defaults(self) -> dict[str, float]:
        """What fills in the options that were not chosen."""
        if self.is_pretrained:
            return {"epochs": 3, "lr": 5e-5, "dropout": 0.1}
        return {"epochs": 6, "lr": 2e-3, "dropout": 0.5}

    def __post_init__(self) -> None:
        filled = self.defaults()
        for each in fields(self):
            if each.name in filled and getattr(self, each.name) is None:
                object.__setattr__(self, each.name, filled[each.name])
        super().__post_init__()
