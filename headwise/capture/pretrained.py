"""Foreign models by name: what transformers loads from a folder or from the hub, ready to read a text under a watch.

transformers is imported here and nowhere else in the package, and only when a model is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, HeadwiseError
from headwise.text import Tokenizer, Tokens, as_tokens

PADDING = "[PAD]"  # what the positions that fill up a shorter text are called


@dataclass(frozen=True)
class Pretrained:
    """A model in eval mode, with the tokenizer that belongs to it."""

    name: str
    model: nn.Module
    encode: Callable[[str, int | None], Tokens]  #: a text, at most so many tokens of it
    max_length: int | None = None  #: how many tokens it reads at most; None = no bound is known
    pad_id: int = 0
    names: Callable[[Sequence[int]], list[str]] | None = None  #: of tokens; None for a model that does not generate
    writes_apart: bool = False  #: what it generates is another sequence than what it reads (an encoder-decoder)
    missing: tuple[str, ...] = ()  #: parameters that the checkpoint does not have, and that are random now

    def read(self, tokens: Sequence[Tokens]) -> list[Tokens]:
        """Run the model over texts, as one batch. Returns the tokens of each as the model saw them, padded alike."""
        tokens, ids, mask = _batch(tokens, self.pad_id, "right")
        with torch.no_grad(), self._explained():
            self.model(ids) if mask is None else self.model(ids, attention_mask=mask)
        return tokens

    def generate(self, tokens: Sequence[Tokens], count: int, progress: Callable[[], object]) -> dict[str, Any]:
        """Let the model go on after each text, greedily, for at most `count` tokens; `progress` hears of each.

        Returns what `Seen.tokens` takes: all tokens that were read, so all but the last that was generated.
        """
        assert self.names is not None
        tokens, ids, mask = _batch(tokens, self.pad_id, "right" if self.writes_apart else "left")
        with torch.no_grad(), self._explained(), _quiet():
            out: Tensor = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=torch.ones_like(ids) if mask is None else mask,
                max_new_tokens=count,
                do_sample=False,
                num_beams=1,
                pad_token_id=self.pad_id,
                return_dict_in_generate=False,
                streamer=_Streamer(progress),
            )
        rows = out[:, :-1].tolist()
        written = [
            dataclasses.replace(each, ids=tuple(row))
            for each, row in zip(as_tokens([self.names(row) for row in rows]), rows, strict=True)
        ]
        if self.writes_apart:
            return {"source": tokens, "target": written}
        return {"target": [_continued(*each) for each in zip(tokens, written, strict=True)]}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except HeadwiseError:
            raise
        except Exception as cause:  # whatever a model of somebody else's may raise
            raise CheckpointError(f"{self.name} does not run on a text alone: {_first_line(cause)}") from cause


def is_available() -> bool:
    """Whether transformers is installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


def load_pretrained(name: str, *, generates: bool = False, dtype: torch.dtype | None = None) -> Pretrained:
    """Load a model and its tokenizer with transformers, on the CPU.

    Args:
        name: a folder with config.json, weights and a tokenizer, or the name of a model on the Hugging Face hub.
        generates: load the head that generates too.
        dtype: of the weights; None = as the checkpoint has them.

    Raises:
        ArgumentError: transformers is not installed.
        CheckpointError: there is no such model, it is damaged, or it cannot do what is asked.
    """
    try:
        import transformers
    except ImportError as cause:
        raise ArgumentError(
            f'{name}: models like this one are loaded with transformers: pip install "headwise[transformers]"'
        ) from cause
    name = _folder_or_id(name)
    with _loading(name), _quiet():
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        apart = bool(getattr(config, "is_encoder_decoder", False))
        if apart and not generates:
            raise CheckpointError(
                f"{name} reads one sequence and writes another: say how many tokens to generate (--generate N)"
            )
        if generates:
            _check_generates(name, config)
        kinds = {
            (False, False): "AutoModel",
            (True, False): "AutoModelForCausalLM",
            (True, True): "AutoModelForSeq2SeqLM",
        }
        model, info = getattr(transformers, kinds[generates, apart]).from_pretrained(
            name,
            config=config,
            dtype="auto" if dtype is None else dtype,
            trust_remote_code=False,
            output_loading_info=True,
        )
        missing = tuple(sorted(info["missing_keys"]))
        if generates and missing:
            raise CheckpointError(f"{name} cannot generate: the checkpoint has no {', '.join(missing[:3])}")
        if not generates and hasattr(config, "use_cache"):
            model.config.use_cache = False
        pad_id = getattr(config, "pad_token_id", None)
        if not isinstance(pad_id, int) or pad_id < 0:
            pad_id = 0
        return Pretrained(
            name=name,
            model=model.eval(),
            encode=_encoder(name, config.model_type),
            max_length=_longest(model, config),
            pad_id=pad_id,
            names=_namer(name) if generates else None,
            writes_apart=apart,
            missing=missing,
        )


def _batch(
    tokens: Sequence[Tokens], pad_id: int, side: Literal["left", "right"]
) -> tuple[list[Tokens], Tensor, Tensor | None]:
    """The texts filled up to the longest, their ids [B, S], and 1 for tokens, 0 for padding [B, S] (None: all 1)."""
    longest = max(len(each.ids) for each in tokens)
    missing = [longest - len(each.ids) for each in tokens]
    filled = [_filled_up(each, count, pad_id, side) for each, count in zip(tokens, missing, strict=True)]
    ids = torch.tensor([each.ids for each in filled])
    if not any(missing):
        return filled, ids, None
    place = torch.arange(longest) if side == "left" else torch.arange(longest).flip(0)
    return filled, ids, (place >= torch.tensor(missing)[:, None]).long()


