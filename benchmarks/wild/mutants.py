"""One mistake put into healthy modules at a time: which does the doctor name?

    python benchmarks/wild/mutants.py                       # 120 mutants of the fixed twins of open/ and kept/
    python benchmarks/wild/mutants.py FOLDER --count 400    # and of the files in a folder, which have make()
    python benchmarks/wild/mutants.py --only scale          # operators whose name has this word

The operators (mutations.py) know nothing of the doctor. A mutant counts if it runs and changes what the module does:
its output in eval or train mode or with a mask, a gradient, or what its cache gives. The sample is drawn by a seed, as
evenly over the operators as there are mutants of each. Whether a mutant is a mistake is not known: some are another
convention. So the share that is named is no recall, but the misses are a list to read.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from imported import imported
from mutations import OPERATORS, Mutant, mutants
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import headwise
from headwise.doctor.calling.example import as_example
from headwise.doctor.patient import Patient
from headwise.doctor.probing.decoding import Steps, sessions
from headwise.doctor.probing.probe import weighting

HERE = Path(__file__).parent
NAME = "mutant"  # of an imported file
OUTCOMES = ("named", "risk", "missed", "not examined")


def made(file: ModuleType) -> tuple[nn.Module, Any]:
    """The healthy module of a file, and an example of a call."""
    torch.manual_seed(0)
    module = file.fixed() if hasattr(file, "fixed") else file.make()
    return module, file.example() if hasattr(file, "example") else None


def behaviour(module: nn.Module, patient: Patient) -> list[Tensor]:
    """Everything that a module does in the calls of a healthy one like it. Raises whatever the module raises."""
    interface = patient.interface.on(module)
    found: list[Tensor] = []
    inputs = interface.inputs()
    keys = inputs.key_length
    padding = torch.arange(keys) < torch.tensor([[keys], [keys - 2], [max(1, keys - 3)]])
    for train in (False, True):
        module.train(train)
        torch.manual_seed(0)
        out = interface.run(inputs, grad=True).output
        wanted = [x for x in module.parameters() if x.requires_grad]
        given = torch.autograd.grad(out, wanted, weighting(out), allow_unused=True) if out.requires_grad else ()
        found += [out.detach(), *(torch.zeros(()) if x is None else x for x in given)]
    module.eval()
    if patient.example is not None:
        torch.manual_seed(0)
        args, kwargs = patient.example
        found += tensors(module(*args, **kwargs))
    if interface.masks:
        found.append(interface.run(inputs, padding=padding).output.detach())
    if interface.length is None:
        found.append(interface.run(interface.inputs(2, 9)).output.detach())
    return found


def decoded(module: nn.Module, patient: Patient) -> Tensor | None:
    """What its cache gives, step by step; None if no cache is found."""
    steps = Steps(patient.interface.on(module), 5)
    if steps.memory is not None or not (steps.caches or steps.starts or steps.flags):
        return None
    for session in sessions(steps):
        try:
            return torch.cat([session.feed(i, i + 1) for i in range(5)], dim=1)
        except Exception:  # noqa: PERF203 (its cache is not fed in this way)
            continue
    return None


def tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x.detach().float()]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [t for part in parts for t in tensors(part)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )


def judged(path: Path, mutant: Mutant) -> tuple[str, list[str]]:
    """The outcome of one mutant, and what the doctor says: "same" and "raises" do not count."""
    healthy, example = made(imported(path, NAME))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / path.name
        copied.write_text(mutant.text, encoding="utf-8")
        try:
            module, _ = made(imported(copied, NAME))
            patient = Patient(healthy, example=as_example(example))
            if same(behaviour(healthy.eval(), patient), behaviour(module, patient)):
                before, after = decoded(healthy, patient), decoded(module, patient)
                if before is None or after is None or same([before], [after]):
                    return "same", []
        except Exception as error:
            return "raises", [f"{type(error).__name__}: {str(error)[:80]}"]
        module, example = made(sys.modules[NAME])
        torch.manual_seed(0)
        diagnosis = headwise.diagnose(module, example=example)
    bugs = sorted({x.name for x in diagnosis.bugs})
    risks = sorted({x.name for x in diagnosis.findings if x.severity == "risk"})
    if diagnosis.not_examined:
        return "not examined", []
    return ("named", bugs) if bugs else ("risk", risks) if risks else ("missed", [])


def told(path: Path, mutant: Mutant, end: Connection) -> None:
    warnings.simplefilter("ignore")
    try:
        end.send(judged(path, mutant))
    except Exception as error:
        end.send(("raises", [f"{type(error).__name__}: {error}"]))


def within(seconds: float, path: Path, mutant: Mutant) -> tuple[str, list[str]]:
    """`judged` in a process of its own, which may hang or crash."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=told, args=(path, mutant, there), daemon=True)
    process.start()
    there.close()
    answer: tuple[str, list[str]] = ("raises", ["it took too long"])
    try:
        if here.poll(seconds):
            answer = here.recv()
    except EOFError:
        answer = ("raises", ["the process ended"])
    process.kill()
    process.join()
    return answer


