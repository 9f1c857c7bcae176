"""The module under examination, and how it is called. The user's module is never changed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from headwise.doctor.calling import token_ids
from headwise.doctor.calling.copying import at_rest, copied
from headwise.doctor.calling.example import Example
from headwise.doctor.calling.interface import Interface, discover
from headwise.doctor.calling.search import first_call
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.way import Fails, in_dtype
from headwise.doctor.catalogue import GRAVEST
from headwise.doctor.finding import ORDER, NotChecked, Severity, Where
from headwise.doctor.lines import definition, source_of
from headwise.errors import DoctorError
from headwise.registry import find_framework

if TYPE_CHECKING:
    from typing_extensions import Self


def _at_home(module: nn.Module) -> nn.Module:
    """The module on the CPU and in float32 (or float64): the checks ask what it computes, not on which device."""
    if any(x.is_meta for x in (*module.parameters(), *module.buffers())):
        raise DoctorError(
            f"{type(module).__name__} is on the meta device, so its parameters have no values; expected real "
            "parameters. Load or initialise them first"
        )
    if any(x.device.type != "cpu" for x in (*module.parameters(), *module.buffers())):
        module = module.cpu()
    lowered = any(x.dtype in (torch.float16, torch.bfloat16) for x in module.parameters())
    return in_dtype(module, torch.float32) if lowered else module


class Subject:
    """A module and how it is called.

    `example` is the (args, kwargs) of a real call of its forward. `make` builds the module again with other constructor
    arguments.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        spec: Spec | None = None,
        example: Example | None = None,
        make: Callable[..., object] | None = None,
    ) -> None:
        self.original = module
        self.module = _at_home(at_rest(module))
        self.spec = spec or Spec()
        self.example = example
        self.make = make
        self._on_ids: DoctorError | None = None  # why it could not be called on ids

    @functools.cached_property
    def interface(self) -> Interface:
        """How the module is called. Raises DoctorError if that cannot be found out.

        A module that takes token ids takes embeddings from then on.
        """
        if token_ids.takes_ids_by_name(self.module) and (found := self._of_ids()) is not None:
            return found
        try:
            return discover(self.module, spec=self.spec, example=self.example)
        except DoctorError:
            if not token_ids.takes_ids_by_name(self.module) and (found := self._of_ids()) is not None:
                return found
            if isinstance(self._on_ids, Fails) and self._on_ids.where is not None:
                raise self._on_ids from None  # it runs on ids, and gives NaN alone
            raise

    def _of_ids(self) -> Interface | None:
        """The interface with embeddings in the place of token ids; None if it cannot be called so."""
        module = token_ids.on_embeddings(copied(self.module))
        if module is None:
            return None
        example = self.example and token_ids.with_embeddings(self.example, token_ids.width_of(module))
        try:
            found = discover(module, spec=self.spec, example=example)
        except DoctorError as problem:
            self._on_ids = problem
            return None
        self.module, self.example = module, example
        found.run(found.inputs())  # from now on its table is known
        return found

    @functools.cached_property
    def source(self) -> str:
        """The text of the module's class, or "" where there is none."""
        found = source_of(type(self.module))
        return found.text if found else ""

    @functools.cached_property
    def serves(self) -> bool:
        """Whether its forward is declared to run without gradients, and it decodes or serves."""
        words = ("infer", "decod", "generat", "stream", "serv", "chat", "cache")
        head = self.source.partition("def forward")[0].rstrip().removesuffix("()")
        declared = head.endswith(("@torch.no_grad", "@torch.inference_mode"))
        return declared and any(word in self.source.lower() for word in words)

    @functools.cached_property
    def where(self) -> Where | None:
        """Where the module's class is defined."""
        return definition(type(self.module))

    @functools.cached_property
    def is_library(self) -> bool:
        """Whether the class is in an installed package; `severity` and `reports` say what follows from it."""
        return self.where is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(self.where.file).parts)

    @functools.cached_property
    def in_half(self) -> bool:
        """Whether the module was given in half precision, so that what goes wrong there is more than a note."""
        return any(x.dtype in (torch.float16, torch.bfloat16) for x in self.original.parameters())

    def severity(self, case: str, usual: Severity) -> Severity:
        """The severity of a finding in a case of `released.GRAVEST`: in released code no more than stands there."""
        gravest = GRAVEST[case]
        assert gravest is not None, f"ask Patient.reports about {case}"
        return max(usual, gravest, key=lambda x: ORDER[x]) if self.is_library else usual

    def reports(self, case: str) -> bool:
        """Whether a case of `released.GRAVEST` is looked for here."""
        return not self.is_library or GRAVEST[case] is not None

    def fresh(self, *, as_given: bool = False) -> Self:
        """A copy that may be changed (`.module.half()`, `.module.train()`); it keeps what is known about the calls.

        `as_given`: of the module as it was given, without traces of the doctor's own calls.
        """
        known = self.interface  # first: it may change the class of the module
        module = self.original if as_given else self.module
        twin = type(self)(module, spec=self.spec, example=self.example, make=self.make)
        if as_given and token_ids.is_on_embeddings(self.module):
            token_ids.on_embeddings(twin.module)
        twin.__dict__["interface"] = known.on(twin.module)
        return twin

    def call_given(self, module: nn.Module) -> Any:
        """What a copy of the module returns in the call that was given, whose arguments stay as they are.

        Raises NotChecked if none was given, and whatever the module raises.
        """
        if self.example is None:
            raise NotChecked("no example of a call was given")
        args, kwargs = copy.deepcopy(self.example)
        return module(*args, **kwargs)

    def rebuild(self, **changes: Any) -> nn.Module | None:
        """The module built again with some constructor arguments changed; None if `make` was not given."""
        make, known = self.make, self.interface
        if make is None:
            return None
        # A layer of another framework gets its weights in a call like the known one.
        return as_module(make(**changes), make=lambda: make(**changes), first=lambda x: known.on(x).run(known.inputs()))


# --- Layers of other frameworks ---------------------------------------------------------------------------------------


def as_module(
    layer: object,
    *,
    make: Callable[..., object] | None = None,
    first: Callable[[nn.Module], object] = first_call,
) -> nn.Module | None:
    """The layer itself if it is a torch module, a torch wrapper if it is another framework's layer, else None.

    A layer that gets its weights in its first call is called, by `first`: by trial, each with a new layer of `make`.

    Raises:
        DoctorError: no call that works was found.
        ArgumentError, DtypeError: what the framework does not take.
    """
    framework = find_framework(layer)
    if framework is None or (isinstance(layer, nn.Module) and foreign_backend(layer)):
        return layer if isinstance(layer, nn.Module) else None
    trial = framework.unbuilt(layer, make)
    if trial is not None:
        first(trial)
        layer = trial.layer
    return cast(nn.Module, framework.as_torch(layer))


def foreign_backend(module: nn.Module) -> str:
    """What computes a module whose operations torch does not see, such as "tensorflow"; "" if torch does."""
    return ", ".join(sorted({str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}))
