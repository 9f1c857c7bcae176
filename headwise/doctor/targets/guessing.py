"""Constructor arguments that nobody stated: guessed from the names of the parameters, or else said to be needed."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from torch import nn

from headwise.doctor.targets.arguments import CONFIGS, Arguments, Settings, config_class, likely, parse_value
from headwise.doctor.targets.load import Target
from headwise.doctor.targets.size import LARGEST
from headwise.errors import DoctorError
from headwise.language import Sentence

_MOST = 30  # attributes of a config


@dataclasses.dataclass(frozen=True)
class GuessingTarget(Target):
    """A target that guesses the arguments that its constructor needs, once it is built."""

    guesses: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def remarks(self) -> tuple[str, ...]:
        given = ", ".join(f"{name}={'…' if isinstance(x, Settings) else repr(x)}" for name, x in self.guesses.items())
        return (Sentence("arguments guessed: {given}").format(given=given),) if given else ()

    def build(self, *, largest: float = LARGEST, **changes: Any) -> nn.Module:
        """As `Target.build`. Raises DoctorError, too, for a parameter of which nobody knows what it is."""
        made = self.find()
        if not isinstance(made, nn.Module) and not self.guesses:
            for parameter in Arguments(self.name, made, self.settings, self.positional).missing():
                self.guesses.update(self._guessed(made, parameter))
        for _ in range(_MOST):
            known = Target(self.place, self.name, {**self.guesses, **self.settings}, self.positional)
            try:
                return known.build(largest=largest, **changes)
            except DoctorError as error:
                if not self._adds(error.__cause__):
                    raise
        raise DoctorError(
            f"{self} reads more than {_MOST} attributes of its config. Set them: {self._how('config.NAME')}"
        )

    def _guessed(self, made: Any, parameter: inspect.Parameter) -> dict[str, Any]:
        name = parameter.name
        kind = config_class(made, name)
        needed = [] if kind is None else Arguments(kind.__name__, kind, {}).missing()
        if needed:
            return {f"{name}.{x.name}": self._value(f"{name}.{x.name}", likely(x.name, x.annotation)) for x in needed}
        if name in CONFIGS and parameter.annotation is parameter.empty:
            return {name: Settings(name, {})}  # what it has to hold is seen when the constructor asks for it
        return {name: self._value(name, likely(name, parameter.annotation))}

    def _value(self, name: str, text: str | None) -> Any:
        if text is None:
            raise DoctorError(f"{self} needs {name}, which cannot be guessed: {self._how(name)}")
        return parse_value(text)

    def _adds(self, cause: BaseException | None) -> bool:
        """Whether the constructor failed because a guessed config lacks an attribute, which is now guessed as well."""
        if not isinstance(cause, AttributeError) or not isinstance(cause.obj, Settings):
            return False
        owner, name = vars(cause.obj)["_owner"], str(cause.name)
        value = likely(name)
        if value is None or f"{owner}.{name}" in self.guesses:
            return False
        self.guesses.pop(owner, None)
        self.guesses[f"{owner}.{name}"] = parse_value(value)
        return True

    def _how(self, name: str) -> str:
        return f"headwise doctor {self} --set {name}=VALUE"


def guessing(target: Target) -> GuessingTarget:
    """The target, with the arguments guessed that it lacks."""
    return GuessingTarget(target.place, target.name, target.settings, target.positional)
