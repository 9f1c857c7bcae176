"""One of the two modules of a comparison: how it is called, its dimensions, whether it is causal by itself."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import torch
from torch import nn

from headwise.doctor.calling import copying, names, sizes
from headwise.doctor.calling.interface import Inputs, Interface, Result, discover
from headwise.doctor.calling.spec import Spec
from headwise.doctor.comparing.dimensions import Dimensions, possible
from headwise.doctor.comparing.layouts import roles_said
from headwise.doctor.comparing.recording import Recording, record
from headwise.doctor.limits import time_limit
from headwise.doctor.targets.load import raised_at, said
from headwise.errors import DoctorError

LONGEST = 60.0  # seconds after which a forward is reported as hanging
# Exceptions that the user's forward may raise.
EXPECTED = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError, NotImplementedError)


@dataclasses.dataclass
class Side:
    module: nn.Module
    interface: Interface
    certain: bool = False  # the names of its weights are reliable
    name: str = ""

    @classmethod
    def of(cls, module: nn.Module, spec: Spec | None) -> Side:
        twin = copied(module)
        return cls(twin, discovered(twin, spec))

    def cast(self, dtype: torch.dtype) -> None:
        self.module = copy.deepcopy(self.module).to(dtype)
        self.interface = self.interface.on(self.module)

    def runs_in(self, dtype: torch.dtype) -> str:
        """ "" if it runs in a dtype, else the reason why not."""
        try:
            twin = self.interface.on(copy.deepcopy(self.module).to(dtype))
            twin.run(twin.inputs(2, dtype=dtype))
        except EXPECTED as error:
            return complaint(error)
        return ""

    def run(self, inputs: Inputs, *, grad: bool = False, **masks: Any) -> Result:
        more: dict[str, Any] = dict(masks)
        if "average_attn_weights" in self.interface.flags:
            more["average_attn_weights"] = False  # one matrix per head
        with torch.random.fork_rng(devices=[]):  # dropout that is active even in eval mode is the same in every call
            return self.interface.run(inputs, grad=grad, **more)

    def dimensions(self) -> list[Dimensions]:
        """All dimensions that its weights allow, the most likely first."""
        face = self.interface
        inputs = face.inputs(2)
        recording = self.record(inputs)
        heads = face.heads or _heads_seen(recording, inputs)
        if heads is None:
            raise DoctorError(
                f"the number of heads of {type(self.module).__name__} is not known: it has no attribute such as "
                "num_heads, and no softmax was found. State it with spec=Spec(heads=8), or --spec heads=8"
            )
        seen = recording.roles()
        held: dict[str, int] = {}
        for name, x in self.module.named_parameters():
            roles = roles_said(name) or seen.get(name, "")
            if x.ndim > 1 and roles not in ("", "none"):
                order = "".join(sorted(roles, key="qkvo".index))
                held[order] = held.get(order, 0) + x.numel()
        said = sizes.find(self.module, names.HEAD_DIMS)
        widths = (face.width, face.key_width, face.value_width, recording.output.shape[-1])
        found = possible(held, heads=heads, kv_heads=face.kv_heads, said=said, widths=widths)
        if not found:
            raise DoctorError(
                f"the width must be divisible by the number of heads. Received: width {face.width}, {heads} heads. "
                "State the number with spec=Spec(heads=8)"
            )
        return found

    def record(self, inputs: Inputs, **masks: Any) -> Recording:
        if isinstance(self.module, nn.MultiheadAttention):  # runs a fused kernel if no weights are requested
            masks["need_weights"] = False
        return record(self.module, list(inputs.tensors().values()), lambda: self.run(inputs, **masks).output)

    def is_causal(self, dtype: torch.dtype) -> bool:
        """Whether it hides the future from each token by itself."""
        if self.interface.takes != "self":
            return False
        inputs = self.interface.inputs(dtype=dtype)
        length = inputs.query.shape[1]
        before = self.run(inputs).output
        for j in range(1, length):
            query = inputs.query.clone()
            query[:, j] = query[:, j].flip(-1) + 1.0
            moved = (self.run(Inputs(query)).output - before)[0].abs().amax(-1) > 0
            if bool(moved[:j].any()) or not bool(moved[j:].all()):
                return False
        return length > 1


def copied(module: nn.Module) -> nn.Module:
    """A copy in eval mode on the CPU, for trials."""
    return copying.at_rest(module).cpu()


def discovered(module: nn.Module, spec: Spec | None) -> Interface:
    """How a module is called; DoctorError if that cannot be found out, or if its forward hangs."""
    with time_limit(LONGEST):
        return discover(module, spec=spec)


def complaint(error: BaseException) -> str:
    """What a module raised, with its line, or the message of a DoctorError."""
    return str(error) if isinstance(error, DoctorError) else f"{said(error)}{raised_at(error)}"


def _heads_seen(recording: Recording, inputs: Inputs) -> int | None:
    cells = math.prod(inputs.query.shape[:2]) * inputs.key_length
    weights = recording.stage("weights")
    heads, rest = divmod(weights[0].value.numel(), cells) if weights else (0, 1)
    return heads if heads and not rest else None
