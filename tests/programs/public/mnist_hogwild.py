"""In the shape of pytorch/examples mnist_hogwild: a parent that waits in join(), children that train one shared model."""

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from clock import Clock, options
from mnist import Digits, Net, train
from torch import optim
from torch.utils.data import DataLoader


def child(rank, args, model):
    torch.manual_seed(1 + rank)
    clock = Clock()
    loader = DataLoader(Digits(args.count), batch_size=64, shuffle=True)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for _ in range(args.epochs):
        train(model, loader, optimizer, clock)
        clock.epochs += 1
    clock.write(args.clock, rank)


def main():
    args = options(epochs=2, count=3840, processes=2)
    torch.set_num_threads(1)
    model = Net().share_memory()
    mp.set_start_method("spawn")
    children = [mp.Process(target=child, args=(rank, args, model)) for rank in range(args.processes)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    with torch.no_grad():
        F.log_softmax(model(torch.rand(64, 1, 28, 28)), dim=1)


if __name__ == "__main__":
    main()
