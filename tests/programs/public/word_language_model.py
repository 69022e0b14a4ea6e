"""In the shape of pytorch/examples word_language_model: an LSTM, `get_batch` by slices, SGD by hand without an optimizer."""

import torch
from clock import Clock, options
from torch import nn

LENGTH, SIZE, WORDS, WIDTH = 35, 20, 1000, 128


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(WORDS, WIDTH)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(output)).view(-1, WORDS), dim=1), hidden


def get_batch(source, i):
    length = min(LENGTH, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def main():
    args = options(epochs=2, batches=200)
    torch.manual_seed(1111)
    clock, model, criterion = Clock(), RNNModel(), nn.NLLLoss()
    text = torch.randint(0, WORDS, (args.batches * LENGTH + 1, SIZE))
    for _ in range(args.epochs):
        model.train()
        hidden = (torch.zeros(2, SIZE, WIDTH), torch.zeros(2, SIZE, WIDTH))
        for i in range(0, text.size(0) - 1, LENGTH):
            clock.enter("input")
            data, targets = get_batch(text, i)
            clock.enter("optimizer")
            model.zero_grad()
            clock.enter("forward")
            output, hidden = model(data, tuple(part.detach() for part in hidden))
            loss = criterion(output, targets)
            clock.enter("backward")
            loss.backward()
            clock.enter("optimizer")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-20 / 1000)
            clock.steps += 1
            clock.enter("other")
        clock.epochs += 1
    clock.write(args.clock)


if __name__ == "__main__":
    main()
