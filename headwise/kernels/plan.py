"""Decides which kernel runs a call, and explains the choice, as EXPLAIN does in a database."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.errors import ArgumentError, KernelRefused
from headwise.kernels import decode, exact, flex, native, reference, sdpa, tiled
from headwise.kernels.kept import compared, savable
from headwise.kernels.kernel import Blocks, Cost, Kernel, machine, matrix_flops, refusal, refused
from headwise.kernels.speeds import Machine
from headwise.language import Sentence, join, said
from headwise.tables import Printed, padded
from headwise.tracing import is_traced, surroundings

# Of two kernels with the same cost, the first one runs the call.
KERNELS: dict[str, Kernel] = {
    "decode": decode,
    "native": native,
    "sdpa": sdpa,
    "tiled": tiled,
    "flex": flex,
    "reference": reference,
}

# headwise's own kernels. Whether they refuse a call depends only on `AttentionCall.kind` and on `surroundings`.
OWN = dict(KERNELS)

# Kernels that torch.compile and others can trace (`tracing.is_traced`), because they do not look at the numbers of a
# tensor; the first of them that can run a call runs it.
TRACEABLE = ("decode", "native", "sdpa", "reference")


def choose(call: AttentionCall, kernel: str = "auto") -> Kernel:
    """Return the kernel requested by name, or for "auto" the cheapest kernel that does not refuse the call.

    Raises ArgumentError for a name that does not exist, and KernelRefused if the requested kernel refuses the call.
    """
    if kernel != "auto":
        if kernel not in KERNELS:
            raise ArgumentError(f"kernel must be 'auto' or one of {', '.join(KERNELS)}. Received: kernel={kernel!r}")
        reason = _refusal(kernel, call)
        if reason is not None:
            raise KernelRefused(
                f"kernel {kernel!r} cannot run this call: {reason}. Use kernel='auto', or see plan(...)"
            )
        return KERNELS[kernel]
    if is_traced():
        able = [KERNELS[name] for name in TRACEABLE if refusal(KERNELS[name], call) is None]
        return next(each for each in able if each is not native or native.is_worth_compiling(call))
    return _planned(call)


def _planned(call: AttentionCall) -> Kernel:
    if call.k_scale is not None:
        return native
    step = call.q.shape[2] == 1
    small = sdpa.is_small(call.q, call.k, masked=call.mask is not None)
    # Other kernels need many steps of torch for sinks and softcap.
    if (small or step) and (call.sinks is not None or call.softcap is not None) and refusal(native, call) is None:
        return native
    row = step and call.mask is not None and call.mask.band() is None  # to cut it takes longer than to read every key
    if (small or row) and refusal(sdpa, call) is None:
        return _dense(call)
    if call.mask is None or step:  # the lengths of a decoding step do not come again
        return _cheapest(call)
    # The key has everything on which the refusals of headwise's own kernels depend; if there are other kernels, all
    # kernels are asked each time.
    ready = None if KERNELS == OWN else tuple([name for name, each in KERNELS.items() if refusal(each, call) is None])
    key = ("kernel", ready, *surroundings(), *call.kind)
    return KERNELS[call.mask.remember(key, lambda _: find_name(_cheapest(call)))]


def run_call(call: AttentionCall, kernel: str = "auto") -> Tensor:
    """Run a call on the kernel of `choose`: [B, H, Q, E]. NaN and inf in keys reach only queries that may see them."""
    call = readable(call, kernel)
    if is_traced():
        return choose(call, kernel).run(exact.usable(call, call.used_keys))
    chosen, used = take(call, kernel)
    return run_chosen(call, chosen, used, chosen.run)


def take(call: AttentionCall, kernel: str) -> tuple[Kernel, Tensor | None]:
    """Return the kernel of a call that is not traced, and the keys that some query may see; None = all, or not asked.

    On the CPU they are not asked for: there the output is checked instead.
    """
    chosen = _planned(call) if kernel == "auto" else choose(call, kernel)
    if call.q.is_cpu:
        return chosen, None
    with torch.inference_mode(False):  # later calls may save them for backward
        return chosen, call.used_keys


def run_chosen(call: AttentionCall, chosen: Kernel, used: Tensor | None, run: exact.Run) -> Tensor:
    """Run a call that is not traced: [B, H, Q, E]. `chosen`, `used`: as `take` returns them. `run`: the kernel's."""
    try:
        out = _run(call, chosen, used, run)
    except RuntimeError:
        copied = savable(call)
        if copied is call or not call.trains:
            raise
        out = _run(copied, chosen, used, run)
    return compared(call, out) if out.requires_grad else out


