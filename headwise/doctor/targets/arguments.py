"""The arguments of the user's constructor: parsed, matched with its signature, and missing ones listed.

`--set config.n_embd=64` makes a config: of the parameter's annotated class, else with plain attributes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any

import torch

from headwise.doctor.targets.places import nearest, setting_of
from headwise.errors import DoctorError, shortened
from headwise.language import Sentence, join

_WORDS = {"true": True, "false": False, "none": None, "null": None}  # the string "false" would be truthy


class Arguments:
    """The arguments of a constructor: settings by name, which may be dotted, and some by position."""

    def __init__(
        self,
        name: str,
        made: Any,
        settings: Mapping[str, Any],
        positional: tuple[Any, ...] = (),
        *,
        prefix: str = "",  # of each name in the line to paste: "config."
    ) -> None:
        self._name, self._made, self._positional = name, made, positional
        self._settings, self._prefix = settings, prefix

    def __str__(self) -> str:
        shown = [repr(x) for x in self._positional]
        return ", ".join([*shown, *(f"{name}={value!r}" for name, value in self._settings.items())])

    def bind(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The (args, kwargs) of the call. Raises DoctorError if something is missing or unknown."""
        given = self._gathered()
        parameters = self._parameters()
        if not parameters:
            return self._positional, given
        named = {x.name for x in parameters if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)}
        unknown = [name for name in given if name not in named]
        if unknown and not any(x.kind is x.VAR_KEYWORD for x in parameters):
            near = nearest(unknown[0], named)
            known = ", ".join(sorted(named)) or Sentence("none")
            hint = Sentence("Did you mean {name}?" if near else "Its arguments: {known}").format(name=near, known=known)
            told = Sentence("{name} has no such argument. Received: {unknown!r}. {hint}")
            raise DoctorError(told.format(name=self._name, unknown=unknown[0], hint=hint))
        given |= {x.name: kind() for x in self._lacking() if (kind := self._whole_by_default(x)) is not None}
        if missing := self.missing():
            raise DoctorError(self._missing(missing))
        try:
            inspect.Signature(parameters).bind(*self._positional, **given)
        except TypeError as error:  # too many by position, or one twice
            called = f"{self._name}{_signature(self._made)}"
            told = Sentence("{called} cannot be called with {given}: {error}")
            raise DoctorError(told.format(called=called, given=self, error=error)) from None
        return self._positional, given

    def missing(self) -> list[inspect.Parameter]:
        """The parameters without a default that are not given, but for configs that need nothing."""
        return [x for x in self._lacking() if self._whole_by_default(x) is None]

    def _lacking(self) -> list[inspect.Parameter]:
        named = [x for x in self._parameters() if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)]
        in_order = [x.name for x in named if x.kind is not x.KEYWORD_ONLY]
        given = {*in_order[: len(self._positional)], *(name.partition(".")[0] for name in self._settings)}
        return [x for x in named if x.default is x.empty and x.name not in given]

    def _whole_by_default(self, parameter: inspect.Parameter) -> type | None:
        """The annotated class of a config, if each of its fields has a default."""
        kind = config_class(self._made, parameter.name) if parameter.name in CONFIGS else None
        return None if kind is None or Arguments(kind.__name__, kind, {}).missing() else kind

    def _missing(self, missing: list[inspect.Parameter]) -> Sentence:
        names = [x.name for x in missing]
        listed = join(filter(None, (", ".join(names[:-1]), names[-1])), " and ")
        ready = " ".join(f"--set {self._prefix}{setting}" for x in missing for setting in _suggested(x, self._made))
        called = f"{self._name}{_signature(self._made)}"
        return Sentence("{called} needs {names}: for example {ready}").format(called=called, names=listed, ready=ready)

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            return list(inspect.signature(self._made).parameters.values())
        except (TypeError, ValueError):  # implemented in C
            return []

    def _gathered(self) -> dict[str, Any]:
        """The settings, with the dotted ones put into their configs."""
        given, nested = by_owner(self._settings)
        for owner, parts in nested.items():
            if owner in given:
                part = f"{owner}.{next(iter(parts))}"
                raise DoctorError(
                    f"{self._name}: {owner!r} is passed both as a whole and in parts ({part}); pass it in one way"
                )
            kind = config_class(self._made, owner)
            if kind is None:
                given[owner] = Settings(owner, parts)
            else:
                args, kwargs = Arguments(f"{kind.__name__} (of {owner})", kind, parts, prefix=f"{owner}.").bind()
                given[owner] = kind(*args, **kwargs)
        return given


