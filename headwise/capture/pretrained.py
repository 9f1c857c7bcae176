"""Loads models with transformers, from a folder or by name from the hub, ready to read a text inside `watch`.

transformers is imported here and nowhere else in the package, and only when a model is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, CheckpointError, HeadwiseError
from headwise.images import read_image
from headwise.language import Sentence
from headwise.text import Tokenizer, Tokens, as_tokens

_SPACES = ("\u0120", "\u2581")  # how byte-level BPE and SentencePiece write a space before a word
PADDING = "[PAD]"  # the label of the positions that pad a shorter text


@dataclass(frozen=True)
class Pretrained:
    """A language model in eval mode, with its tokenizer."""

    name: str
    model: nn.Module
    encode: Callable[[str, int | None], Tokens]  #: (text, at most so many tokens) -> tokens
    max_length: int | None = None  #: how many tokens it reads at most; None = not known
    pad_id: int = 0
    writes_apart: bool = False  #: an encoder-decoder: it generates another sequence than the one it reads
    continues: bool = False  #: a decoder: it reads on from its cache
    missing: tuple[str, ...] = ()  #: parameters that the checkpoint lacks; their values are random

    @property
    def device(self) -> torch.device:
        """The device of the model, on which its token ids must be."""
        return _device(self.model)

    def read(self, tokens: Sequence[Tokens]) -> list[Tokens]:
        """Run the model on texts, as one batch. Returns the tokens of each text, padded to the same length."""
        tokens, ids, real = _batch(tokens, self.pad_id, "right", self.device)
        with torch.no_grad(), _explained(f"{self.name} does not run on a text alone"):
            self.model(ids) if bool(real.all()) else self.model(ids, attention_mask=real)
        return tokens

    def read_on(self, tokens: Tokens, size: int, progress: Callable[[], object]) -> None:
        """Run the model on one text; a decoder reads `size` tokens at a time, with a cache.

        `progress` is called after each part. Memory grows only with the cache. Models that are not decoders read the
        whole text at once.
        """
        if not self.continues:
            self.read([tokens])
            return
        cache = None
        with torch.no_grad(), _explained(f"{self.name} does not run on a text in pieces"):
            for part in torch.tensor([tokens.ids], device=self.device).split(size, dim=1):
                cache = self.model(part, past_key_values=cache, use_cache=True).past_key_values
                progress()

    def generate(self, tokens: Sequence[Tokens], count: int, progress: Callable[[], object]) -> dict[str, Any]:
        """Generate at most `count` tokens after each text, greedily; `progress` is called once for each token.

        Returns a value for `Seen.tokens`: all tokens that the model read. The last generated token is not among them.
        """
        side: Literal["left", "right"] = "right" if self.writes_apart else "left"
        tokens, ids, real = _batch(tokens, self.pad_id, side, self.device)

        def one_more(*_: object) -> None:  # each forward pass gives a token
            progress()

        what = f"{self.name} does not run on a text alone"
        with torch.no_grad(), _explained(what), _quiet(), self.model.register_forward_pre_hook(one_more):
            tokenizer = _auto_tokenizer(self.name)
            out: Tensor = self.model.generate(  # type: ignore[operator]
                ids,
                attention_mask=real,
                max_new_tokens=count,
                do_sample=False,
                num_beams=1,
                pad_token_id=self.pad_id,
                return_dict_in_generate=False,
            )
        rows = out[:, :-1].tolist()
        named = as_tokens([_names(tokenizer, row) for row in rows])
        written = [dataclasses.replace(each, ids=tuple(row)) for each, row in zip(named, rows, strict=True)]
        if self.writes_apart:
            return {"source": tokens, "target": written}
        return {"target": [_continued(*each) for each in zip(tokens, written, strict=True)]}


@dataclass(frozen=True)
class Pictured:
    """A model that reads images, in eval mode, with its image processor."""

    name: str
    model: nn.Module
    processor: Any
    missing: tuple[str, ...] = ()  #: parameters that the checkpoint lacks; their values are random

    def read(self, path: Path) -> None:
        """Run the model on the image in this file, upright. FileError if it cannot be read."""
        colours = read_image(path).convert("RGB")
        with torch.no_grad(), _explained(f"{self.name} does not run on an image alone"):
            pixels = self.processor(images=colours, return_tensors="pt")["pixel_values"]
            self.model(pixel_values=pixels.to(_device(self.model)))


def is_available() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def load_pretrained(name: str, *, generates: bool = False, dtype: torch.dtype | None = None) -> Pretrained:
    """Load a model and its tokenizer with transformers, to torch's default device.

    Args:
        name: a folder with config.json, weights and a tokenizer, or the name of a model on the Hugging Face hub, as
            `headwise.models.checkpoint.located` gives it.
        generates: load the model with its language-model head, so that it can generate.
        dtype: the dtype of the weights; None = the dtype of the checkpoint.

    Raises:
        ArgumentError: transformers is not installed.
        CheckpointError: the model is missing or damaged, or cannot generate.
    """
    config = _config(name)
    import transformers

    with _explained(f"cannot load {name}"), _quiet():
        apart = bool(getattr(config, "is_encoder_decoder", False))
        if apart and not generates:
            raise CheckpointError(
                f"{name} reads one sequence and writes another. Give the number of tokens to generate (--generate N)"
            )
        if generates:
            _check_generates(name, config)
        with_head = transformers.AutoModelForSeq2SeqLM if apart else transformers.AutoModelForCausalLM
        kind: Any = with_head if generates else transformers.AutoModel
        model, missing = _loaded(kind, name, config, "auto" if dtype is None else dtype)
        if generates and missing:
            raise CheckpointError(f"{name} cannot generate: the checkpoint has no {', '.join(missing[:3])}")
        if not generates and hasattr(config, "use_cache"):
            model.config.use_cache = False
        pad_id = getattr(config, "pad_token_id", None)
        return Pretrained(
            name=name,
            model=model.eval(),
            encode=_encoder(name, config.model_type),
            max_length=_longest(model, config),
            pad_id=pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0,
            writes_apart=apart,
            continues=not apart and _decodes(config),
            missing=missing,
        )


def what_it_reads(name: str) -> Literal["texts", "images", "sound"]:
    """Return what kind of input a model reads, by its configuration. Errors as in `load_pretrained`."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config = _config(name)
    with _explained(f"cannot load {name}"), _quiet():
        first = getattr(MODEL_MAPPING[type(config)], "main_input_name", "input_ids")
    if first == "pixel_values" and getattr(config, "text_config", None) is None:
        return "images"
    return "sound" if first in ("input_features", "input_values") else "texts"