def _filled_up(tokens: Tokens, count: int, pad_id: int, side: Literal["left", "right"]) -> Tokens:
    def fill(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        filling = (value,) * count
        return (*filling, *values) if side == "left" else (*values, *filling)

    return dataclasses.replace(
        tokens,
        ids=fill(tokens.ids, pad_id),
        labels=fill(tokens.labels, PADDING),
        offsets=fill(tokens.offsets, (0, 0)),
        special=fill(tokens.special, True),
        unknown=fill(tokens.unknown, False) if tokens.unknown else (),
        word_ids=fill(tokens.word_ids, None) if tokens.word_ids else (),
    )


def _continued(prompt: Tokens, whole: Tokens) -> Tokens:
    """The prompt as it was read, which knows its text, then the rest of `whole`, which only knows names."""
    size = len(prompt.ids)
    added = [span for span in whole.offsets[size:] if span != (0, 0)]
    begin = added[0][0] if added else len(whole.text)
    shift = len(prompt.text) - begin
    last, last_of_whole = (
        next((word for word in reversed(words[:size]) if word is not None), -1)
        for words in (prompt.word_ids, whole.word_ids)
    )
    return Tokens(
        ids=whole.ids,
        labels=prompt.labels + whole.labels[size:],
        offsets=prompt.offsets
        + tuple((0, 0) if span == (0, 0) else (span[0] + shift, span[1] + shift) for span in whole.offsets[size:]),
        special=prompt.special + whole.special[size:],
        text=prompt.text + whole.text[begin:],
        cut=prompt.cut,
        unknown=prompt.unknown + whole.unknown[size:],
        word_ids=prompt.word_ids
        + tuple(None if word is None else word - last_of_whole + last for word in whole.word_ids[size:]),
    )


class _Streamer:
    """What `generate` tells of each token: first of the prompt, then of one token a text at a time."""

    def __init__(self, progress: Callable[[], object]) -> None:
        self._progress, self._prompt = progress, True

    def put(self, value: Tensor) -> None:
        if not self._prompt:
            self._progress()
        self._prompt = False

    def end(self) -> None:
        pass


# --- Loading ----------------------------------------------------------------------------------------------------------


def _folder_or_id(name: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    try:
        validate_repo_id(name)
        known = not folder.exists()
    except HFValidationError:
        known = False
    if not known:
        raise CheckpointError(f"no folder {name}: expected one with config.json, weights and a tokenizer, or a hub id")
    return name


def _check_generates(name: str, config: Any) -> None:
    """Some encoders can be loaded with a head that generates, and then write nonsense."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    if config.model_type in ENCODERS and not decodes:
        raise CheckpointError(f"{name} cannot generate: a {config.model_type} reads its whole text at once")


def _encoder(name: str, model_type: str) -> Callable[[str, int | None], Tokens]:
    folder = _tokenizer_folder(name, model_type)
    if folder is not None:
        return Tokenizer.from_pretrained(folder).encode
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)

    def encode(text: str, max_length: int | None) -> Tokens:
        ids = tokenizer(text, verbose=False)["input_ids"]
        too_many = max_length is not None and len(ids) > max_length
        encoding = tokenizer(
            text, verbose=False, **({"truncation": True, "max_length": max_length} if too_many else {})
        )
        kept = encoding["input_ids"]
        if tokenizer.is_fast:
            (tokens,) = as_tokens(encoding, text)
        else:
            (tokens,) = as_tokens([tokenizer.convert_ids_to_tokens(kept)])
        return dataclasses.replace(tokens, ids=tuple(kept), cut=len(ids) - len(kept))

    return encode


_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")


def _tokenizer_folder(name: str, model_type: str) -> Path | None:
    """The local folder of the tokenizer, where headwise can read it; its labels know what the tokenizer hid."""
    folder = Path(name)
    if folder.is_dir():
        known = (folder / "tokenizer.json").is_file() or (model_type == "bert" and (folder / "vocab.txt").is_file())
        if not known and not any(file for kind in _TOKENIZER_FILES for file in folder.glob(kind)):
            raise CheckpointError(
                f"no tokenizer in {folder}: expected tokenizer.json or the files that transformers reads"
            )
        return folder if known else None
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(huggingface_hub.hf_hub_download(name, "tokenizer.json")).parent
    except EntryNotFoundError:
        return None


def _namer(name: str) -> Callable[[Sequence[int]], list[str]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)

    def names(ids: Sequence[int]) -> list[str]:
        # A vocabulary that was filled up to a round number has ids without a name.
        found = zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)
        return [f"<|{id_}|>" if token is None else token for id_, token in found]

    return names


def _longest(model: nn.Module, config: Any) -> int | None:
    """How many tokens the model reads at most, as far as it says so."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text_config, "max_position_embeddings", None)
    for path, module in model.named_modules():
        # RoBERTa and its kin count positions from the padding's on.
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            longest = module.num_embeddings - module.padding_idx - 1
    return longest if isinstance(longest, int) and longest > 0 else None


@contextlib.contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except HeadwiseError:
        raise
    except Exception as cause:  # missing, damaged, of an unknown kind, offline: each library has its own
        raise CheckpointError(f"cannot load {name}: {_first_line(cause)}") from cause


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, transformers does not write to the terminal: what matters is said by whoever loads the model."""
    from transformers.utils import logging as theirs

    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], theirs.is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            theirs.enable_progress_bar()