def _run(call: AttentionCall, chosen: Kernel, used: Tensor | None, run: exact.Run) -> Tensor:
    if not call.q.is_cpu:
        return run(exact.usable(call, used))
    hides = call.mask is not None or call.bias is not None
    drawn_from = torch.get_rng_state() if hides and call.dropout else None
    if chosen is native:
        out, is_finite = native.run_and_look(call)
    else:
        out, is_finite = run(call), False
    if is_finite or not hides:
        return out
    return exact.contained(call.dequantized(), out, chosen.run, drawn_from)


def readable(call: AttentionCall, kernel: str = "auto") -> AttentionCall:
    """Return the call with its keys and values dequantized (from int8 to floats), unless the kernel reads int8."""
    if call.k_scale is None:
        return call
    reads = kernel in ("auto", "native") and not is_traced() and not call.trains
    return call if reads and refusal(native, call) is None else call.dequantized()


def _refusal(name: str, call: AttentionCall) -> str | None:
    if is_traced() and name not in TRACEABLE:
        return refused("what is traced can only follow {traceable}", traceable=", ".join(TRACEABLE))
    return refusal(KERNELS[name], call)


def _cheapest(call: AttentionCall) -> Kernel:
    # Nothing can be skipped; but on CUDA a matrix of slopes takes longer than FlexAttention, which computes them.
    written = call.q.device.type != "cpu" and sdpa.needs_dense_mask(call)
    if refusal(sdpa, call) is None and sdpa.sees_all(call) and not written:
        dense = _dense(call)
        one_each = call.q.shape[2] == 1 and call.heads_per_key_head == 1  # sdpa is as quick, and a step should be quick
        if one_each or refusal(native, call):
            return dense
        return _cheaper(call if call.mask is None else dataclasses.replace(call, mask=None), dense, native)
    ready = [each for each in KERNELS.values() if refusal(each, call) is None]
    if native in ready and tiled in ready:
        ready.remove(tiled)  # then the mask is not cut into tiles
    return _cheaper(call, *ready)


def _cheaper(call: AttentionCall, *kernels: Kernel) -> Kernel:
    return min(kernels, key=lambda kernel: kernel.cost(call).time)


def _dense(call: AttentionCall) -> Kernel:
    one = call.q.shape[2] == 1 and not sdpa.groups_heads(call)
    return decode if one and refusal(decode, call) is None else sdpa


def make_plan(call: AttentionCall, kernel: str = "auto") -> Plan:
    """Make the plan of a call: the choice of `choose`, with every refusal and every cost. Nothing is run."""
    call = readable(call, kernel)
    found = verdicts(call)
    return Plan(call, find_name(choose(call, kernel)), found, machine(call))


def verdicts(call: AttentionCall, names: Iterable[str] | None = None) -> tuple[Verdict, ...]:
    """Ask the kernels with these names (None = all) about a call: each gives a reason to refuse the call, or a cost."""
    asked = {name: KERNELS[name] for name in (KERNELS if names is None else names)}
    refusals = {name: _refusal(name, call) for name in asked}
    return tuple(
        Verdict(name, refusals[name], None if refusals[name] else kernel.cost(call)) for name, kernel in asked.items()
    )


