"""Training on headwise's kernels with the tools that people use: LoRA of PEFT, and the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch.testing import assert_close

from tests.transformers.test_attention import make, tokens


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # PEFT calls it by its old name
def test_lora_of_peft_trains_as_with_eager_attention() -> None:
    found = []
    for implementation in ("eager", "headwise"):
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        torch.manual_seed(1)
        model = peft.get_peft_model(make("mistral", implementation).train(), config)
        model(**tokens(1), labels=tokens(1)["input_ids"]).loss.backward()
        found.append({name: x.grad for name, x in model.named_parameters() if x.grad is not None})
    assert found[0]
    assert found[0].keys() == found[1].keys()
    for name, x in found[0].items():
        assert_close(found[1][name], x, rtol=1e-4, atol=1e-6, msg=name)


def test_the_trainer_ends_with_the_same_weights(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"input_ids": x, "labels": x} for x in tokens(6)["input_ids"]]
    found = []
    for implementation in ("eager", "headwise"):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / implementation),
            max_steps=3,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            seed=3,
        )
        model = make("gemma2", implementation)
        transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()  # type: ignore[arg-type]
        found.append(model.state_dict())
    start = make("gemma2").state_dict()
    for name, x in found[0].items():
        assert_close(found[1][name], x, rtol=1e-3, atol=1e-4, msg=name)
    assert not torch.equal(
        start["model.layers.0.self_attn.q_proj.weight"], found[1]["model.layers.0.self_attn.q_proj.weight"]
    )
