"""A Lightning run that counts its own steps, epochs and their times; see train_progress.py for what it prints.

usage: train_lightning.py [--epochs N] [--batches N] [--accumulate N] [--validate]
"""

import argparse
import json
import logging
import time
import warnings

import torch

try:
    import lightning
except ImportError:
    import pytorch_lightning as lightning

from train_progress import Noise, net
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batches", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--validate", action="store_true")


class Classifier(lightning.LightningModule):
    def __init__(self, truth):
        super().__init__()
        self.model = net()
        self.criterion = torch.nn.CrossEntropyLoss()
        self.truth, self.before, self.last = truth, None, 0

    def training_step(self, batch, _):
        inputs, target = batch
        return self.criterion(self.model(inputs), target)

    def validation_step(self, batch, _):
        inputs, target = batch
        self.truth["evaluated"] += 1
        return self.criterion(self.model(inputs), target)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_epoch_start(self):
        self.before = None

    def on_train_batch_end(self, *_):
        self.truth["batches"] += 1
        if self.global_step == self.last:
            return
        self.last = self.global_step
        now = time.monotonic()
        if self.before is not None:
            self.truth["step_ms"].append((now - self.before) * 1000)
        self.before = now

    def on_train_epoch_end(self):
        self.truth["epochs"] += 1


def main():
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    truth = {"steps": 0, "epochs": 0, "batches": 0, "evaluated": 0, "step_ms": []}
    module = Classifier(truth)
    loader = DataLoader(Noise(arguments.batches * 32, 48), batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accumulate_grad_batches=arguments.accumulate,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, loader, loader if arguments.validate else None)
    truth["steps"] = trainer.global_step
    print(json.dumps(truth), flush=True)


if __name__ == "__main__":
    main()
