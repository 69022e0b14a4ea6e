"""Lightning: a module with a training and a validation step under Trainer, with a schedule, clipping and checkpoints."""

import argparse
import logging
import tempfile
import time
import warnings

import lightning
import switches
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loops import fetchers
from lightning.pytorch.loops.optimization.automatic import Closure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12_544, 256)
        )
        self.head = nn.Linear(256, 10)

    def forward(self, images):
        return self.head(torch.relu(self.net(images)))

    def training_step(self, batch, number):
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        images, labels = batch
        self.log("right", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


class UntilTime(Callback):
    """Ends the training after some seconds."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop |= time.monotonic() > self.end


def batches(count):
    return DataLoader(TensorDataset(torch.randn(count, 1, 32, 32), torch.randint(0, 10, (count,))), batch_size=64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--switches", required=True)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    switches.around(lightning.Trainer, "save_checkpoint", "checkpoint")
    switches.around(TorchCheckpointIO, "remove_checkpoint", "checkpoint")
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = switches.module(Lit())
    # The closure that an optimizer's step calls is the training step, and no optimizer's work.
    switches.around(Closure, "closure", "user")
    for fetcher in (fetchers._DataFetcher, fetchers._PrefetchDataFetcher):
        switches.around(fetcher, "__iter__", "input")
        switches.around(fetcher, "__next__", "input")
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1000,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
            num_sanity_val_steps=0,
            callbacks=[UntilTime(arguments.seconds), ModelCheckpoint(folder, every_n_train_steps=15)],
        )
        trainer.fit(model, batches(2048), batches(256))
    switches.write(arguments.switches)
    print("steps", trainer.global_step, flush=True)


if __name__ == "__main__":
    main()
