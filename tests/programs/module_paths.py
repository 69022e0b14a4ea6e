"""Trains a model whose modules are known by name, until SIGUSR1.

usage: module_paths.py resnet|bert|bert-recomputed|lightning|nested|wrapped
After its first step it prints "ready" and waits for a line; then it trains, and at the end prints one line of JSON: `names`, class by what named_modules() has, less
wrappers; `steps`. resnet and lightning need torchvision and Lightning, bert transformers; the others torch alone.
"""

import json
import os
import signal
import sys

import torch
from torch import nn

WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")
stopping = False


def stop(*_):
    global stopping
    stopping = True


def ready():
    """After the first step: the optimizer imports much of torch."""
    print("ready", flush=True)
    sys.stdin.readline()


class Cell(nn.Module):
    def __init__(self, width, shared):
        super().__init__()
        self.parts = nn.ModuleDict({"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)})
        self.shared = shared

    def forward(self, batch):
        return self.shared(batch + self.parts["down"](torch.relu(self.parts["up"](batch))))


class Nested(nn.Module):
    """Containers indexed within each other, a module that many hold, and one under two names."""

    def __init__(self, width=256):
        super().__init__()
        self.shared = nn.LayerNorm(width)
        self.alias = self.shared
        self.stages = nn.ModuleList(nn.ModuleList(Cell(width, self.shared) for _ in range(3)) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, width), nn.Sequential(nn.ReLU(), nn.Linear(width, 10)))

    def forward(self, batch):
        for stage in self.stages:
            for cell in stage:
                batch = cell(batch)
        return self.head(self.alias(batch))


def nested():
    return Nested(), torch.randn(256, 256)


def wrapped():
    """DDP of a model with checkpointed blocks, one of them compiled."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29511"))
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    model = Nested()
    for stage in model.stages:
        for index, cell in enumerate(stage):
            stage[index] = checkpoint_wrapper(cell)
    # Nothing is compiled: the wrapper and its frames are what is looked at.
    model.head = torch.compile(model.head, backend="eager")
    return nn.parallel.DistributedDataParallel(model), torch.randn(256, 256)


def resnet():
    from torchvision.models import resnet18

    return resnet18(num_classes=10), torch.randn(4, 3, 96, 96)


class Classifier(nn.Module):
    """A transformers model, and what it is called with."""

    def __init__(self, recomputed):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=512, num_labels=10)
        self.bert = BertForSequenceClassification(config)
        if recomputed:
            self.bert.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, tokens):
        return self.bert(tokens).logits


def bert(recomputed=False):
    return Classifier(recomputed), torch.randint(0, 1000, (8, 64))


def loop(model, batch):
    """A plain loop that ends with an evaluation now and then."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.zeros(len(batch), dtype=torch.long)
    steps = 0
    while not stopping:
        optimizer.zero_grad()
        criterion(model(batch), target).backward()
        optimizer.step()
        steps += 1
        if steps == 1:
            ready()
        if steps % 10 == 0:
            model.eval()
            with torch.no_grad():
                model(batch)
            model.train()
    return model, steps


def lightning():
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone = resnet()[0]
            self.criterion = nn.CrossEntropyLoss()

        def training_step(self, batch, _):
            images, target = batch
            return self.criterion(self.backbone(images), target)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 1:
                ready()
            trainer.should_stop = stopping

    images, target = torch.randn(64, 3, 96, 96), torch.zeros(64, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, target), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=100_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stop()],
    )
    model = Lit()
    trainer.fit(model, loader)
    return model, trainer.global_step


def names(model):
    """Class by name, less wrappers."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        # From the outermost in: what is wrapped comes last, and stays.
        found[".".join(part for part in name.split(".") if part not in WRAPPERS)] = type(module).__name__
    return found


def main(which):
    signal.signal(signal.SIGUSR1, stop)
    torch.set_num_threads(1)
    models = {"resnet": resnet, "bert": bert, "bert-recomputed": lambda: bert(True), "nested": nested, "wrapped": wrapped}
    model, steps = lightning() if which == "lightning" else loop(*models[which]())
    print(json.dumps({"names": names(model), "steps": steps}), flush=True)
    # As slow_rank.py ends, and for the same reason.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
