"""`headwise doctor`: is this attention correct? Examines a class of your own, what a commit changes, or a model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli.output import STDOUT, Say, file_option, json_option, standard_output_kept, working, write_json
from headwise.cli.shared import shared
from headwise.doctor.targets.places import OF_SPEC, place_of, setting_of
from headwise.errors import ArgumentError
from headwise.language import Sentence, echo, said
from headwise.tables import make_console

if TYPE_CHECKING:
    from torch import nn

    from headwise.doctor.result import Diagnosis
    from headwise.doctor.targets.isolate import Isolation

FOUND_A_BUG, NOT_EXAMINED = 1, 3
# Two lengths, so that the shorter text is padded and the model passes a mask to its layers.
_TEXTS = ("the doctor looks at every layer of this model", "one at a time")


@click.command(short_help="Find the bugs in an attention module, and name them.")
@click.argument("targets", nargs=-1, metavar="[FILE.PY:CLASS]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An argument of the constructor.")
@click.option(
    "--model",
    metavar="MODEL",
    help="Examine every attention layer of a model: a Hugging Face folder or id, a .keras file, or FILE.PY:FUNCTION, "
    "which returns a Keras model, or any model and its inputs.",
)
@click.option(
    "--input", "texts", multiple=True, metavar="TEXT", help="A text for a Hugging Face model. Default: two short texts."
)
@click.option(
    "--changed",
    "base",
    is_flag=False,
    flag_value="",
    metavar="[BASE]",
    help="Examine the attention classes that differ from this commit of git; FILE.PY ... limits it to these files.  "
    "[default: HEAD, in pre-commit its --from-ref]",
)
@click.option(
    "--spec",
    "stated",
    multiple=True,
    metavar="NAME=VALUE",
    help="A known property, which the doctor then does not infer, such as heads=8.",
)
@click.option("--isolate", is_flag=True, help="Run the code in a separate process with limits on time and memory.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time after which the code counts as hanging.  [default: 60; for Keras on JAX 300]",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="With --isolate: memory limit of the process.  [default: 8]",
)
@click.option("--notes", is_flag=True, help="Also write the notes, which hold for most modules.")
@json_option
@file_option("--sarif", "Write SARIF, for code review tools; - is standard output.")
@shared
def doctor(
    targets: tuple[str, ...],
    settings: tuple[str, ...],
    model: str | None,
    texts: tuple[str, ...],
    base: str | None,
    stated: tuple[str, ...],
    isolate: bool,
    timeout: float | None,
    memory: float | None,
    notes: bool,
    json_path: Path | None,
    sarif_path: Path | None,
) -> int:
    """Find the bugs in an attention module and name them.

    Give a class, such as my_model.py:MyAttention or package.module:MyAttention, with --set for each argument of its
    constructor; or give --model, or --changed. The file is imported, so its code is executed. Keras layers run on the
    backend that their file imports, or that KERAS_BACKEND names; on TensorFlow and JAX their operations cannot be read,
    and the report says so. Exit code 1 means that a bug was found, 3 that no way to call a module was found; with
    --changed that is no error, since nobody said how.
    """
    if base is not None and base.endswith(".py"):  # `--changed a.py`: a file, and not the name of a commit
        base, targets = "", (base, *targets)
    _check(targets, settings, model, texts, base, stated, isolate, memory)
    if json_path == sarif_path and json_path is not None:
        raise ArgumentError(
            Sentence(
                "--json and --sarif must be different files. Received: --json={json_path}, --sarif={sarif_path}"
            ).format(json_path=json_path, sarif_path=sarif_path)
        )

    # Standard output holds the report or the JSON, so whatever the examined code prints goes to standard error.
    with standard_output_kept(), working("examining") as say, _isolation(isolate) as isolation:
        found: tuple[Diagnosis, ...]
        if base is not None:
            found = _examine_changed(base, targets, isolation, timeout, memory, say)
        elif model is not None:
            found = _examine_model(model, texts, stated, timeout, say)
        else:
            found = (_examine(targets[0], settings, stated, isolation, timeout, memory, say),)

    if STDOUT not in (json_path, sarif_path):
        if base is None:
            _print(found, notes)
        else:
            _list(found, notes)
    for option, path, write in (("--json", json_path, as_json), ("--sarif", sarif_path, _as_sarif)):
        if path is not None:
            write_json(path, option, write(found))
    if any(each.bugs for each in found):
        return FOUND_A_BUG
    return NOT_EXAMINED if base is None and any(each.not_examined for each in found) else 0


def as_json(found: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the content of the JSON file that --json writes."""
    import headwise

    return {
        "headwise": headwise.__version__,
        "healthy": all(each.healthy for each in found),
        "diagnoses": [each.to_dict() for each in found],
    }


