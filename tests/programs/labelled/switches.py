"""Says what a training script does at every moment, from hooks and wrappers of its own: the truth for phases.

A switch is written down with CLOCK_MONOTONIC before and after its own work: [before_ns, after_ns, native thread id, phase]. From
after_ns on the thread is in the phase; what lies between belongs to neither. Phases nest, and the innermost counts. Before the first
switch the script imports.

What is called a phase here is what torchspy's README says of it, told by other means: hooks of modules and optimizers, wrappers
around the loader's `__next__`, `backward`, collectives and saving, and dynamo's own callbacks. No name of a stack frame is looked at.
"""

import functools
import json
import os
import threading
import time

now = time.monotonic_ns
log = []
phases_of = threading.local()
owner = os.getpid()


def _stack():
    try:
        return phases_of.stack
    except AttributeError:
        phases_of.tid = threading.get_native_id()
        phases_of.stack = ["user"]
        return phases_of.stack


def enter(phase):
    """The thread is in `phase`, until `leave`."""
    before = now()
    _stack().append(phase)
    log.append((before, now(), phases_of.tid, phase))


def leave():
    """The thread is back in what it was in."""
    before = now()
    stack = _stack()
    stack.pop()
    log.append((before, now(), phases_of.tid, stack[-1]))


def begin():
    """Imports are over."""
    enter("user")


def around(holder, name, phase):
    """All calls of `holder.name` are in `phase`."""
    inner = getattr(holder, name)

    @functools.wraps(inner)
    def call(*positional, **named):
        if os.getpid() != owner:
            return inner(*positional, **named)
        enter(phase)
        try:
            return inner(*positional, **named)
        finally:
            leave()

    setattr(holder, name, call)


def around_items(holder, name, phase):
    """What iterators that `holder.name` makes do until they yield is in `phase`."""
    inner = getattr(holder, name)

    @functools.wraps(inner)
    def iterate(*positional, **named):
        enter(phase)
        try:
            items = inner(*positional, **named)
        finally:
            leave()
        while True:
            enter(phase)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                leave()
            yield item

    setattr(holder, name, iterate)


def module(root, phase="forward"):
    """Calls of a module, those inside of it included, are in `phase`."""
    root.register_forward_pre_hook(lambda *_: enter(phase))
    root.register_forward_hook(lambda *_: leave(), always_call=True)
    return root


def training():
    """What every trainer has: loader, backward, optimizer, schedules, checkpoints, collectives."""
    import torch
    import torch.distributed as dist
    from torch.optim import lr_scheduler, optimizer
    from torch.utils.data import dataloader

    around(dataloader.DataLoader, "__iter__", "input")
    around(dataloader._BaseDataLoaderIter, "__next__", "input")
    around(torch.Tensor, "backward", "backward")
    optimizer.register_optimizer_step_pre_hook(lambda *_: enter("optimizer"))
    optimizer.register_optimizer_step_post_hook(lambda *_: leave())
    around(torch.optim.Optimizer, "zero_grad", "optimizer")
    around(torch.nn.Module, "zero_grad", "optimizer")
    around(lr_scheduler.LRScheduler, "step", "optimizer")
    for holder in (torch.nn.utils, torch.nn.utils.clip_grad):
        around(holder, "clip_grad_norm_", "optimizer")
    around(torch, "save", "checkpoint")
    around(torch, "load", "checkpoint")
    for name in ("init_process_group", "destroy_process_group", "all_reduce", "broadcast", "barrier", "all_gather"):
        around(dist, name, "communication")


def compiling():
    """What the compiler does, whatever calls it."""
    from torch._dynamo import callback

    callback.on_compile_start(lambda *_: enter("compile"))
    callback.on_compile_end(lambda *_: leave())


def write(path):
    """Writes the log: {"pid", "tid" of the main thread, "switches", "end_ns"}."""
    end = now()
    log_of = {"pid": os.getpid(), "tid": threading.main_thread().native_id, "switches": log, "end_ns": end}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(log_of, file)
