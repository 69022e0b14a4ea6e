"""In the shape of pytorch/examples reinforce: a tiny policy is asked move by move, one optimizer step an episode, no loader."""

import torch
import torch.nn.functional as F
from clock import Clock, options
from torch import nn, optim
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(4, 128), nn.Dropout(0.6), nn.Linear(128, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=1)


def move(state, action):
    """A pole that falls slower where it is pushed from the right side."""
    angle = state[0, 2] + (0.01 if action else -0.01)
    return torch.cat((state[:, :2], angle.view(1, 1), state[:, 3:]), dim=1)


def main():
    args = options(episodes=500, moves=60)
    torch.manual_seed(543)
    clock, policy = Clock(), Policy()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(args.episodes):
        state, log_probs = torch.rand(1, 4), []
        for _ in range(args.moves):
            clock.enter("forward")
            probs = policy(state)
            clock.enter("other")
            choice = Categorical(probs)
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            state = move(state, action.item())
        loss = torch.cat([-log_prob * (0.99**at) for at, log_prob in enumerate(log_probs)]).sum()
        clock.enter("optimizer")
        optimizer.zero_grad()
        clock.enter("backward")
        loss.backward()
        clock.enter("optimizer")
        optimizer.step()
        clock.steps += 1
        clock.enter("other")
    clock.write(args.clock)


if __name__ == "__main__":
    main()