def _as_sarif(found: Sequence[Diagnosis]) -> dict[str, Any]:
    import headwise
    from headwise.doctor.targets.changed import root_of
    from headwise.doctor.telling.sarif import sarif

    folders = (Path.cwd(), *(Path(each.where.file).parent for each in found if each.where))
    root = next(filter(None, map(root_of, folders)), None)
    return sarif(found, version=headwise.__version__, root=root)


def _check(
    targets: Sequence[str],
    settings: Sequence[str],
    model: str | None,
    texts: Sequence[str],
    base: str | None,
    stated: Sequence[str],
    isolate: bool,
    memory: float | None,
) -> None:
    """Raise DoctorError for options that are no NAME=VALUE; others, if they exclude each other."""
    for each in settings:
        setting_of(each)
    for each in stated:
        setting_of(each, *OF_SPEC)
    if base is not None:
        for option, given in (("--set", settings), ("--model", model), ("--input", texts), ("--spec", stated)):
            if given:
                raise ArgumentError(
                    Sentence(
                        "{option}: expected FILE.PY:CLASS or --model. Received: --changed, which examines whatever "
                        "changed"
                    ).format(option=option)
                )
    elif bool(targets) == (model is not None):
        received = Sentence("both" if targets else "neither")
        raise click.UsageError(
            Sentence(
                "Expected a class, such as my_model.py:MyAttention, or --model MODEL. Received: {received}."
            ).format(received=received),
            click.get_current_context(),
        )
    elif len(targets) > 1:
        raise ArgumentError(
            Sentence("expected one class. Received: {targets}. --changed takes several files").format(
                targets=", ".join(targets)
            )
        )
    if targets and base is None:
        place_of(targets[0])  # before torch is imported
    if model is not None:
        if settings:
            raise ArgumentError("--set: expected FILE.PY:CLASS, whose constructor takes it. Received: --model")
        if isolate:
            raise ArgumentError(
                "--isolate: expected FILE.PY:CLASS. Received: --model, which never executes a model repository's code"
            )
    elif texts and base is None:
        raise ArgumentError(
            "--input: expected --model, which reads it. Received: a class, examined with random tensors"
        )
    if memory is not None and not isolate:
        raise ArgumentError("--memory: only a separate process can be limited. Add --isolate")


def _examine(
    written: str,
    settings: Sequence[str],
    stated: Sequence[str],
    isolation: Isolation | None,
    timeout: float | None,
    memory: float | None,
    say: Say,
    *,
    guess: bool = False,
) -> Diagnosis:
    from headwise.doctor.finding import Where
    from headwise.doctor.targets.keras_backend import default_timeout

    place, _ = place_of(written)
    file = Path(place).expanduser() if place.endswith(".py") else None
    timeout = default_timeout(file) if timeout is None else timeout
    hint = Sentence(
        "in a separate process" if isolation else "this executes its code; --isolate uses a separate process"
    )
    echo(said("headwise: importing {place} ({hint})", place=place, hint=hint), err=True)
    if isolation:  # which imports torch, so that it is not imported here
        from headwise.doctor.targets.isolate import MEMORY, Request

        say(Sentence("examining {name}").format(name=written))
        most = MEMORY if memory is None else memory * 1e9
        found = isolation.diagnose(Request(written, tuple(settings), tuple(stated), timeout, most, guess))
    else:
        from headwise.doctor.targets.examine import examine, parse_spec
        from headwise.doctor.targets.guessing import guessing
        from headwise.doctor.targets.load import parse

        target = parse(written, settings)
        found = examine(guessing(target) if guess else target, spec=parse_spec(stated), timeout=timeout, say=say)
    # If the code did not return, no line of it is known: then the file is the location.
    return found if found.where or not file else dataclasses.replace(found, where=Where.at(str(file), 1))


@contextlib.contextmanager
def _isolation(wanted: bool) -> Iterator[Isolation | None]:
    """Where the code runs if it is to run in separate processes; else None."""
    if not wanted:
        yield None
        return
    from headwise.doctor.targets.isolate import Isolation

    with Isolation() as isolation:
        yield isolation


def _examine_changed(
    base: str,
    files: Sequence[str],
    isolation: Isolation | None,
    timeout: float | None,
    memory: float | None,
    say: Say,
) -> tuple[Diagnosis, ...]:
    from headwise.doctor.targets.changed import diagnose_changed

    say("reading what changed")
    base = base or os.environ.get("PRE_COMMIT_FROM_REF") or "HEAD"

    def examine(written: str) -> Diagnosis:
        return _examine(written, (), (), isolation, timeout, memory, say, guess=True)

    return tuple(diagnose_changed(Path.cwd(), base, [Path(each) for each in files], examine))


