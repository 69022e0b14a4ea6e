"""A deep model of a stand-in for torch.nn, called again and again until SIGUSR1; or, with --spin, once, with what feels its own stops
(probe.py) in its innermost module.

With --hidden the stand-in's file has a name of which nothing tells that it calls modules: the same frames, and nothing to be found.
"""

import argparse
import os
import signal
import sys

CALLS = """
class Module:
    def __init__(self, **parts):
        self.training = True
        self._parameters, self._buffers, self._modules = {}, {}, parts

    def _wrapped_call_impl(self, *args):
        return self._call_impl(*args)

    def _call_impl(self, *args):
        return self.forward(*args)

    __call__ = _wrapped_call_impl
"""
stopping = False


def stop(*_):
    global stopping
    stopping = True


def model(module, layers):
    """Embedding, layers with attention and an MLP of two, indexed in a list, and a head."""

    class Linear(module):
        def forward(self):
            return sum(range(2000))

    class Attention(module):
        def forward(self):
            self._modules["query"]()
            self._modules["out"]()

    class Mlp(module):
        def forward(self):
            self._modules["up"]()
            self._modules["down"]()

    class Layer(module):
        def forward(self):
            self._modules["attention"]()
            self._modules["mlp"]()

    class Transformer(module):
        def forward(self):
            self._modules["embedding"]()
            for index in range(layers):
                self._modules["layers"]._modules[str(index)]()
            self._modules["head"]()

    def layer():
        attention = Attention(query=Linear(), key=Linear(), value=Linear(), out=Linear())
        return Layer(attention=attention, mlp=Mlp(up=Linear(), down=Linear()))

    held = module(**{str(index): layer() for index in range(layers)})
    return Transformer(embedding=Linear(), layers=held, head=Linear())


def tower(module, height, function):
    """Modules in each other, and a function in the innermost."""

    class Innermost(module):
        def forward(self):
            return function()

    class Storey(module):
        def forward(self):
            return self._modules["above"]()

    built = Innermost()
    for _ in range(height - 1):
        built = Storey(above=built)
    return built


def spinning(height):
    """probe.py's main with a tower in place of its frames."""
    import probe

    module = calls()
    probe.under_frames = lambda _, function: tower(module, height, function)()
    sys.argv[1:] = []
    probe.main()


def calls():
    return namespace["Module"]


def main():
    global namespace
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--spin", action="store_true")
    arguments = parser.parse_args()
    file = "/stand-in/calls.py" if arguments.hidden else "/stand-in/torch/nn/modules/module.py"
    namespace = {}
    exec(compile(CALLS, file, "exec"), namespace)
    if arguments.spin:
        spinning(13)
    signal.signal(signal.SIGUSR1, stop)
    built = model(calls(), arguments.layers)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    passes = 0
    while not stopping:
        built()
        passes += 1
    print(passes, flush=True)


if __name__ == "__main__":
    main()
