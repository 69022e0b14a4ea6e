"""In the shape of pytorch/examples imagenet: a resnet, SGD with momentum, workers, meters with `.item()`, validation, a checkpoint an epoch."""

import tempfile

import torch
from clock import Clock, options
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3, 64, 64).sub(0.45).div(0.22), index % 100


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2))
        self.fc = nn.Linear(128, 100)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def accuracy(output, target):
    with torch.no_grad():
        return output.topk(5, 1)[1].eq(target.view(-1, 1)).sum().item()


def train(loader, model, criterion, optimizer, clock):
    model.train()
    meters = [0.0, 0]
    clock.enter("input")
    for images, target in loader:
        clock.enter("forward")
        output = model(images)
        loss = criterion(output, target)
        clock.enter("other")
        meters[0] += loss.item()
        meters[1] += accuracy(output, target)
        clock.enter("optimizer")
        optimizer.zero_grad()
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        optimizer.step()
        clock.steps += 1
        clock.enter("input")
    clock.enter("other")


def validate(loader, model, criterion, clock):
    model.eval()
    with torch.no_grad():
        clock.enter("input")
        for images, target in loader:
            clock.enter("forward")
            output = model(images)
            criterion(output, target)
            clock.enter("other")
            accuracy(output, target)
            clock.enter("input")
    clock.enter("other")


def main():
    args = options(epochs=2, batches=80, size=16, workers=2)
    torch.manual_seed(1)
    clock = Clock()
    loader = DataLoader(Pictures(args.batches * args.size), batch_size=args.size, shuffle=True, num_workers=args.workers)
    checks = DataLoader(Pictures(4 * args.size), batch_size=args.size, num_workers=args.workers)
    model, criterion = ResNet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    for epoch in range(args.epochs):
        train(loader, model, criterion, optimizer, clock)
        clock.epochs += 1
        validate(checks, model, criterion, clock)
        scheduler.step()
        clock.enter("checkpoint")
        with tempfile.TemporaryFile() as file:
            torch.save({"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        clock.enter("other")
    clock.write(args.clock)


if __name__ == "__main__":
    main()