def _examine_model(
    name: str, texts: Sequence[str], stated: Sequence[str], timeout: float | None, say: Say
) -> tuple[Diagnosis, ...]:
    from headwise.doctor.targets.examine import parse_spec
    from headwise.doctor.targets.keras_backend import default_timeout
    from headwise.doctor.targets.layers import diagnose_model

    spec = parse_spec(stated)
    say(Sentence("loading {name}").format(name=name))
    model, run = _load(name, texts)
    return diagnose_model(
        model,
        run,
        spec=spec,
        timeout=default_timeout() if timeout is None else timeout,
        say=lambda path, number, count: say(
            Sentence("kind {number} of {count}: {path}").format(number=number, count=count, path=path)
        ),
    )


def _load(name: str, texts: Sequence[str]) -> tuple[Any, Callable[[], object]]:
    """Load the model; return (model, function that calls it once)."""
    file, colon, _ = name.rpartition(":")
    made = bool(colon) and file.endswith(".py")
    if not (made or name.endswith((".keras", ".h5"))):
        return _load_pretrained(name, texts or _TEXTS)
    if texts:
        raise ArgumentError(
            Sentence("--input: expected a model of Hugging Face, which reads texts. Received: --model={name}").format(
                name=name
            )
        )
    return _load_made(name) if made else _load_saved(Path(name))


def _load_saved(path: Path) -> tuple[Any, Callable[[], object]]:
    """Load a Keras model from its file; return (model, function that calls it with made-up inputs)."""
    from headwise.doctor.targets.keras_backend import begin_backend_of_saved

    if not path.is_file():
        raise ArgumentError(
            Sentence("--model: expected a file that model.save wrote. Received: no such file: {path}").format(path=path)
        )
    echo(said("headwise: loading {path} (this executes the code of classes of your own)", path=path), err=True)
    begin_backend_of_saved(path)
    from headwise.keras.example_inputs import example_inputs
    from headwise.keras.saved_model import load_saved

    model = load_saved(path)
    inputs = example_inputs(model)
    return model, lambda: model(inputs)


def _load_made(name: str) -> tuple[Any, Callable[[], object]]:
    """Call the user's function that makes a model; return (model, function that calls it once).

    The function returns a Keras model, or any model with its inputs.
    """
    from torch import nn

    from headwise.doctor.targets.keras_backend import begin_backend
    from headwise.doctor.targets.load import parse
    from headwise.registry import find_framework

    target = parse(name)
    echo(said("headwise: importing {place} (this executes its code)", place=target.place), err=True)
    begin_backend(target.file)
    made = target.made()
    model, *given = made if isinstance(made, tuple) and made else (made,)
    if not isinstance(model, nn.Module) and find_framework(model) is None:
        raise ArgumentError(
            Sentence("--model: {target} must return a model, or a model and its inputs. Received: a {name}").format(
                target=target, name=type(made).__name__
            )
        )
    if not given and find_framework(model) is None:
        raise ArgumentError(
            Sentence("--model: {target} must return a torch model together with its inputs: (model, x)").format(
                target=target
            )
        )
    if not given:
        from headwise.keras.example_inputs import example_inputs

        given = [example_inputs(model)]
    if isinstance(model, nn.Module):
        model.eval()
    return model, lambda: model(*given)


def _load_pretrained(name: str, texts: Sequence[str]) -> tuple[nn.Module, Callable[[], object]]:
    """Load the model in float32; return (model, function that calls it once on these texts)."""
    import torch

    from headwise.capture.pretrained import load_pretrained
    from headwise.models.checkpoint import read_config, resolve

    folder = resolve(name)
    two_sequences = bool(read_config(folder).get("is_encoder_decoder"))
    pretrained = load_pretrained(str(folder), generates=two_sequences, dtype=torch.float32)
    tokens = [pretrained.encode(text, pretrained.max_length) for text in texts]
    if two_sequences:
        ids = torch.tensor([tokens[0].ids])
        return pretrained.model, lambda: pretrained.model(ids, decoder_input_ids=ids[:, :4], use_cache=False)
    return pretrained.model, lambda: pretrained.read(tokens)


def _list(found: Sequence[Diagnosis], notes: bool) -> None:
    """Print the full reports of the modules with a bug, then one line for each module."""
    from headwise.doctor.telling.report import line

    if not found:
        echo(said("nothing to examine: no attention class was changed"))
    if sick := [each for each in found if each.bugs]:
        _print(sick, notes, "changed classes with a bug")
        echo()
    for each in found:
        echo(line(each, f"{each.where.path if each.where else ''}:{each.subject}"))


def _print(found: Sequence[Diagnosis], notes: bool, what: str = "kinds of attention layers") -> None:
    from headwise.doctor.telling.report import as_text, counts, report

    console = make_console(highlight=False)
    for number, diagnosis in enumerate(found):
        if number:
            echo()
        if console.is_terminal:
            console.print(report(diagnosis, notes=notes))
        else:  # for a log: no colours, no blanks at the ends of lines
            echo(as_text(diagnosis, notes=notes))
    if len(found) > 1:
        findings = [finding for each in found for finding in each.findings]
        echo("\n" + said("{count} {what}: {counts}.", count=len(found), what=Sentence(what), counts=counts(findings)))
