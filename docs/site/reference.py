"""The reference: its pages, by what one wants to do, and the public names on each. The texts are the docstrings.

A page lists modules, which stand with all the names of their `__all__`, so that a new public name is there by itself.
It is read from the sources: nothing is imported.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Group:
    """A page: its address, its title, what it is for, and what is on it: names, and modules with all their names."""

    slug: str
    title: str
    about: str
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def all_names(self) -> list[str]:
        """Every name of the page with its module, in order."""
        return [*self.names, *(f"{module}.{name}" for module in self.modules for name in public(module))]


GROUPS = (
    Group(
        "attention",
        "Compute attention",
        "One function for every kernel, and the plan that says which one it takes. "
        "[Kernels and plans](../concepts/kernels.md) is the idea.",
        ("headwise.attention", "headwise.plan", "headwise.Int8"),
        ("headwise.flash_attention", "headwise.kernels"),
    ),
    Group(
        "masks",
        "Say who may attend to whom",
        "Masks, which `&`, `|` and `~` combine. True = may attend. [Masks](../concepts/masks.md) is the idea.",
        (),
        ("headwise.masks",),
    ),
    Group(
        "transformers",
        "Hugging Face models",
        "Runs the models of transformers on the kernels here. [transformers.md](../transformers.md) is the guide.",
        (),
        ("headwise.transformers",),
    ),
    Group(
        "nn",
        "Build a model",
        "Modules with projections, caches and position schemes. "
        "[Every kind of attention](../attention.md) says when to choose which.",
        (),
        ("headwise.nn", "headwise.nn.positions"),
    ),
    Group(
        "models",
        "Take a whole model",
        "Models of those modules: those that the tasks train, and BERT with the weights of Hugging Face.",
        ("headwise.Bert", "headwise.models.bert_encoder.BertEncoder"),
        ("headwise.models", "headwise.models.families"),
    ),
    Group(
        "see",
        "See inside a model",
        "Records of every attention that a model computes, and what can be asked of them. "
        "[Watching](../concepts/watching.md) and [records](../concepts/records.md) are the ideas.",
        ("headwise.watch", "headwise.Seen", "headwise.AttentionRecord", "headwise.load"),
        ("headwise.capture", "headwise.records", "headwise.records.statistics"),
    ),
    Group(
        "look",
        "Look, draw, print",
        "A page, figures for papers, and a workbook of one computation. [The viewer](../viewer.md) shows the page.",
        ("headwise.view", "headwise.show"),
        ("headwise.plot", "headwise.worksheet", "headwise.viewer"),
    ),
    Group(
        "text",
        "Name the positions",
        "Tokens with readable labels, words and sentences, and the patches of images.",
        (),
        ("headwise.text",),
    ),
    Group(
        "analyses",
        "Analyse what was seen",
        "From the records of a whole run: rollout, relevance, patterns, and the comparison of two runs.",
        (),
        ("headwise.analyses",),
    ),
    Group(
        "profiles",
        "Describe every head over a data set",
        "Distributions, patterns and examples of every head, in bounded memory. [The guide](../profile.md).",
        (),
        ("headwise.profiles",),
    ),
    Group(
        "edits",
        "Change a run",
        "Attention of any model, changed while it runs. [Editing](../concepts/editing.md) is the idea.",
        ("headwise.edit",),
        ("headwise.edits",),
    ),
    Group(
        "experiments",
        "Find out which heads matter",
        "Patching, ablation, attribution, circuits. [The guide](../experiments.md).",
        (),
        ("headwise.experiments",),
    ),
    Group(
        "doctor",
        "Check a module",
        "Whether a module computes attention, and which mistake it has if not. "
        "[The doctor](../concepts/doctor.md) is the idea.",
        (
            "headwise.diagnose",
            "headwise.doctor.finding.Findings",
            "headwise.doctor.comparing.comparison.Differences",
            "headwise.doctor.gradients.checked.CheckedGradients",
        ),
        ("headwise.doctor", "headwise.testing"),
    ),
    Group(
        "tasks",
        "Train on your own data",
        "One class a task: train, evaluate, predict, look inside. [The guide](../train.md).",
        ("headwise.tasks.trainable.Trainable",),
        ("headwise.tasks",),
    ),
    Group(
        "parallel",
        "Share a sequence",
        "Attention over a sequence that several processes hold, with every mask. "
        "[The guide](../distributed.md#a-sequence-that-several-processes-share).",
        ("headwise.context_parallel", "headwise.shard", "headwise.gather"),
        ("headwise.parallel",),
    ),
    Group(
        "ship",
        "Export and serve",
        "What `headwise export` and `headwise serve` call. "
        "[Export](../export.md) and [serving](../serve.md) are the guides.",
        (
            "headwise.export.exporting.export",
            "headwise.export.exported.Exported",
        ),
        ("headwise.export", "headwise.server.protocols", "headwise.server.interfaces"),
    ),
    Group(
        "keras",
        "The same in Keras",
        "Twins of the modules, on TensorFlow, JAX and PyTorch. [The guide](../keras.md).",
        (),
        tuple(
            f"headwise.keras{part}" for part in ("", ".positions", ".kernels", ".convert", ".watching", ".callbacks")
        ),
    ),
    Group(
        "tiles",
        "Write a kernel",
        "A mask as a list of tiles, which kernels that skip work go through. "
        "[Contributing](../../CONTRIBUTING.md#to-add-a-kernel) says how.",
        (),
        ("headwise.tiles",),
    ),
    Group("errors", "Errors", "Each is also the built-in exception that a caller expects.", (), ("headwise.errors",)),
)


def public(module: str) -> list[str]:
    """The public names of a module: its `__all__`; where that is made by code, its own classes, and what it imports
    under the same name for type checkers. Modules within it stand on their own."""
    tree = _tree(module)
    listed = _listed(tree)
    names = _defined(tree) if listed is None else listed
    parts = {name.name for node in tree.body if _imports_from(node, module) for name in node.names}
    return [name for name in names if name not in parts]


@functools.cache
def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text(encoding="utf-8"))


def _imports_from(node: ast.stmt, package: str) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.module == package


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value) if isinstance(node.value, ast.List) else None
    return None


def _defined(tree: ast.Module) -> list[str]:
    own = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return sorted(name.name for node in nodes for name in node.names if name.asname == name.name) + own


def home(name: str) -> str:
    """Where a public name is defined: the same for all names of one thing."""
    module, _, last = name.rpartition(".")
    origin = _imported(module).get(last)
    return name if origin is None else home(origin)


@functools.cache
def _imported(module: str) -> dict[str, str]:
    """What a module imports from others, by the name that it has there; also for type checkers alone."""
    body = _tree(module).body
    inner = [node for branch in body if isinstance(branch, ast.If) for node in branch.body]
    nodes = [node for node in [*inner, *body] if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
