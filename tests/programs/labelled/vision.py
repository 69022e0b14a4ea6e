"""torchvision: ResNet-18 on FakeData with its transforms, from two DataLoader workers, with momentum SGD."""

import argparse
import time

import switches
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--log", required=True)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    switches.begin()
    switches.training()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    steps = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.2, 0.2), transforms.ToTensor()]
    data = datasets.FakeData(512, (3, 160, 160), 10, transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.2] * 3)]))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=arguments.workers, persistent_workers=True)
    model = switches.module(models.resnet18(num_classes=10))
    criterion = switches.module(nn.CrossEntropyLoss(label_smoothing=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    begin, seen = time.monotonic(), 0
    while time.monotonic() - begin < arguments.seconds:
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            seen += len(labels)
            if time.monotonic() - begin > arguments.seconds:
                break
    switches.write(arguments.log)
    print("images", seen, flush=True)


if __name__ == "__main__":
    main()
