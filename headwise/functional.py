"""`attention` and `plan`, the entry point to every kernel, and contexts in which functions get calls or edit them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from headwise.call import AttentionCall, Share, make_call, suspend_autocast
from headwise.errors import RecordError
from headwise.kernels import Plan, make_plan, make_site, run_at_once, run_call, site_key
from headwise.masks import Mask
from headwise.options import check_scale
from headwise.parallel import context as parallel
from headwise.parallel.dtensors import attend as of_dtensors
from headwise.parallel.paper import ParallelPlan, planned
from headwise.parallel.placements import is_dtensor
from headwise.quantized import Int8
from headwise.records.record import AttentionRecord
from headwise.scope import Scope, within
from headwise.shapes import check_qkv

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Unpack

    from headwise.options import OptionArguments

    class _Arguments(OptionArguments, total=False):
        mask: Mask | Tensor | None
        kernel: str


Listener = Callable[..., object]  # gets a call, its output, and, if they differ from the call's, the weights used
Editor = Callable[[AttentionCall], "Tensor | None"]  # gets a call, returns another output for it; None = no change


class _Listening(NamedTuple):
    listener: Listener
    traced: bool  # whether it also gets calls that torch.export traces
    outputs: bool  # whether it needs the outputs


_LISTENING: Scope[_Listening] = Scope()
_EDITING: Scope[Editor] = Scope()
_asked: ContextVar[tuple[Editor, ...]] = ContextVar("headwise_editors_asked", default=())
_running: ContextVar[bool] = ContextVar("headwise_running", default=False)


@overload
def attention(
    q: Tensor, k: Tensor | Int8, v: Tensor | Int8, *, record: Literal[False] = False, **more: Unpack[_Arguments]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor | Int8, v: Tensor | Int8, *, record: Literal[True], **more: Unpack[_Arguments]
) -> tuple[Tensor, AttentionRecord]: ...
def attention(
    q: Tensor,
    k: Tensor | Int8,
    v: Tensor | Int8,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    scale: float | None = None,
    softcap: float | Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    kernel: str = "auto",
    record: bool = False,
) -> Tensor | tuple[Tensor, AttentionRecord]:
    """Compute softmax(scale · q kᵀ) v, on the cheapest kernel that supports all arguments. Vaswani et al. 2017, eq. 1.

    Args:
        q: queries [B, H, Q, D].
        k: keys [B, G, K, D]; H is a multiple of G, and query head h reads key head h // (H / G) (Ainslie et al. 2023).
        v: values [B, G, K, E]. k and v may be `Int8`: a call with few queries reads the int8 numbers, any other call
            dequantizes them first.
        mask: which query may attend to which key: a `headwise.masks` mask, or a bool tensor [Q, K], [H, Q, K] or
            [B, H, Q, K], True = may attend. None = all. Causal and window masks align the last query with the last key.
        bias: added to the scores (an additive mask, T5); float, broadcasts to [B, H, Q, K].
        slopes: ALiBi, [H]: the score of query i and key j of head h is lowered by slopes[h] · |i + K - Q - j|, as by
            `alibi_slopes` of flash-attention (Press et al. 2022). No matrix [Q, K] is made for it.
        scale: factor on q kᵀ; None = 1/√D.
        softcap: s becomes softcap · tanh(s / softcap), before bias and slopes (Gemma 2). A tensor of one number may
            require a gradient; then kernel "reference" runs.
        sinks: [H], one logit per head that takes part in the softmax like a key, but has no value (gpt-oss).
        dropout: probability with which this call drops a weight: pass 0.0 when evaluating.
        kernel: "auto", or the name of one kernel, which raises if it cannot run the call. `plan(...)` explains the
            choice.
        record: also return an `AttentionRecord`, from which the weights (before dropout) can be read.

    Returns:
        The output [B, H, Q, E] in q's dtype, or inside torch.autocast in its dtype; with `record=True` the pair
        (output, AttentionRecord). A query that may attend to nothing gets 0, and gradients of 0. NaN in a key or value
        reaches only the queries that may attend to it, with dropout too. Second derivatives need kernel="reference".

    Raises:
        ShapeError, DtypeError, MaskError, ArgumentError: an argument that does not fit; the message names it.
        KernelRefused: the requested kernel cannot run this call.
        ParallelError: processes that share the call do not agree, or DTensors have placements that cannot be computed.
        RecordError: `record=True` inside torch.compile, torch.export or `headwise.edit`.
        ChangedError: in backward, for a large bias that was changed in place after this call.

    The tensors of a mask may be overwritten before backward, as a loop does that reuses its buffers: the gradients are
    those of the mask that this call saw. Only inside torch.utils.checkpoint, which runs this call again, they must not
    change; else backward raises ChangedError (with use_reentrant=False: a reentrant checkpoint cannot notice the
    change).

    torch.compile and torch.export trace the whole call, on the kernels "native", "decode", "sdpa" and "reference". q, k
    and v may be DTensors, uncompiled: split by examples, heads or sequence (docs/distributed.md).
    """
    plain = type(q) is type(k) is type(v) is Tensor or torch.compiler.is_compiling()
    dealt = not plain and any(map(is_dtensor, (q, k, v)))
    without = bias is slopes is softcap is sinks is None and dropout == 0.0
    if without and mask is None and kernel == "auto" and not record and not dealt:
        found = _small(q, k, v, scale)
        if found is not None:
            return found
    options: OptionArguments = {"bias": bias, "slopes": slopes, "scale": scale, "softcap": softcap, "sinks": sinks}
    options["dropout"] = dropout
    here = parallel.current()
    if dealt or here is not None:
        given: dict[str, Any] = {"mask": mask, "kernel": kernel, "record": record, **options}
        given |= {"followed": record or _is_heard(), "edited": bool(editors())}
        if here is None or dealt:
            return of_dtensors(attention, _alone, q, k, v, **given)
        return here.attend(_alone, q, k, v, **given)
    key, site = None, None
    if without and isinstance(mask, Mask):
        key = site_key(q, k, v, scale, kernel)
        if key is not None:
            mask, site = mask.recall(key)
    call = make_call(q, k, v, mask=mask, **options) if site is None else site.call(q, k, v, mask)
    if site is None and torch.compiler.is_compiling():  # compiled code has no records
        if record:
            raise RecordError("record=True: compiled and exported code makes no records. Call it uncompiled")
        out = run_call(call, kernel)
        if not torch.compiler.is_dynamo_compiling():  # torch.export runs Python as it is, once
            for each in _LISTENING.here():
                if each.traced:
                    each.listener(call, out)
        return out
    call = parallel.mark_share(call)
    edited = _edited(call)
    if edited is not None:
        if record:
            raise RecordError(
                "record=True: an edit changes this call. Put headwise.watch(model) around the model instead"
            )
        return edited
    running = _running.set(True)
    try:
        with suspend_autocast(call.q.device):
            if key is not None and site is None:
                site = make_site(call, kernel, mask, key)
            out = run_call(call, kernel) if site is None else site.run(call)
    finally:
        _running.reset(running)
    listening = _LISTENING.here()
    if listening or record:
        call = call.dequantized()
    for each in listening:
        each.listener(call, out)
    return (out, AttentionRecord(call)) if record else out


def _alone(*given: Any, share: Share | None = None, **options: Any) -> Any:
    with parallel.alone(share):
        return attention(*given, **options)


def _is_heard() -> bool:
    return bool(_LISTENING.here() or editors())


def _small(q: Tensor, k: Tensor | Int8, v: Tensor | Int8, scale: float | None) -> Tensor | None:
    """Compute a small call without options, if no listener or editor needs it; return None for any other call."""
    if torch.compiler.is_compiling() or _is_heard() or parallel.current() is not None:
        return None
    if isinstance(k, Int8) or isinstance(v, Int8):
        return None
    check_qkv(q, k, v)
    return run_at_once(q, k, v, check_scale(scale))


@overload
def plan(q: Tensor, k: Tensor | Int8, v: Tensor | Int8, *, mesh: None = None, **more: Unpack[_Arguments]) -> Plan: ...
@overload
def plan(
    q: Tensor, k: Tensor | Int8, v: Tensor | Int8, *, mesh: DeviceMesh, **more: Unpack[_Arguments]
) -> ParallelPlan: ...
def plan(
    q: Tensor,
    k: Tensor | Int8,
    v: Tensor | Int8,
    *,
    mask: Mask | Tensor | None = None,
    kernel: str = "auto",
    mesh: DeviceMesh | None = None,
    **options: Unpack[OptionArguments],
) -> Plan | ParallelPlan:
    """Explain how `attention` would run with these arguments: the kernel, its cost, why not another. Computes nothing.

    The numbers in the tensors do not matter (`torch.empty` will do); their shapes, dtype, device and requires_grad do.
    With a `mesh` of one dimension, the tensors have the shapes of the whole sequence, and the plan is for
    `context_parallel`: rows, cells (pairs of a query and a key), keys and bytes of each process, and how long each
    process waits.
    """
    if mesh is not None:
        return planned(make_call(q, k, v, mask=mask, **options), mesh)
    return make_plan(make_call(q, k, v, mask=mask, **options), kernel)


def listening(
    listener: Listener, *, traced: bool = False, outputs: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Return a context: `listener` gets every `attention` call that runs inside (`headwise.scope`), with its output.

    With `traced` the listener also gets calls that `torch.export` traces: its computations become part of the program.
    Without `outputs` the output may be None: a native encoder keeps no outputs. With `outputs`, the encoder's modules
    run instead.
    """
    return _LISTENING.open(_Listening(listener, traced, outputs))


