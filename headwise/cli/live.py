"""Loads the model of a page on which texts are typed: `headwise view --serve --model`, and `view --with-model`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.files import NamedText, read_texts
from headwise.cli.layers import LayerRange, choose_layers
from headwise.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from headwise.models.bert import Bert
    from headwise.text import Tokenizer
    from headwise.viewer.carried import Carried, Dtype
    from headwise.viewer.live import Live, LiveModel

PROMPT = "When Mary and John went to the store, John gave a drink to"

NO_HEAD = (
    "A BERT encodes a text: it predicts no next token. Its attention shows what the edits change. Probabilities are "
    "for causal language models, such as --model gpt2."
)


def read_prompt(texts: Sequence[str], files: Sequence[Path]) -> NamedText:
    """Return the first prompt of a page: the given text, else an example. Raises ArgumentError for several texts."""
    if not texts and not files:
        return NamedText("TEXT", PROMPT, PROMPT)
    first, *more = read_texts(texts, files)
    if more:
        raise ArgumentError(
            "the page of a model shows one text at a time, and others are typed on it. Received: {value} texts, "
            "{first!r} and others. Give one",
            value=1 + len(more),
            first=first.title,
        )
    return first


def is_bert(model: str) -> bool:
    """Return whether a Hugging Face id or folder is a BERT or similar encoder, which headwise loads by itself."""
    from headwise.models.checkpoint import located, read_config
    from headwise.models.families import family_of

    name = located(model)
    folder = Path(name)
    if not folder.is_dir():
        import huggingface_hub

        folder = Path(huggingface_hub.hf_hub_download(name, "config.json")).parent
    config = read_config(folder)
    return family_of(config) is not None and not config.get("is_decoder")


def predicts(model: str) -> bool:
    """Return whether a Hugging Face id or folder is a causal language model, which predicts next tokens."""
    if is_bert(model):
        return False
    from headwise.capture.pretrained import generates
    from headwise.models.checkpoint import located

    return generates(located(model))


def make_title(model: str) -> str:
    """Return the name of a model for its page: its id, or the name of its folder."""
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def live_causal(model: str, prompt: NamedText, ranges: Sequence[LayerRange] | None) -> Live:
    """Load a causal language model by its id or folder, and return the model of a live page."""
    from headwise.capture.pretrained import load_pieces, load_pretrained
    from headwise.models.checkpoint import located
    from headwise.viewer.live import LiveModel

    name = located(model)
    loaded = load_pretrained(name, generates=True)
    if loaded.writes_apart:
        raise CheckpointError(
            "{name} reads one sequence and writes another: --serve takes a causal language model. Record it with "
            "headwise watch --generate N, then show the file: headwise view run.hw --serve",
            name=name,
        )

    def run(ids: Tensor) -> Tensor | None:
        logits: Tensor = loaded.model(ids, use_cache=False).logits
        return logits

    return _live(
        LiveModel(
            loaded.model,
            lambda text: loaded.encode(text, None),
            run,
            load_pieces(name),
            loaded.max_length,
        ),
        make_title(name),
        prompt,
        ranges,
    )


def live_bert(
    bert: Bert, tokenizer: Tokenizer, prompt: NamedText, ranges: Sequence[LayerRange] | None, *, title: str = "BERT"
) -> Live:
    """Return the model of a live page for a BERT: it shows how attention changes, and predicts no tokens."""
    from headwise.viewer.live import LiveModel

    def run(ids: Tensor) -> None:
        bert(ids)

    model = LiveModel(bert, tokenizer.encode, run, most_tokens=bert.config.max_positions, why=NO_HEAD)
    return _live(model, title, prompt, ranges)


def carry_model(run: Path | None, model: str | None, prompt: str | None, dtype: Dtype) -> Carried:
    """Collect what a page needs to run the model of a run folder, a BERT by its id or folder, or MiniLM.

    `prompt`: the text with which the page opens; None = an example.

    Raises:
        ArgumentError: a model of another kind.
    """
    from headwise import tasks
    from headwise.models.bert import Bert
    from headwise.models.checkpoint import default_model, resolve
    from headwise.text import Tokenizer
    from headwise.viewer.carried import carry_bert, carry_classifier

    task = None if run is None else tasks.load(run)
    if isinstance(task, tasks.Classify):
        return carry_classifier(task, prompt, dtype)
    if task is not None or (model is not None and not is_bert(model)):
        raise ArgumentError(
            "--with-model: a page can carry a BERT, or a run of headwise train classify. Received: {name}",
            name=task.name if task else model,
        )
    folder = default_model() if model is None else resolve(model)
    return carry_bert(Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder), prompt, dtype)


def _live(model: LiveModel, title: str, prompt: NamedText, ranges: Sequence[LayerRange] | None) -> Live:
    from headwise.viewer.changes import Asked
    from headwise.viewer.live import Live

    live = Live(model, title=title)
    facts = live.facts(Asked(prompt.text))  # also the errors of the prompt, before the server starts
    if ranges is not None:
        layers = {layer["number"] for each in facts["inputs"] for stack in each["stacks"] for layer in stack["layers"]}
        live = Live(model, title=title, layers=set(choose_layers(ranges, len(layers))))
    return live