def writes_apart(name: str) -> bool:
    """Whether a model is an encoder-decoder, by its configuration. Errors as in `load_pretrained`."""
    return bool(getattr(_config(name), "is_encoder_decoder", False))


def generates(name: str) -> bool:
    """Whether a model is a causal language model, by its configuration. Errors as in `load_pretrained`."""
    return _decodes(_config(name)) and not writes_apart(name)


def _config(name: str) -> Any:
    if not is_available():
        told = Sentence('{name}: loading it needs transformers. Run pip install "headwise[transformers]"')
        raise ArgumentError(told.format(name=name))
    import transformers

    with _explained(f"cannot load {name}"), _quiet():
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)


def load_pictured(name: str) -> Pictured:
    """Load a model that reads images, and its image processor, on the CPU.

    Of a model for texts and images, only the part for images is kept.

    Raises:
        ArgumentError: transformers is not installed, or the model reads no images.
        CheckpointError: the model or its image processor is missing or damaged.
    """
    config = _config(name)
    import transformers

    if what_it_reads(name) != "images" and getattr(config, "vision_config", None) is None:
        raise ArgumentError(f"{name}: a {config.model_type} model reads no images. Leave --image out and give a TEXT")
    with _explained(f"cannot load the image processor of {name}"), _quiet():
        processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    with _explained(f"cannot load {name}"), _quiet():
        model, missing = _loaded(transformers.AutoModel, name, config, "auto")
    return Pictured(name, getattr(model, "vision_model", model).eval(), processor, missing)


def load_pieces(name: str) -> Callable[[int], str]:
    """Return a function that gives the text of a token id of a model, with the space before a word.

    For a token that is only part of a character, the function gives the name that the tokenizer uses.
    """
    with _explained(f"cannot load the tokenizer of {name}"), _quiet():
        tokenizer = _auto_tokenizer(name)

    def piece(token: int) -> str:
        (known,) = _names(tokenizer, [token])
        text: str = tokenizer.decode([token])
        if not text or "\ufffd" in text:
            return known
        return f" {text}" if known[:1] in _SPACES and not text[:1].isspace() else text

    return piece


