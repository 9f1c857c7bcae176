"""`fit`: trains a task by Lightning, from data to a run folder. All settings of Lightning are here."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.loggers import TensorBoardLogger

from headwise import capture
from headwise.errors import ArgumentError
from headwise.language import Sentence, echo, said
from headwise.tasks.options.train import TrainOptions, make
from headwise.tasks.rows.encodings import encoded_as
from headwise.tasks.rows.labels import note_alike
from headwise.tasks.training import notes, processes, run, strategies
from headwise.tasks.training.batches import Examples
from headwise.tasks.training.callbacks.averaging import Averaging
from headwise.tasks.training.callbacks.best import Best
from headwise.tasks.training.callbacks.curve import Curve
from headwise.tasks.training.callbacks.finite import FiniteValidation
from headwise.tasks.training.callbacks.last import AtomicCheckpoints, Last
from headwise.tasks.training.callbacks.progress import Telling
from headwise.tasks.training.callbacks.seeding import Seeding
from headwise.tasks.training.callbacks.signals import Interrupt
from headwise.tasks.training.folder import alone, check_new
from headwise.tasks.training.sharding import find_share
from headwise.tasks.training.weights import save_weights

if TYPE_CHECKING:
    from headwise.tasks.rows.tables import Data
    from headwise.tasks.scores import Scores
    from headwise.tasks.trainable import Trainable

TaskT = TypeVar("TaskT", bound="Trainable[Any]")


def fit(
    kind: type[TaskT], source: Any, *, validation: Any, out: str | Path | None, resume: bool, given: dict[str, Any]
) -> TaskT:
    """Train a task: the implementation of `Task.fit`."""
    if isinstance(validation, str | Path):
        given, validation = {**given, "validation": str(validation)}, None
    folder = Path(out).expanduser() if out is not None else None
    if folder is None and resume:
        raise ArgumentError("resume: expected out, the folder of the run to resume. Received: none")
    if folder is None and strategies.launched():
        raise ArgumentError(
            "out: the processes that torchrun or srun started share a run folder; expected its name. Received: none"
        )
    before = run.read_config(folder, kind)["options"] if folder is not None and resume else {}
    options = make(kind.options_type, {**before, **given})
    strategies.check(options)
    lock = alone(folder) if folder is not None and strategies.first() else contextlib.nullcontext()
    with lock, torch.random.fork_rng(), tempfile.TemporaryDirectory() as temporary:
        if folder is not None and not resume and strategies.first():  # only the first process writes
            check_new(folder)
        where = folder or Path(temporary)
        work = (kind, source, validation, where, folder is not None, resume, given)
        scores = None
        if strategies.several(options):
            processes.together(strategies.devices(options), _fit, *work)
        else:
            scores = _fit(*work)  # as in the file, and its sentences can be said in another language
            strategies.meet()
        trained = run.restore(where, kind)
        trained.scores = scores or run.read_scores(where)
    return trained


def _fit(
    kind: type[TaskT], source: Any, validation: Any, folder: Path, keep: bool, resume: bool, given: dict[str, Any]
) -> Scores | None:
    """Do the whole training, in each process. Only the first process writes files, and returns the scores.

    Args:
        keep: whether `folder` is a run folder that stays; otherwise only the weights are written to it.
    """
    begun = resume and (folder / run.LAST).is_file()
    if resume:
        config = run.read_config(folder, kind)
        options = make(kind.options_type, {**config["options"], **given})
        training, held_out = _read(kind, source, validation, options)
        run.check_same(folder, config, options, set(given), training, held_out)
        if run.is_over(folder, config):
            if strategies.first():
                _say((Sentence("the training of {folder} has ended, and nothing is left to do").format(folder=folder),))
            return None
    else:
        options = make(kind.options_type, given)
        training, held_out = _read(kind, source, validation, options)
    if strategies.first():
        _say((*training.left_out, *(held_out.left_out if held_out is not None else ())))
    if begun:
        task = run.rebuild(folder, config, kind)
        task.options = replace(
            task.options, **{name: getattr(options, name) for name in run.MAY_CHANGE if hasattr(options, name)}
        )
        if strategies.first() and options.epochs > config["options"]["epochs"]:
            run.write_files(folder, task, run.begun_again(config, options.epochs))
    else:  # also if the training was stopped before its first epoch ended: there is nothing to resume
        torch.manual_seed(options.seed)
        with _in_memory(options, given.keys()):
            task = kind.learn(training, options)
        if strategies.first():
            _say(notes.on_characters(getattr(getattr(task, "subwords", None), "added", ())))
    doubts, ended = _train(task, folder, training, held_out, keep=keep, resume=begun)
    scores = None
    if strategies.first():
        trained = run.restore(folder, kind)
        if held_out is not None and trained.settle(held_out):
            save_weights(trained.state_dict(), folder / run.WEIGHTS)
        if held_out is not None:
            scores = trained.evaluate(held_out)
            no_better = notes.on_scores(scores, kind.compared_by)
            _say(no_better)
            scores = replace(scores, notes=(*doubts, *no_better))
        config = run.read_config(folder)
        run.write_files(folder, trained, run.ended(config) if ended else config, scores)
        if ended and not options.keep_optimizer:  # last, so that a run that is killed before this can be resumed
            (folder / run.LAST).unlink(missing_ok=True)
    return scores


@contextlib.contextmanager
def _in_memory(options: TrainOptions, given: Set[str]) -> Iterator[None]:
    """A context in which an out-of-memory error of this machine becomes an ArgumentError that names the given sizes."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not re.search("allocate|out of memory|overflow", text, re.IGNORECASE):
            raise
        at_once = int(found[1]) / 1e9 if (found := re.search(r"(\d+) bytes", text)) else None
        own = given - {each.name for each in fields(TrainOptions)}
        sizes = [f"{name}={value}" for name in sorted(own) if type(value := getattr(options, name)) is int]
        asked = Sentence(" ({size:,.0f} GB at once)").format(size=at_once) if at_once is not None else ""
        received = Sentence(" Received: {sizes}.").format(sizes=", ".join(sizes)) if sizes else ""
        told = Sentence("the model does not fit into memory{asked}.{received} Choose smaller sizes")
        raise ArgumentError(told.format(asked=asked, received=received)) from error


