"""A program with a function worth a name: augment() takes about a third of its time. argv: rounds. Prints "done"."""

import sys


class Trainer:
    def augment(self, numbers):
        return [number * 3 % 1009 for number in numbers]

    def rest(self, numbers):
        return [number * 7 % 1009 for number in numbers]

    def run(self, rounds):
        for _ in range(rounds):
            self.augment(range(20_000))
            self.rest(range(20_000))
            self.rest(range(20_000))


if __name__ == "__main__":
    Trainer().run(int(sys.argv[1]))
    print("done", flush=True)
