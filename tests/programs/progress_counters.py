"""Stand-ins for what counts a training run's progress, held by frames in every way that loops hold them.

At each stop it prints one line of JSON, the counters that are held there with their values, then "ready", and waits for a line. Ends with
"done".
"""

import json
import sys


class _BaseDataLoaderIter:
    def __init__(self, batches, first=0, extra=0):
        self._dataset = [1, 2, 3]
        self._index_sampler = BatchSampler(16)
        self._num_workers = 4
        self._prefetch_factor = 2
        self._pin_memory = True
        for number in range(extra):
            setattr(self, f"attribute_{number}", number)
        self._num_yielded = first
        self.left = batches

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        self._num_yielded += 1
        return self.left


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    pass


class BatchSampler:
    def __init__(self, batch_size):
        self.batch_size = batch_size


class Loader:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __iter__(self):
        return _MultiProcessingDataLoaderIter(*self.arguments)


class Named:
    def __init__(self, **values):
        self.__dict__.update(values)


class Trainer:
    def __init__(self):
        self.state = Named(epoch=0.5, global_step=0)

    def train(self, steps):
        for _ in range(steps):
            self.state.global_step += 1
            stop(trainer_steps=self.state.global_step)


class _TrainingEpochLoop:
    def __init__(self):
        self.total = Named(ready=7, completed=0)
        step = Named(total=self.total, current=Named(completed=0))
        self.automatic_optimization = Named(optim_progress=Named(optimizer=Named(step=step)))

    def advance(self, steps):
        for _ in range(steps):
            self.total.completed += 1
            stop(lightning_steps=self.total.completed)


def stop(**counters):
    print(json.dumps(counters), flush=True)
    print("ready", flush=True)
    sys.stdin.readline()


def progress_bar(inner):
    label, shown = "bar", 0
    for item in inner:
        shown += 1
        yield item


def shards(inner):
    iterator = iter(inner)
    current = next(iterator)
    while True:
        try:
            following = next(iterator)
        except StopIteration:
            yield current
            return
        yield current
        current = following


def plain(loader, first=0):
    for number, _ in enumerate(loader, first + 1):
        stop(batches=number)


def directly(loader, first=0):
    number = first
    for _ in loader:
        number += 1
        stop(batches=number)


def together(loader):
    number = 0
    for _ in zip(range(100), loader):
        number += 1
        stop(batches=number)


def one_ahead(loader, batches):
    number = 0
    for _ in progress_bar(shards(loader)):
        number += 1
        stop(batches=min(number + 1, batches))


def closed_over(loader):
    iterator = iter(loader)

    def following():
        return next(iterator, None)

    number = 0
    while following() is not None:
        number += 1
        stop(batches=number)


def two_at_once(train, test):
    for number, _ in enumerate(train, 1):
        stop(batches=number)
    for _ in train:
        pass
    for number, _ in enumerate(test, 1):
        stop(batches=number)


plain(Loader(3))
directly(Loader(3))
directly(progress_bar(Loader(3)))
together(Loader(3))
one_ahead(Loader(4), 4)
closed_over(Loader(3))
# As many attributes as do not fit into shared keys; ints that are objects of their own, and of two digits.
directly(Loader(3, 0, 40))
directly(Loader(4, 255), 255)
directly(Loader(3, 2**30 - 2), 2**30 - 2)
two_at_once(Loader(3), Loader(3))
Trainer().train(3)
_TrainingEpochLoop().advance(3)
# At the level of a module.
for position, _ in enumerate(Loader(3), 1):
    stop(batches=position)
print("done", flush=True)