def find_name(kernel: Kernel) -> str:
    """Return the name of a kernel in `KERNELS`."""
    return next(name for name, each in KERNELS.items() if each is kernel)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer of one kernel about a call: a reason to refuse the call, or its cost."""

    kernel: str
    refusal: str | None
    cost: Cost | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan(Printed):
    """How an attention call would run. `print` it, or read `kernel`, `cost`, `dense_flops` and `verdicts`."""

    call: AttentionCall
    kernel: str
    verdicts: tuple[Verdict, ...]
    machine: Machine

    @property
    def cost(self) -> Cost:
        """The cost of the chosen kernel."""
        cost = next(verdict.cost for verdict in self.verdicts if verdict.kernel == self.kernel)
        assert cost is not None
        return cost

    @property
    def share(self) -> float:
        """The expected speed of the forward pass, by its `cost.flops`, divided by that of a large matrix product."""
        return self.cost.flops / self.cost.time / self.machine.product if self.cost.time else 0.0

    @property
    def cutter(self) -> str | None:
        """The method that cuts the mask into tiles, a name of `headwise.tiles.CUTTERS`; None = no tiles."""
        return self.cost.cutter

    @property
    def dense_flops(self) -> int:
        """The FLOPs of the two matrix products over the whole matrix: 2 · B · H · Q · K · (D + E)."""
        batch, heads, q_len, k_len = self.call.shape
        return matrix_flops(self.call, batch * heads * q_len * k_len)

    def __str__(self) -> str:
        call, cost = self.call, self.cost
        of_dense = (
            Sentence("{share:.1%} of the dense {flops}").format(
                share=cost.flops / self.dense_flops, flops=_flops(self.dense_flops)
            )
            if self.dense_flops
            else ""
        )
        how = Sentence(", the mask cut by {cutter!r}").format(cutter=self.cutter) if self.cutter else ""
        if self.kernel == "native":
            how = Sentence("{how}, with {name}").format(how=how, name=native.instruction_set())
        lines = [
            ("call", f"q {list(call.q.shape)}  k {list(call.k.shape)}  v {list(call.v.shape)}"),
            ("", f"{str(call.q.dtype).removeprefix('torch.')} on {call.q.device}" + _options(call)),
            ("mask", "none: every query sees every key" if call.mask is None else repr(call.mask)),
            ("kernel", Sentence("{kernel}{how}").format(kernel=self.kernel, how=how)),
            ("  flops", join(filter(None, (_flops(cost.flops), of_dense)))),
            ("  speed", self._speed()),
            ("  bytes", Sentence("{bytes} read and written").format(bytes=_bytes(cost.bytes))),
            ("  peak", Sentence("{bytes} beyond the inputs").format(bytes=_bytes(cost.peak))),
        ]
        if cost.blocks is not None:
            b = cost.blocks
            counts = Sentence(
                "{b.full:,} full, {b.partial:,} partial, {b.skipped:,} skipped (of {b.height} × {b.width})"
            ).format(b=b)
            lines.append(("  blocks", counts))
        elif call.mask is not None and 0 not in call.shape:
            b = Blocks(64, 64, *call.mask.runs_of_blocks(*call.shape[2:], 64).counts())
            counts = Sentence("{b.full:,} full, {b.partial:,} partial, {b.skipped:,} empty").format(b=b)
            lines.append(
                ("  blocks", Sentence("of the mask: {counts} ({b.height} × {b.width})").format(counts=counts, b=b))
            )
        lines.append(("others", ""))
        for verdict in self.verdicts:
            if verdict.refusal is not None:
                lines.append((f"  {verdict.kernel}", Sentence("refuses: {refusal}").format(refusal=verdict.refusal)))
            elif verdict.kernel != self.kernel and verdict.cost is not None:
                ratio = verdict.cost.time / cost.time if cost.time else 1.0
                could = Sentence("could, at {ratio:.3g}× the time and {bytes} at the peak").format(
                    ratio=ratio, bytes=_bytes(verdict.cost.peak)
                )
                lines.append((f"  {verdict.kernel}", could))
        return "\n".join(f"{padded(said(name), 16)}{said(text)}".rstrip() for name, text in lines)

    def _speed(self) -> str:
        how = "; `headwise bench` measures it" if self.call.q.is_cpu else ""
        share = Sentence("about {share:.0%}").format(share=self.share) if self.share >= 0.005 else "less than 1%"
        return Sentence("{share} of a matrix product (nominal{how})").format(share=share, how=how)


def _options(call: AttentionCall) -> str:
    given = {name: getattr(call, name) for name in call.used_options()}
    shown = [f"{name} {list(x.shape) if isinstance(x, Tensor) else x}" for name, x in given.items()]
    return "".join(f", {each}" for each in [*shown, *(["gradients"] if call.trains else [])])


def _flops(flops: float) -> str:
    return _scaled(flops, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _bytes(size: int) -> str:
    return _scaled(size, ("B", "kB", "MB", "GB", "TB", "PB"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