def _batch(
    tokens: Sequence[Tokens], pad_id: int, side: Literal["left", "right"], device: torch.device
) -> tuple[list[Tokens], Tensor, Tensor]:
    """Pad the texts to the longest; return them, their ids [B, S], and a mask [B, S]: 1 for tokens, 0 for padding."""
    longest = max(len(each.ids) for each in tokens)

    def fill(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        filling = (value,) * (longest - len(values))
        return (*filling, *values) if side == "left" else (*values, *filling)

    filled = [
        dataclasses.replace(
            each,
            ids=fill(each.ids, pad_id),
            labels=fill(each.labels, PADDING),
            offsets=fill(each.offsets, (0, 0)),
            special=fill(each.special, True),
            unknown=fill(each.unknown, False) if each.unknown else (),
            word_ids=fill(each.word_ids, None) if each.word_ids else (),
        )
        for each in tokens
    ]
    real = torch.tensor([fill((1,) * len(each.ids), 0) for each in tokens], device=device)
    return filled, torch.tensor([each.ids for each in filled], device=device), real


def _device(model: nn.Module) -> torch.device:
    """Return the device of the first parameter: transformers loads a model to torch's default device."""
    return next(model.parameters()).device


def _continued(prompt: Tokens, whole: Tokens) -> Tokens:
    """Return the prompt with its own text, and after it the rest of `whole`, whose tokens have only names."""
    size = len(prompt.ids)
    added = whole.offsets[size:]
    begin = next((start for start, end in added if end), len(whole.text))
    shift = len(prompt.text) - begin
    last, last_of_whole = (
        max((word for word in words[:size] if word is not None), default=-1)
        for words in (prompt.word_ids, whole.word_ids)
    )
    words = [None if word is None else word - last_of_whole + last for word in whole.word_ids[size:]]
    return dataclasses.replace(
        prompt,
        ids=whole.ids,
        labels=prompt.labels + whole.labels[size:],
        offsets=(*prompt.offsets, *((start + shift, end + shift) if end else (0, 0) for start, end in added)),
        special=prompt.special + whole.special[size:],
        text=prompt.text + whole.text[begin:],
        unknown=prompt.unknown + whole.unknown[size:],
        word_ids=(*prompt.word_ids, *words),
    )


# --- Loading ----------------------------------------------------------------------------------------------------------


def _loaded(kind: Any, name: str, config: Any, dtype: Any) -> tuple[Any, tuple[str, ...]]:
    """Load a model: (the model, the names of the parameters that its checkpoint lacks, except those of a pooler).

    A pooler only reads the output of attention. CheckpointError if the checkpoint belongs to another model: then all
    parameters would be random.
    """
    model, info = kind.from_pretrained(
        name, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True
    )
    missing = tuple(sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")))
    if {path for path, _ in model.named_parameters()} <= set(missing):
        raise CheckpointError(
            f"{name}: the checkpoint has no weights of a {config.model_type} model. Check its config.json"
        )
    return model, missing


def _check_generates(name: str, config: Any) -> None:
    """Raise CheckpointError for an encoder: some can be loaded with a head that generates, but generate nonsense."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    if config.model_type in ENCODERS and not (_decodes(config) or getattr(config, "is_encoder_decoder", False)):
        raise CheckpointError(f"{name} cannot generate: a {config.model_type} model is an encoder")


def _decodes(config: Any) -> bool:
    """Whether the model is a decoder, which attends to the tokens that it has read before."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    is_decoder = bool(getattr(config, "is_decoder", False))
    return is_decoder or (config.model_type in DECODERS and config.model_type not in ENCODERS)


def _encoder(name: str, model_type: str) -> Callable[[str, int | None], Tokens]:
    folder = _tokenizer_folder(name, model_type)
    if folder is not None:
        return Tokenizer.from_pretrained(folder).encode
    tokenizer = _auto_tokenizer(name)
    signs = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    unknown = None if tokenizer.unk_token in signs else tokenizer.unk_token_id  # GPT-2's is the end of a text

    def encode(text: str, max_length: int | None) -> Tokens:
        whole = tokenizer(text, verbose=False)["input_ids"]
        encoding = tokenizer(text, verbose=False, truncation=max_length is not None, max_length=max_length)
        ids = encoding["input_ids"]
        (tokens,) = (
            as_tokens(encoding, text) if tokenizer.is_fast else as_tokens([tokenizer.convert_ids_to_tokens(ids)])
        )
        flags = tuple(id_ == unknown for id_ in ids)
        return dataclasses.replace(tokens, ids=tuple(ids), unknown=flags, cut=len(whole) - len(ids))

    return encode


_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")


def _tokenizer_folder(name: str, model_type: str) -> Path | None:
    """Return the folder of a tokenizer that headwise can read, to show text that the tokenizer hides; else None."""
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


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return the names of tokens. A vocabulary that was padded to a round number has ids without a name."""
    found = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    return [f"<|{id_}|>" if token is None else token for id_, token in found]


def _auto_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def _longest(model: nn.Module, config: Any) -> int | None:
    """Return how many tokens the model can read at most; None if that is not known."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text_config, "max_position_embeddings", None)
    for path, module in model.named_modules():
        # RoBERTa and similar models count positions from the id of the padding.
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            longest = module.num_embeddings - module.padding_idx - 1
    return longest if isinstance(longest, int) and longest > 0 else None


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Return a context in which every exception becomes a CheckpointError of one line that says what failed."""
    try:
        yield
    except HeadwiseError:
        raise
    except Exception as cause:  # other libraries and foreign models may raise anything
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        raise CheckpointError(f"{what}: {lines[0] if lines else type(cause).__name__}") from cause


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Return a context in which nothing is logged and no progress bar drawn: the caller reports what matters."""
    from transformers.utils import logging as theirs

    disabled, bars = logging.root.manager.disable, theirs.is_progress_bar_enabled()
    logging.disable(logging.ERROR)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if bars:
            theirs.enable_progress_bar()