def by_owner(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings without a dot, and those of each owner: a=1, b.c=2, b.d.e=3 is {a: 1}, {b: {c: 2, d.e: 3}}."""
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        owner, dot, inner = name.partition(".")
        if dot:
            parts.setdefault(owner, {})[inner] = value
        else:
            whole[name] = value
    return whole, parts


class Settings(types.SimpleNamespace):
    """A config made of `--set config.name=value`. For a missing attribute, the error says how to set it."""

    def __init__(self, owner: str = "config", parts: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        # Without arguments: `copy` makes an empty one and fills it.
        whole, nested = by_owner(parts)
        super().__init__(**whole, **{name: Settings(f"{owner}.{name}", inner) for name, inner in nested.items()})
        object.__setattr__(self, "_owner", owner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        owner = self.__dict__.get("_owner", "config")
        # obj and name tell a guesser what is missing
        raise AttributeError(f"{owner} has no {name}: add --set {owner}.{name}=VALUE", name=name, obj=self)


def parse_setting(text: str, *how: str) -> tuple[str, Any]:
    """As `setting_of`; the value is a Python literal, true, false, none or a torch dtype, else a string."""
    name, value = setting_of(text, *how)
    return name, parse_value(value)


def parse_value(text: str) -> Any:
    """A value from its text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.startswith("torch.") and isinstance(dtype := getattr(torch, text[6:], None), torch.dtype):
        return dtype
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def config_class(made: Any, parameter: str) -> type | None:
    """The class that a config is made of: the one that its parameter is annotated with, or the one that fits."""
    target = getattr(made, "__init__", made) if isinstance(made, type) else made
    try:
        kind = typing.get_type_hints(target).get(parameter)
    except Exception:  # annotations may refer to names that are imported only for type checkers
        return None
    if kind is None and parameter in CONFIGS:
        return _only_config(made, parameter)
    return kind if isinstance(kind, type) and kind.__module__ != "builtins" and not typing.get_origin(kind) else None


def _only_config(made: Any, parameter: str) -> type | None:
    """The one dataclass of the same file that has all fields which a constructor reads of its config."""
    read = set(_read(made, parameter))
    there = {x for x in vars(sys.modules.get(made.__module__, made)).values() if isinstance(x, type)}
    here = [x for x in there if x.__module__ == made.__module__ and dataclasses.is_dataclass(x)]
    fitting = [x for x in here if read and read <= {field.name for field in dataclasses.fields(x)}]
    return fitting[0] if len(fitting) == 1 else None


def _read(made: Any, config: str) -> list[str]:
    """The attributes of a config that a constructor reads, in order."""
    try:
        source = inspect.getsource(getattr(made, "__init__", made) if isinstance(made, type) else made)
        nodes = list(ast.walk(ast.parse(textwrap.dedent(source))))
    except (OSError, TypeError, SyntaxError):
        return []
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    read = [x for x in nodes if isinstance(x, ast.Attribute) and ast.unparse(x.value) == config and x not in called]
    return list(dict.fromkeys(x.attr for x in sorted(read, key=lambda x: (x.lineno, x.col_offset))))


def _signature(made: Any) -> str:
    """The signature without annotations: "(embed_size, heads, dropout=0.1)"."""
    signature = inspect.signature(made)
    bare = [x.replace(annotation=inspect.Parameter.empty) for x in signature.parameters.values()]
    return shortened(str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)), 100)


CONFIGS = ("config", "cfg", "args", "params", "hparams", "conf")  # what a parameter that holds a config is called
_LIKELY = (  # part of a parameter's name, or with "_" at its end how it begins -> a value to try
    (("head_dim", "dim_head", "d_head", "head_size", "d_k", "d_v", "kv_channels"), "16"),
    (("kv_head", "key_value_head", "num_kv", "n_kv", "group"), "2"),
    (("head",), "4"),
    (("dropout", "drop", "p_"), "0.0"),
    (("window",), "4"),
    (("length", "len", "block_size", "context", "positions", "max_position", "seq"), "128"),
    (("bias", "causal", "use_", "is_"), "True"),
    (("layer_idx", "layer_id"), "0"),
    (("layers", "n_layer", "depth"), "2"),
    (("theta", "base"), "10000.0"),
    (("eps",), "1e-5"),
)
_WHOLE = {"h": "4", "nhead": "4", "p": "0.0"}
_SIZES = ("dim", "size", "width", "emb", "hidden", "channel", "feature", "d_model", "inner", "units")
_KINDS = {"int": "64", "bool": "True", "float": "1.0"}


def likely(name: str, annotation: object = inspect.Parameter.empty) -> str | None:
    """A value to try for a parameter, as text; None if neither its name nor its annotation tells what it is."""
    untyped = annotation is inspect.Parameter.empty
    said = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = "".join(x if x.isalnum() or x == "_" else " " for x in said).split()
    kinds = sorted({*words} - {"typing", "Optional", "Union", "None"})
    if not untyped and not (kinds and set(kinds) <= _KINDS.keys()):
        return None
    if name in _WHOLE:
        return _WHOLE[name]
    for parts, value in _LIKELY:
        if any(name.lower().startswith(part) if part[-1] == "_" else part in name.lower() for part in parts):
            return value
    if any(part in name.lower() for part in _SIZES) or len(name) == 1:
        return "64"
    return None if untyped else _KINDS[kinds[0]]


def _suggested(parameter: inspect.Parameter, made: Any) -> list[str]:
    name = parameter.name
    if name in CONFIGS:
        kind = config_class(made, name)
        fields = [x.name for x in Arguments("", kind, {}).missing()] if kind is not None else _read(made, name)
        return [f"{name}.{field}={likely(field) or 64}" for field in fields] or [f"{name}.FIELD=VALUE"]
    if parameter.annotation in (str, "str"):
        return [f"{name}=NAME"]
    return [f"{name}={likely(name, parameter.annotation) or likely(name) or 64}"]
