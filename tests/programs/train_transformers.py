"""A run of the Transformers Trainer that counts its own steps, epochs and their times; see train_progress.py for what it prints.

usage: train_transformers.py [--epochs N] [--batches N] [--accumulate N]
"""

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batches", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=1)


class Tokens(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": torch.arange(64) % 100 + index % 7, "labels": index % 2}


class Clock(TrainerCallback):
    def __init__(self, truth):
        self.truth, self.before = truth, None

    def on_epoch_begin(self, *_, **__):
        self.before = None

    def on_step_end(self, *_, **__):
        self.truth["steps"] += 1
        now = time.monotonic()
        if self.before is not None:
            self.truth["step_ms"].append((now - self.before) * 1000)
        self.before = now

    def on_epoch_end(self, *_, **__):
        self.truth["epochs"] += 1


def main():
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    truth = {"steps": 0, "epochs": 0, "step_ms": []}
    config = BertConfig(vocab_size=128, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256)
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=arguments.accumulate,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=options,
            train_dataset=Tokens(arguments.batches * 16),
            callbacks=[Clock(truth)],
        )
        trainer.train()
        # As most do at the end. A model that is gone within a tick of its last step takes the count of that step along.
        trainer.evaluate(Tokens(64))
    print(json.dumps(truth), flush=True)


if __name__ == "__main__":
    main()
