"""Trainings on a GPU as people write them, for the simulated node (scripts/gpu-sim).

usage: gpu_train.py --model KIND --steps N. Prints "ready" before the first step, and a line of JSON at the end: `steps`,
`step_ns` with begin and end of each step, and `phases` with begin and end of each time in input, forward, backward, optimizer and
other, in ns of CLOCK_MONOTONIC. `two_devices` wants two devices. With --modules hooks take the time of each top-level module in
forward (`module_ns`, by the class of the outermost one and the name in it); with --profile torch.profiler takes that of operators
(`self_cpu_us`, `calls`). Both leave out the first steps.
"""

import argparse
import collections
import functools
import gc
import json
import threading
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda:0"
# Steps before hooks and torch.profiler begin.
SKIPPED = 3


class ModuleTimes:
    """Time in forward of each module that an outermost one calls."""

    def __init__(self):
        self.ns = collections.Counter()

    def begin(self, clock):
        modules = [each for each in gc.get_objects() if isinstance(each, nn.Module)]
        inner = {id(child) for module in modules for child in module.children()}
        for root in modules:
            if id(root) not in inner:
                self.watch(clock, type(root).__name__, "", root)

    def watch(self, clock, root, path, module):
        begun = []

        def enter(*_):
            begun.append((clock.phase, time.monotonic_ns()))

        def leave(*_):
            phase, begin = begun.pop()
            # Not where it is recomputed.
            self.ns[f"{root} {path}"] += time.monotonic_ns() - begin if phase == "forward" else 0

        if not isinstance(module, nn.ModuleList):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
        if not path or isinstance(module, nn.ModuleList):
            for name, child in module.named_children():
                self.watch(clock, root, f"{path}.{name}".lstrip("."), child)

    def end(self):
        return {"module_ns": self.ns}


class OperatorTimes:
    """Own time of each operator on the host, by torch.profiler."""

    def begin(self, _):
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self.profiler.start()

    def end(self):
        self.profiler.stop()
        events = self.profiler.key_averages()
        return {"self_cpu_us": {each.key: each.self_cpu_time_total for each in events}, "calls": {each.key: each.count for each in events}}


class Clock:
    """When which phase ran, as the script itself sees it."""

    def __init__(self, steps, observer=None):
        self.steps = steps
        self.observer, self.observed = observer, {}
        self.step_ns = []
        self.phases = {phase: [] for phase in ("input", "forward", "backward", "optimizer", "other")}

    def start(self):
        print("ready", flush=True)
        self.start_step()

    def start_step(self):
        self.phase, self.begin = "input", time.monotonic_ns()
        self.step_begin = self.begin

    def at(self, phase):
        """The end of one phase and the begin of the next."""
        now = time.monotonic_ns()
        self.phases[self.phase].append((self.begin, now))
        self.phase, self.begin = phase, now

    def end_step(self):
        self.at("input")
        self.step_ns.append((self.step_begin, self.begin))
        self.step_begin = self.begin
        if self.observer and len(self.step_ns) in (SKIPPED, self.steps):
            # On the thread that trains.
            if len(self.step_ns) == self.steps:
                self.observed = self.observer.end()
            else:
                self.observer.begin(self)
            self.start_step()

    def __iter__(self):
        self.start()
        for number in range(self.steps):
            yield number

    def text(self):
        return json.dumps({"steps": len(self.step_ns), "step_ns": self.step_ns, "phases": self.phases, **self.observed})


class Images(Dataset):
    def __init__(self, count, side=64):
        self.count = count
        self.images = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = self.images[index % len(self.images)]
        image = image.flip(2) if index % 2 else image
        return image.float().div(255).sub(0.5), index % 10


def convolution(inner, outer):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())