def is_followed() -> bool:
    """Whether the calls that run here go to an editor, or to a listener that needs outputs or traced calls."""
    return bool(editors()) or any(each.outputs or each.traced for each in _LISTENING.here())


def list_call_listeners() -> tuple[Listener, ...]:
    """List the listeners that do not need the outputs of the calls."""
    return tuple(each.listener for each in _LISTENING.here() if not each.outputs)


def tell(call: AttentionCall, out: Tensor, used: Callable[[], Tensor]) -> None:
    """Hand a call to the listeners. `used` returns the weights [B, H, Q, K] that were used, which an edit changed."""
    listening = _LISTENING.here()
    weights = used() if listening else None
    call = call if call.share is None else call.of(call.share)
    for each in listening:
        each.listener(call, out, weights)


def _edited(call: AttentionCall) -> Tensor | None:
    """Ask the editors, the innermost first, for another output of this call; None if no editor changes the call."""
    found = editors()
    for i in reversed(range(len(found))):
        with unasked(found[i:]):  # the editors around it may change its result again
            out = found[i](call.dequantized())
        if out is not None:
            return out
    return None


def editors() -> tuple[Editor, ...]:
    """List the editors of the calls that run here, the innermost last."""
    found = _EDITING.here()
    return tuple(each for each in found if each not in _asked.get()) if found else ()


def editing(editor: Editor) -> contextlib.AbstractContextManager[None]:
    """Return a context: `editor` may replace the output of every `attention` call that runs inside."""
    return _EDITING.open(editor)


def unasked(those: tuple[Editor, ...]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which these editors get no calls, because they have already been asked about this call."""
    return within(_asked, (*_asked.get(), *those))


def no_attention() -> contextlib.AbstractContextManager[None]:
    """Return a context in which no computation counts as attention: a loss also has a softmax and matrix products."""
    return within(_running, True)


def running() -> bool:
    """Whether a kernel of `attention` is running: torch's computations are then part of a call that listeners get."""
    return _running.get()
