"""In the shape of pytorch/examples dcgan: two nets of the same kinds of layers, three backwards a step, two Adams."""

import torch
from clock import Clock, options
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

NOISE, WIDTH = 100, 16


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inputs = [], NOISE
        for outputs, stride, padding in ((WIDTH * 8, 1, 0), (WIDTH * 4, 2, 1), (WIDTH * 2, 2, 1), (WIDTH, 2, 1)):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]
            inputs = outputs
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(inputs, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x):
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inputs = [], 3
        for outputs in (WIDTH, WIDTH * 2, WIDTH * 4, WIDTH * 8):
            norm = [nn.BatchNorm2d(outputs)] if inputs > 3 else []
            layers += [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), *norm, nn.LeakyReLU(0.2, inplace=True)]
            inputs = outputs
        self.main = nn.Sequential(*layers, nn.Conv2d(inputs, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


def main():
    args = options(epochs=1, batches=125, size=32)
    torch.manual_seed(1)
    clock = Clock()
    pictures = TensorDataset(torch.rand(args.batches * args.size, 3, 64, 64), torch.zeros(args.batches * args.size))
    loader = DataLoader(pictures, batch_size=args.size, shuffle=True)
    net_g, net_d, criterion = Generator(), Discriminator(), nn.BCELoss()
    optimizer_d = optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(args.epochs):
        clock.enter("input")
        for real, _ in loader:
            clock.enter("optimizer")
            net_d.zero_grad()
            clock.enter("forward")
            label = torch.full((real.size(0),), 1.0)
            error_real = criterion(net_d(real), label)
            clock.enter("backward")
            error_real.backward()
            clock.enter("forward")
            fake = net_g(torch.randn(real.size(0), NOISE, 1, 1))
            error_fake = criterion(net_d(fake.detach()), label.fill_(0))
            clock.enter("backward")
            error_fake.backward()
            clock.enter("optimizer")
            optimizer_d.step()
            net_g.zero_grad()
            clock.enter("forward")
            error_g = criterion(net_d(fake), label.fill_(1))
            clock.enter("backward")
            error_g.backward()
            clock.enter("optimizer")
            optimizer_g.step()
            clock.steps += 1
            clock.enter("input")
        clock.enter("other")
        clock.epochs += 1
    clock.write(args.clock)


if __name__ == "__main__":
    main()