class CNN(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.stem = convolution(3, width)
        self.stages = nn.ModuleList(
            nn.Sequential(convolution(width << n, width << n + 1), convolution(width << n + 1, width << n + 1), nn.MaxPool2d(2))
            for n in range(depth)
        )
        self.head = nn.Linear(width << depth, 10)

    def forward(self, images):
        images = self.stem(images)
        for stage in self.stages:
            images = stage(images)
        return self.head(images.mean(dim=(2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self, layers=6, width=384, heads=6, vocabulary=4096, length=256, reentrant=None):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.reentrant = reentrant

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(text, batch=8, length=256):
    """Pieces of a text, and the same one token later, as nanoGPT takes them."""
    starts = torch.randint(len(text) - length - 1, (batch,)).tolist()
    tokens = torch.stack([text[start : start + length] for start in starts])
    targets = torch.stack([text[start + 1 : start + 1 + length] for start in starts])
    return tokens.pin_memory().to(DEVICE, non_blocking=True), targets.pin_memory().to(DEVICE, non_blocking=True)


def some_text():
    return torch.randint(4096, (1 << 20,))


def sample_batch(count, *tensors):
    """Some rows of tensors in the host's memory."""
    rows = torch.randint(len(tensors[0]), (count,))
    return [tensor[rows] for tensor in tensors]


def mlp(width, depth, outer):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, outer))


def cnn(clock):
    model = CNN().to(DEVICE)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Images(clock.steps * 32), batch_size=32, num_workers=2, pin_memory=True)
    seen = 0.0
    clock.start()
    for images, labels in loader:
        clock.at("other")
        images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        clock.at("optimizer")
        optimizer.zero_grad()
        clock.at("forward")
        loss = criterion(model(images), labels)
        clock.at("backward")
        loss.backward()
        clock.at("optimizer")
        optimizer.step()
        clock.at("other")
        seen += loss.item()
        clock.end_step()


def gpt(clock, reentrant=None):
    text = some_text()
    model = GPT(reentrant=reentrant).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in clock:
        tokens, targets = get_batch(text)
        clock.at("forward")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, targets)
        clock.at("backward")
        loss.backward()
        clock.at("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9:
            clock.at("other")
            loss.item()
        clock.end_step()


def graphs(clock):
    """A whole step in a graph: what the host does is to fill its input and to replay it."""
    text = some_text()
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True)
    tokens, targets = get_batch(text)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in clock:
        next_tokens, next_targets = get_batch(text)
        clock.at("other")
        tokens.copy_(next_tokens)
        targets.copy_(next_targets)
        graph.replay()
        loss.item()
        clock.end_step()


def inference(clock):
    model = CNN().to(DEVICE).eval()
    loader = DataLoader(Images(clock.steps * 64), batch_size=64, num_workers=2, pin_memory=True)
    right = 0
    clock.start()
    with torch.no_grad():
        for images, labels in loader:
            clock.at("other")
            images = images.to(DEVICE, non_blocking=True)
            clock.at("forward")
            logits = model(images)
            clock.at("other")
            right += int((logits.argmax(dim=1).cpu() == labels).sum())
            clock.end_step()


