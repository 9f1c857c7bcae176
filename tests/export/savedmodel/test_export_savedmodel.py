"""A SavedModel of a trained classifier, written by one process and run by another that has TensorFlow alone."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from headwise import models, tasks
from headwise.errors import ArgumentError
from headwise.export.exported import Exported
from headwise.export.exporting import export
from tests.cli.conftest import reviews_run

__all__ = ["reviews_run"]

needs_tensorflow = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("keras", "tensorflow")), reason="no TensorFlow here"
)


@pytest.fixture(scope="module")
def exported(reviews_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(reviews_run, "savedmodel", tmp_path_factory.mktemp("exports") / "served", rows=["a good film"])


@needs_tensorflow
def test_it_is_laid_out_for_tensorflow_serving_and_near_to_the_model(exported: Exported) -> None:
    files = set(exported.files)
    assert {"1/saved_model.pb", "export.json", "card.md", "config.yaml", "tokenizer.json"} <= files
    (graph,) = exported.manifest.graphs
    assert (exported.manifest.kind, exported.manifest.task, graph.file) == ("savedmodel", "classify", "1")
    assert [value.name for value in graph.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    (difference,) = graph.differences
    assert difference.output == "logits"
    assert difference.relative < graph.tolerance == 1e-4
    card = (exported.folder / "card.md").read_text(encoding="utf-8")
    assert "| graph | batch | first input | PyTorch | TensorFlow |" in card


# What the card says, as a person would paste it, and the other signature; with TensorFlow alone.
CALL = """
import sys
import numpy as np
sys.modules |= dict.fromkeys(("keras", "headwise", "torch"))
{card}
sizes = [shape for _, shape in tf.train.list_variables("1/variables/variables")]
print(sum(int(np.prod(shape)) for shape in sizes if shape))
found = served_as("classify")(**{{name: values[name] for name in ("input_ids", "attention_mask", "token_type_ids")}})
tf.debugging.assert_near(found["scores"], tf.nn.softmax(values["logits"]))
print(b" ".join(found["classes"][0].numpy()).decode(), found["scores"].numpy()[0].tolist())
"""


@needs_tensorflow
def test_the_card_says_how_it_is_called_and_a_classifier_names_its_classes(
    exported: Exported, reviews_run: Path
) -> None:
    card = (exported.folder / "card.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code += 'served_as = tf.saved_model.load("1").signatures.__getitem__\n'
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(card=code)], cwd=exported.folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    label, count, classes = done.stdout.splitlines()
    task = tasks.load(reviews_run)
    (expected,) = task.predict(["a text to read"])
    assert label == expected["label"]
    assert int(count) == sum(parameter.numel() for parameter in task.model.parameters())  # none of them twice
    assert classes.startswith("bad good [")
    scores = [float(number) for number in re.findall(r"[\d.]+", classes)]
    wanted = [expected["probability of bad"], expected["probability of good"]]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


@needs_tensorflow
@pytest.mark.slow
def test_the_longest_input_is_told(tiny_bert: Path, tmp_path: Path) -> None:
    done = export(tiny_bert, "savedmodel", tmp_path / "out", speed=False)
    assert "The size of axis length is at most 32." in done.manifest.notes


def test_a_model_without_a_twin_is_told_what_can_be_done_instead(tmp_path: Path) -> None:
    model = models.CausalLanguageModel(models.CausalConfig(20, dim=8, num_layers=1, num_heads=2))
    for given in (model, nn.Linear(2, 2)):
        with pytest.raises(ArgumentError, match=rf"a {type(given).__name__} .* has none. Use --to onnx or --to torch"):
            export(given, "savedmodel", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
