"""One step of GSPO on exported rows, with TRL as the trainer. It runs on a CPU, and needs `pip install trl .`.

acmserve export *.jsonl --rewards rewards.jsonl --output train.jsonl
python gspo_with_trl.py MODEL train.jsonl trained
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from acmserve.training.losses.gspo import gspo_loss
from acmserve.training.losses.log_probs import sampled_log_probs


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad the rows of a batch on the right, and number its sessions."""
    size = max(len(row["input_ids"]) for row in rows)
    names = [row["session_id"] for row in rows]

    def padded(name: str) -> torch.Tensor:
        return torch.tensor([row[name] + [0] * (size - len(row[name])) for row in rows])

    return {
        "input_ids": padded("input_ids"),
        "attention_mask": torch.tensor([[int(i < len(row["input_ids"])) for i in range(size)] for row in rows]),
        "loss_mask": padded("loss_mask"),
        "logprobs": padded("logprobs"),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "rollouts": torch.tensor([names.index(name) for name in names]),
    }


class GspoTrainer(SFTTrainer):
    """TRL's trainer, with the loss of exported samples."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """All samples of a session are one sequence."""
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        log_probs = sampled_log_probs(outputs.logits, inputs["input_ids"])
        loss = gspo_loss(
            log_probs, inputs["logprobs"], inputs["loss_mask"], inputs["advantages"], rollouts=inputs["rollouts"]
        )
        return (loss, outputs) if return_outputs else loss


def train(model: str, rows: Dataset, output: str, learning_rate: float) -> float:
    """One step on all rows. The loss before it."""
    trainer = GspoTrainer(
        model,
        args=SFTConfig(
            output_dir=output,
            per_device_train_batch_size=len(rows),
            max_steps=1,
            learning_rate=learning_rate,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            remove_unused_columns=False,
            dataset_kwargs={"skip_prepare_dataset": True},
            report_to="none",
            save_strategy="no",
        ),
        train_dataset=rows,
        data_collator=collate,
    )
    loss: float = trainer.train().metrics["train_loss"]
    trainer.save_model(output)
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the folder of the model that was served")
    parser.add_argument("rows", help="what `acmserve export --rewards` wrote")
    parser.add_argument("output", help="the folder of the trained model")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parsed = parser.parse_args()
    print(train(parsed.model, Dataset.from_json(parsed.rows), parsed.output, parsed.learning_rate))
