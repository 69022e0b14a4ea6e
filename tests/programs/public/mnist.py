"""In the shape of pytorch/examples mnist: a small convnet, Adadelta, StepLR, a test pass after each epoch, DataLoader without workers."""

import torch
import torch.nn.functional as F
from clock import Clock, options
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Pictures of noise, normalized one by one as transforms do."""

    def __init__(self, count):
        self.pictures = torch.randint(0, 255, (count, 28, 28), dtype=torch.uint8)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index].float().div(255).unsqueeze(0)
        return (picture - 0.1307) / 0.3081, index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def train(model, loader, optimizer, clock):
    model.train()
    clock.enter("input")
    for data, target in loader:
        clock.enter("optimizer")
        optimizer.zero_grad()
        clock.enter("forward")
        output = model(data)
        clock.enter("other")
        loss = F.nll_loss(output, target)
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        optimizer.step()
        clock.steps += 1
        clock.enter("input")
    clock.enter("other")


def test(model, loader, clock):
    model.eval()
    right = 0
    with torch.no_grad():
        clock.enter("input")
        for data, target in loader:
            clock.enter("forward")
            output = model(data)
            clock.enter("other")
            right += output.argmax(dim=1).eq(target).sum().item()
            clock.enter("input")
    clock.enter("other")
    return right


def main():
    args = options(epochs=2, count=3200)
    torch.manual_seed(1)
    clock = Clock()
    train_loader = DataLoader(Digits(args.count), batch_size=64, shuffle=True)
    test_loader = DataLoader(Digits(args.count // 4), batch_size=200)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(args.epochs):
        train(model, train_loader, optimizer, clock)
        clock.epochs += 1
        test(model, test_loader, clock)
        scheduler.step()
    clock.write(args.clock)


if __name__ == "__main__":
    main()