def _say(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        echo(said("note: {sentence}", sentence=sentence), err=True)


def _read(kind: type[TaskT], source: Any, validation: Any, options: Any) -> tuple[Data, Data | None]:
    """Read (the training data, the data for choosing the best weights; None if there are none)."""
    with encoded_as(options.encoding):
        data = kind.read(source, options)
        if validation is not None or options.validation is not None:
            return data, kind.read(validation if validation is not None else options.validation, options)
    if not options.validation_share:
        if options.patience:
            raise ArgumentError(
                Sentence("patience={patience}: expected data to validate on. Received: validation_share=0").format(
                    patience=options.patience
                )
            )
        return data, None
    return kind.split(data, options)


def _train(
    task: Trainable[Any], folder: Path, training: Data, held_out: Data | None, *, keep: bool, resume: bool
) -> tuple[tuple[str, ...], bool]:
    """Train the task, and put the best weights into the folder.

    Returns (reasons why the choice of these weights is unreliable, as sentences; whether the training has ended: False
    if its time limit stopped it).
    """
    options: TrainOptions = task.options
    learned = task.encode(training)
    validated = task.encode(held_out) if held_out is not None else []
    if not learned:
        raise ArgumentError(Sentence("{name}: there is no example in it to learn from").format(name=training.name))
    remarks = task.remarks(training)
    by, both = task.label_column, [data for data in (training, held_out) if data is not None]
    doubts = () if by is None else note_alike(str(label) for data in both for label in data.columns[by])
    if held_out is not None:
        doubts += notes.on_validation(training, held_out, examples=len(validated), by=by)
        doubts += notes.on_share(len(training), len(held_out), options.validation_share)
    if strategies.first():
        _say((*remarks, *doubts))
    data = Examples(learned, validated, collate=task.collate, length=task.length, options=options)
    best_by = task.best_by if validated else None
    with Interrupt(waits=keep) as interrupt, _quiet():
        averaging = Averaging(options.average) if options.average else None
        best = Best(folder / run.WEIGHTS, best_by, options.patience, averaging)
        curve = Curve(folder if keep else None, best)
        last = Last(folder / run.LAST if keep else None, interrupt, options.time_limit)
        callbacks: list[Callback] = [
            Seeding(options.seed),
            FiniteValidation(),
            best,
            *([averaging] if averaging else []),
            curve,
            Telling(curve, best),
            last,
        ]
        if keep and options.monitor_every:
            callbacks.insert(0, capture.monitor(task.model, every=options.monitor_every).lightning())
        _keep_tensorflow_out()
        machines = strategies.make(options)
        machines["plugins"].append(AtomicCheckpoints())
        trainer = Trainer(
            **machines,
            max_epochs=options.epochs,
            gradient_clip_val=options.clip or None,
            callbacks=callbacks,
            logger=TensorBoardLogger(folder, name="", version="tensorboard") if keep else False,
            default_root_dir=folder,
            limit_val_batches=None if validated else 0,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            reload_dataloaders_every_n_epochs=1,  # the number of batches differs between epochs
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        if held_out is not None and len(validated) < (shares := find_share(trainer).world):
            raise ArgumentError(
                Sentence(
                    "{name}: expected at least {shares} examples to validate on, one for each device. Received: {count}"
                ).format(name=held_out.name, shares=shares, count=len(validated))
            )
        if not resume and strategies.first():  # a run that is refused before this leaves nothing behind
            run.write_config(folder, task, training, held_out, remarks)
        if options.compile:
            task.model.compile(dynamic=True)  # batches have many lengths, as texts do
        task.train()
        try:
            trainer.fit(task, datamodule=data, ckpt_path=folder / run.LAST if resume else None, weights_only=True)
        except SystemExit as stopped:  # Lightning turns KeyboardInterrupt into it
            if isinstance(stopped.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
    return doubts, not last.out_of_time


def _keep_tensorflow_out() -> None:
    """Let TensorBoard write its files without importing TensorFlow, which takes seconds and prints six lines."""
    name = "tensorboard.compat.notf"  # TensorBoard's own sign to run without TensorFlow
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault(name, types.ModuleType(name))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context in which messages and warnings of Lightning about intended settings are suppressed."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for message in _MEANT:
            warnings.filterwarnings("ignore", message=message)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


_MEANT = (
    r".*does not have many workers",  # examples are in memory, and a resumed run must draw the same numbers
    r".*your dataloader is not resumable",  # Examples is resumable
    r".*isinstance\(treespec, LeafSpec\).*",  # Lightning asks torch in an old way
    r"GPU available but not used",  # the user chose the CPU
    r".*torch\.jit\.script_method.* is deprecated",  # torch itself, when it compiles
)
