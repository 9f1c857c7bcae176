"""A task whose model is computed by ONNX Runtime instead of PyTorch.

The rest of the task (reading, batching, search, scoring) is the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from headwise.errors import CheckpointError, RecordError
from headwise.export.onnx.session import Session
from headwise.export.onnx.steps import CausalSteps, EncoderDecoderSteps
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.models.image_text import Encoded, ImageText
from headwise.models.language_model import CausalLanguageModel, MaskedLanguageModel
from headwise.models.patch_forecaster import CausalPatchForecaster, PatchForecaster
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier
from headwise.tasks.language import Language
from headwise.tasks.task import Task
from headwise.tasks.text.causal_language import Causal
from headwise.tasks.text_to_text import TextToText

Sessions = Mapping[str, Session]


def run_on(task: Task[Any], sessions: Sequence[Session]) -> None:
    """Replace the task's model by these sessions.

    Raises:
        CheckpointError: a graph that the task needs is missing.
    """
    named = {session.name: session for session in sessions}
    kind = next(kind for kind in _KINDS if isinstance(task.model, kind))
    wanted, answer = _KINDS[kind]
    if missing := [name for name in wanted if name not in named]:
        raise CheckpointError(
            f"the export lacks the graph {missing[0]!r}, which the task {task.name} needs. Export it again"
        )
    answer(task, task.model, named)
    _take(task, look=_no_records)
    task.on_torch = False


def _take(owner: nn.Module, **methods: Callable[..., Any]) -> None:
    """Replace methods by functions."""
    for name, method in methods.items():
        setattr(owner, name, method)


def _no_records(inputs: Any) -> NoReturn:
    raise RecordError(
        "look: ONNX Runtime cannot record attention. Load the run folder, headwise.tasks.load(run), or serve it "
        "with backend torch"
    )


def _tokens(ids: Tensor, real: Tensor | None, types: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The three inputs with the defaults of a BERT filled in."""
    return ids, torch.ones_like(ids) if real is None else real, torch.zeros_like(ids) if types is None else types


def _classifier(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    run = sessions["model"].giving("logits")

    def forward(ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> Tensor:
        return run(*_tokens(ids, real, token_type_ids))[0]

    _take(model, forward=forward)


def _reader(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    run = sessions["model"].giving("start_logits", "end_logits")

    def forward(ids: Tensor, real: Tensor | None = None, token_type_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        return run(*_tokens(ids, real, token_type_ids))

    _take(model, forward=forward)


def _masked(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    run = sessions["model"].giving("logits")

    def forward(ids: Tensor, real: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        logits = run(*_tokens(ids, real, None)[:2])[0]
        return logits if at is None else logits[at]

    _take(model, forward=forward)


def _forecaster(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    run = sessions["model"].giving("forecast")

    def forward(context: Tensor) -> Tensor:
        return run(context)[0]

    _take(model, forward=forward)


def _image_text(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    assert isinstance(model, ImageText)
    image = sessions["image"].giving("image_states", "image_vector")
    text = sessions["text"].giving("text_states", "text_vector")
    belongs = sessions["match"].giving("logit", "scale")

    def encode_image(pixels: Tensor) -> Encoded:
        return Encoded(*image(pixels))

    def encode_text(ids: Tensor, real: Tensor | None = None) -> Encoded:
        return Encoded(*text(*_tokens(ids, real, None)[:2]))

    def match(image_states: Tensor, text_states: Tensor, real: Tensor | None = None) -> Tensor:
        real = torch.ones(text_states.shape[:2]) if real is None else real
        return belongs(image_states, text_states, real)[0]

    # The only weight that the task itself reads; its graph returns it for any pair.
    any_image, any_text = (
        torch.zeros([axis if isinstance(axis, int) else 1 for axis in value.axes])
        for value in sessions["match"].inputs[:2]
    )
    scale = belongs(any_image, any_text, torch.ones(1, 1))[1]
    model.log_scale = nn.Parameter(scale.float().log(), requires_grad=False)
    _take(model, encode_image=encode_image, encode_text=encode_text, match=match)


def _encoder_decoder(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    assert isinstance(task, TextToText)
    encoder, decoder = sessions["encoder"], sessions["decoder"]

    def make_steps(model: EncoderDecoder, source_ids: Tensor, source_real: Tensor) -> EncoderDecoderSteps:
        return EncoderDecoderSteps(encoder, decoder, source_ids, source_real)

    def forward(
        source_ids: Tensor, target_ids: Tensor, source_real: Tensor | None = None, *, at: Tensor | None = None
    ) -> Tensor:
        real = torch.ones_like(source_ids, dtype=torch.bool) if source_real is None else source_real
        logits = EncoderDecoderSteps(encoder, decoder, source_ids, real).read(target_ids)
        return logits if at is None else logits.flatten(0, 1)[at]

    task.make_steps = make_steps
    _take(model, forward=forward)


def _causal(task: Task[Any], model: nn.Module, sessions: Sessions) -> None:
    assert isinstance(task, Language)
    assert isinstance(task.objective, Causal)
    decoder = sessions["decoder"]

    def make_steps(model: CausalLanguageModel, begun: Sequence[int]) -> CausalSteps:
        return CausalSteps(decoder, begun)

    def forward(ids: Tensor, real: Tensor | None = None, *, at: Tensor | None = None) -> Tensor:
        # Padding is on the right, where no token attends to it.
        logits = CausalSteps(decoder, ()).read(ids)
        return logits if at is None else logits[at]

    task.objective.make_steps = make_steps
    _take(model, forward=forward)


# Model class of a task -> the graphs it needs, and the function that replaces the model by them.
_KINDS: dict[type[nn.Module], tuple[tuple[str, ...], Callable[[Task[Any], nn.Module, Sessions], None]]] = {
    TextClassifier: (("model",), _classifier),
    SpanReader: (("model",), _reader),
    MaskedLanguageModel: (("model",), _masked),
    PatchForecaster: (("model",), _forecaster),
    CausalPatchForecaster: (("model",), _forecaster),
    ImageText: (("image", "text", "match"), _image_text),
    EncoderDecoder: (("encoder", "decoder"), _encoder_decoder),
    CausalLanguageModel: (("decoder",), _causal),
}
