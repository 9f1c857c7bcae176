"""`edit`: change the attention of any PyTorch model while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headwise.call import AttentionCall
from headwise.capture.functions import recogniser_here
from headwise.capture.generating import Generating
from headwise.capture.inside import following
from headwise.capture.modules import Modules
from headwise.edits.edit import Edit
from headwise.edits.editor import Editor, Planned
from headwise.edits.inputs import Inputs
from headwise.edits.naming import Naming
from headwise.errors import ArgumentError, DtypeError
from headwise.functional import editing
from headwise.kernels import make_plan, reference
from headwise.records.names import check_choice, select


def edit(model: nn.Module, edits: Edit | Sequence[Edit], *, tokens: Any = None) -> Editing:
    """Change the attention that a model computes inside this context.

        from headwise import edits

        with headwise.edit(model, [edits.ablate("layers.5", heads=[1, 7]),
                                   edits.block("*", queries="it", keys="animal")], tokens=tokenizer) as changed:
            model(**inputs)                    # or model.generate(...)
        print(changed.emptied)

    An edit changes a call (one attention computation) before its kernel runs, or the output of the call: see
    `headwise.edits`. Edits are applied in the order of the list; masks and biases are combined. With edits that are
    masks or biases, or that concern whole heads, attention stays on fused kernels. Attention that a model writes out as
    matmul, softmax, matmul is recognised only at the second product: then its output is replaced, and the weights that
    the model returns are the edited weights. Gradients flow through edits. The model itself is not changed, and when
    the context ends, also by an exception, no trace of the edits remains. The edits apply to the computations of this
    thread, task or generator, and of the threads and jobs that it starts.

    `headwise.watch` and `edit` can be nested, in either order: records show the edited calls.

    Args:
        model: any module. Its modules' paths are the names of the layers, as for `watch`.
        edits: one edit, or a list of edits.
        tokens: needed if an edit selects positions by text: a tokenizer of transformers, which decodes the ids that the
            model gets; the tokenizer's output for this input; a list of token texts for each example; or {"source":
            ..., "target": ...} for an encoder-decoder.

    Raises:
        DtypeError, ArgumentError: an argument that makes no sense; the message names it. ArgumentError also at the end
            of the context, if an edit was never applied (not if the context ends by another exception).
        EditRefused: inside the context, when a layer runs that an edit selects and that cannot be edited.
    """
    found: list[Any] = list(edits) if isinstance(edits, (list, tuple)) else [edits]
    for each in found:
        if not isinstance(each, Edit):
            raise DtypeError(
                f"edit: expected edits, such as headwise.edits.ablate(...). Received: {type(each).__name__}"
            )
    if not found:
        raise ArgumentError("edit: expected at least one edit. Received: edits=[]")
    if not isinstance(model, nn.Module):
        hint = ": pass its .model" if isinstance(getattr(model, "model", None), nn.Module) else ""
        raise DtypeError(f"edit: expected a torch.nn.Module. Received: {type(model).__name__}{hint}")
    return Editing(model, found, tokens)


class Editing:
    """The context that `edit` returns. `with edit(...) as changed` gives this object, which tells what was edited."""

    def __init__(self, model: nn.Module, edits: Sequence[Edit], tokens: Any) -> None:
        self._model, self._edits, self._naming = model, edits, Naming(tokens)
        self._stack: contextlib.ExitStack | None = None
        self._editor: Editor | None = None

    @property
    def emptied(self) -> int:
        """The number of queries left without any key, over all examples (and over heads, if their masks differ)."""
        return 0 if self._editor is None else self._editor.emptied

    @property
    def sites(self) -> list[str]:
        """The paths of the layers that were edited so far."""
        if self._editor is None:
            return []
        wanted = [part for each in self._edits for part in check_choice(each.where)]
        return select(self._editor.sites, wanted)[0]

    def plan(self, *args: Any, **kwargs: Any) -> str:
        """Run the model once with these inputs, without gradients, and describe the edits as a text.

        Each line has an edited layer, its edits, its kernel, and the estimated time relative to the unedited layer.
        """
        if self._editor is None:
            raise ArgumentError("edit: plan(...) is asked inside the context: with headwise.edit(...) as changed")
        plans: list[Planned] = []
        self._editor.plans = plans
        try:
            with torch.no_grad():
                self._model(*args, **kwargs)
        finally:
            self._editor.plans = None
        return "\n".join(f"{name}: {_planned(before, after, edits)}" for name, before, after, edits in plans)

    def __enter__(self) -> Editing:
        if self._stack is not None:
            raise ArgumentError("edit: this context is entered already; make another with headwise.edit(...)")
        inputs = Inputs(self._model, Generating())
        editor = Editor(Modules(self._model), self._edits, self._naming, inputs)
        editor.check_closed()
        with contextlib.ExitStack() as stack:
            stack.enter_context(inputs.reading())
            for module in self._model.modules():
                stack.callback(module.register_forward_hook(_rewritten).remove)
            stack.callback(self._model.register_forward_hook(_forget, always_call=True).remove)
            stack.enter_context(following(editor))
            stack.enter_context(editing(editor))
            self._stack = stack.pop_all()
        self._editor = editor
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        if kind is None and self._editor is not None:
            self._editor.check()


def _rewritten(module: nn.Module, args: Any, out: Any) -> Any:
    """Replace the weights that a module returns by the edited weights (a forward hook)."""
    recogniser = recogniser_here()
    if recogniser is None or not recogniser.rewriting:
        return None
    with torch._C.DisableTorchFunction():
        return recogniser.rewriting.within(out)


def _forget(*_: Any) -> None:
    """Forget the recorded weights when the model has returned (a forward hook)."""
    recogniser = recogniser_here()
    if recogniser is not None:
        recogniser.rewriting.forget()


def _planned(original: AttentionCall, call: AttentionCall, edits: Sequence[Edit]) -> str:
    names = ", ".join(each.name for each in edits)
    if all(each.of_output for each in edits):
        return f"{names}; the model's own kernel"
    plain, by_rows = make_plan(original).cost.time, [each.name for each in edits if each.needs_weights]
    if by_rows:
        kernel, time = f"by rows, for {', '.join(by_rows)}", reference.cost(call).time
    else:
        plan = make_plan(call)
        kernel, time = plan.kernel, plan.cost.time
    return f"{names}; {kernel}, about {time / plain if plain else 1.0:.2g} × the time"
