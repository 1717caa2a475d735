"""A text classifier of Hugging Face with its Trainer: Dropout on hidden states swapped for rotations, and a callback.

python examples/hf_text.py   (random weights, its own vocabulary; as any AutoModel. Needs: pip install -e '.[models]')
"""

import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import rotationout as ro

PRAISE = ["a fine warm film", "the acting is superb", "i loved every minute", "bright funny and kind", "a joy to watch"]
BLAME = ["a dull cold film", "the acting is wooden", "i hated every minute", "dim slow and cruel", "a chore to watch"]
WORDS = sorted({word for text in PRAISE + BLAME for word in text.split()})


class ScheduleCallback(TrainerCallback):
    """Takes a strength schedule to the optimizer step that the trainer is at, also in a run that is resumed."""

    def __init__(self, schedule: ro.Schedule) -> None:
        self.schedule = schedule

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step begins."""
        self.schedule.step(to=state.global_step)


def encode(text: str, label: int, length: int = 6) -> dict[str, torch.Tensor]:
    """Words as numbers, 1 for the start and 0 for padding."""
    ids = [1] + [WORDS.index(word) + 2 for word in text.split()]
    ids += [0] * (length - len(ids))
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(ids).ne(0).long(),
        "labels": torch.tensor(label),
    }


DATA = [encode(text, label) for label, texts in enumerate((BLAME, PRAISE)) for text in texts]


def build() -> BertForSequenceClassification:
    """A small model with rotations."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS) + 2, max_position_embeddings=8, **sizes))
    print(ro.swap(model))  # attention weights are left alone
    return model


def main(steps: int = 60) -> float:
    """Learn the sentences above, and return the accuracy on them."""
    torch.manual_seed(0)
    model = build()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, learning_rate=5e-3, save_strategy="no", report_to="none", disable_tqdm=True
        )
        callback = ScheduleCallback(ro.Schedule.ramp(model, steps=steps // 2))
        trainer = Trainer(model, arguments, train_dataset=DATA, callbacks=[callback])
        trainer.train()
        answers = trainer.predict(DATA)
    return float((answers.predictions.argmax(1) == answers.label_ids).mean())


if __name__ == "__main__":
    print(f"accuracy {main():.2f}")