def files(folders: list[Path]) -> Iterator[Path]:
    """Healthy files: with fixed(), or with make() and not called broken in truth.json."""
    for folder in folders:
        truth = folder / "truth.json"
        known = json.loads(truth.read_text(encoding="utf-8")) if truth.exists() else {}
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            healthy = "def fixed(" in text or (path.stem in known and not known[path.stem]["broken"])
            if healthy and "keras" not in text:
                yield path


def drawn(paths: list[Path], seed: int, only: str) -> Iterator[tuple[Path, Mutant]]:
    """Mutants in turn of each operator, of files in random order, each file of an operator once before any twice."""
    draw = random.Random(seed)
    queues: dict[str, list[tuple[float, int, Path, Mutant]]] = {name: [] for name in OPERATORS if only in name}
    for path in paths:
        times: collections.Counter[str] = collections.Counter()
        found = list(mutants(path.read_text(encoding="utf-8")))
        draw.shuffle(found)
        for mutant in found:
            if mutant.operator in queues:
                queues[mutant.operator].append((times[mutant.operator] + draw.random(), len(queues), path, mutant))
                times[mutant.operator] += 1
    for queue in queues.values():
        queue.sort(key=lambda x: x[0], reverse=True)
    while any(queues.values()):
        for queue in queues.values():
            if queue:
                yield queue.pop()[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=120, help="mutants that count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--per", type=int, default=40, help="candidates of one operator at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="for one mutant")
    parser.add_argument("--save", type=Path, help="a folder for the missed mutants")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    tried: collections.Counter[str] = collections.Counter()
    for path, mutant in drawn([*files([HERE / "open", HERE / "kept", *asked.folders])], asked.seed, asked.only):
        if sum(sum(x[o] for o in OUTCOMES) for x in counts.values()) >= asked.count:
            break
        if tried[mutant.operator] >= asked.per:
            continue
        tried[mutant.operator] += 1
        outcome, said = within(asked.seconds, path, mutant)
        counts[mutant.operator][outcome] += 1
        if outcome in OUTCOMES:
            line = f"{path.parent.name}/{path.name}:{mutant.line}"
            edit = " ".join(f"{mutant.before[:110]}  ->  {mutant.after[:110]}".split())
            print(f"{outcome:8} {mutant.operator:20} {line:40} {','.join(said)} | {edit}", flush=True)
            if outcome != "named" and asked.save:
                asked.save.mkdir(parents=True, exist_ok=True)
                name = f"{mutant.operator.replace(' ', '_')}_{path.parent.name}_{path.stem}_{mutant.line}.py"
                (asked.save / name).write_text(mutant.text, encoding="utf-8")
    table = Table("operator", *OUTCOMES)
    for name in OPERATORS:
        if any(counts[name][o] for o in OUTCOMES):
            table.add_row(name, *(str(counts[name][o] or "") for o in OUTCOMES))
    total = [sum(counts[name][o] for name in OPERATORS) for o in OUTCOMES]
    table.add_row("all", *map(str, total), style="bold")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"{total[0]} of {sum(total)} named ({total[0] / max(1, sum(total)):.0%})")


if __name__ == "__main__":
    main()