def accumulation(clock, micro=4):
    text = some_text()
    model = GPT(layers=4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in clock:
        for _ in range(micro):
            clock.at("input")
            tokens, targets = get_batch(text)
            clock.at("forward")
            loss = model(tokens, targets)
            clock.at("backward")
            (loss / micro).backward()
        clock.at("optimizer")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.at("other")
        loss.item()
        clock.end_step()


def gan(clock):
    generator, critic = mlp(256, 6, 784).to(DEVICE), mlp(784, 4, 1).to(DEVICE)
    criterion = nn.BCEWithLogitsLoss()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    data = torch.randn(4096, 784)
    real_label, fake_label = torch.ones(64, 1, device=DEVICE), torch.zeros(64, 1, device=DEVICE)
    for _ in clock:
        (real,) = sample_batch(64, data)
        clock.at("other")
        real, noise = real.to(DEVICE), torch.randn(64, 256, device=DEVICE)
        clock.at("forward")
        fake = generator(noise)
        critic_loss = criterion(critic(real), real_label) + criterion(critic(fake.detach()), fake_label)
        clock.at("backward")
        critic_loss.backward()
        clock.at("optimizer")
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        clock.at("forward")
        generator_loss = criterion(critic(fake), real_label)
        clock.at("backward")
        generator_loss.backward()
        clock.at("optimizer")
        generator_optimizer.step()
        generator_optimizer.zero_grad()
        critic_optimizer.zero_grad()
        clock.at("other")
        critic_loss.item()
        generator_loss.item()
        clock.end_step()


class LoRA(nn.Module):
    """A linear layer that stays as it is, and a small part beside it that is trained."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora(clock):
    text = some_text()
    model = GPT().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = LoRA(block.qkv), LoRA(block.out)
    model.to(DEVICE)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in clock:
        tokens, targets = get_batch(text)
        clock.at("forward")
        loss = model(tokens, targets)
        clock.at("backward")
        loss.backward()
        clock.at("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        clock.at("other")
        loss.item()
        clock.end_step()


def hooks(clock):
    """Hooks in Python that run in backward: of tensors, of modules, and of gradients that are complete."""
    text = some_text()
    model = GPT().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []

    def note(module, grad_input, grad_output):
        seen.append(sum(len(str(gradient.shape)) for gradient in grad_output for _ in range(50)))

    def clip_gradient(module, arguments, output):
        output.register_hook(lambda gradient: gradient.clamp(-1, 1))

    for block in model.blocks:
        block.register_full_backward_hook(note)
        block.mlp.register_forward_hook(clip_gradient)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.numel()))
    for _ in clock:
        tokens, targets = get_batch(text)
        clock.at("forward")
        loss = model(tokens, targets)
        clock.at("backward")
        loss.backward()
        clock.at("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        clock.at("other")
        seen.clear()
        loss.item()
        clock.end_step()


def caller(clock):
    """Training on a thread that is not the main one."""
    thread = threading.Thread(target=gpt, args=(clock,), name="trainer")
    thread.start()
    thread.join()


class Split(nn.Module):
    """The first half on one device, the second on another."""

    def __init__(self, width=1024, depth=24):
        super().__init__()
        self.first = mlp(width, depth, width).to("cuda:0")
        self.second = mlp(width, depth, 10).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x.to("cuda:0")).to("cuda:1"))


def two_devices(clock):
    model = Split()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, labels = torch.randn(4096, 1024), torch.randint(10, (4096,))
    for _ in clock:
        batch, target = sample_batch(128, data, labels)
        clock.at("other")
        target = target.to("cuda:1")
        clock.at("forward")
        loss = criterion(model(batch), target)
        clock.at("backward")
        loss.backward()
        clock.at("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        clock.at("other")
        loss.item()
        clock.end_step()


def amp(clock):
    model = CNN().to(DEVICE)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(Images(clock.steps * 32), batch_size=32, num_workers=2, pin_memory=True)
    clock.start()
    for images, labels in loader:
        clock.at("other")
        images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        clock.at("forward")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(images), labels)
        clock.at("backward")
        scaler.scale(loss).backward()
        clock.at("optimizer")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        clock.end_step()


KINDS = {
    "cnn": cnn,
    "gpt": gpt,
    "graphs": graphs,
    "inference": inference,
    "accumulation": accumulation,
    "checkpoint": functools.partial(gpt, reentrant=False),
    "checkpoint_reentrant": functools.partial(gpt, reentrant=True),
    "gan": gan,
    "lora": lora,
    "hooks": hooks,
    "caller": caller,
    "two_devices": two_devices,
    "amp": amp,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=KINDS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--modules", action="store_const", dest="observer", const=ModuleTimes)
    parser.add_argument("--profile", action="store_const", dest="observer", const=OperatorTimes)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clock = Clock(arguments.steps, arguments.observer() if arguments.observer else None)
    KINDS[arguments.model](clock)
    torch.cuda.synchronize()
    print(clock.text(), flush=True)


if __name__ == "__main__":
    main()
