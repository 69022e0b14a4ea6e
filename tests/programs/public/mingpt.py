"""In the shape of minGPT's Trainer: a loader that samples with replacement, `next(data_iter)` in a try, callbacks, a number of steps."""

import torch
from clock import Clock, options
from gpt import GPT
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Sorting(Dataset):
    """Numbers and the same numbers sorted."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        numbers = torch.randint(0, 256, (32,))
        whole = torch.cat((numbers, numbers.sort()[0]))
        return whole[:-1].clone(), whole[1:].clone()


class Trainer:
    def __init__(self, model, dataset, clock, steps):
        self.model, self.dataset, self.clock, self.steps = model, dataset, clock, steps

    def run(self):
        model, clock = self.model, self.clock
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=int(1e10))
        loader = DataLoader(self.dataset, sampler=sampler, shuffle=False, batch_size=16, num_workers=0)
        model.train()
        clock.enter("input")
        data_iter = iter(loader)
        clock.epochs += 1
        while clock.steps < self.steps:
            clock.enter("input")
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(loader)
                clock.epochs += 1
                batch = next(data_iter)
            x, y = batch
            clock.enter("forward")
            _, self.loss = model(x, y)
            clock.enter("optimizer")
            model.zero_grad(set_to_none=True)
            clock.enter("backward")
            self.loss.backward()
            clock.enter("optimizer")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            clock.steps += 1


def main():
    args = options(steps=300)
    torch.manual_seed(3407)
    clock = Clock()
    Trainer(GPT(width=96, layers=3, heads=3), Sorting(), clock, args.steps).run()
    clock.write(args.clock)


if __name__ == "__main__":
    main()
