"""Models of a stand-in for torch.nn, caught in the middle of a call.

The stand-in has the frames of torch/nn/modules/module.py (2.15), under that file's name. For each case the innermost module prints,
as JSON, which modules' calls it stands in, by what named_modules() of the outermost says; then "ready"; then it waits for a line.
"""

import json
import sys
from collections import OrderedDict

STAND_IN = '''
class Module:
    _compiled_call_impl = None

    def __init__(self):
        super().__setattr__("training", True)
        super().__setattr__("_parameters", {})
        super().__setattr__("_buffers", {})
        super().__setattr__("_non_persistent_buffers_set", set())
        for hooks in ("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks"):
            super().__setattr__(hooks, OrderedDict())
        super().__setattr__("_modules", CHILDREN())

    def _wrapped_call_impl(self, *args, **kwargs):
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        else:
            return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args, **kwargs):
        forward_call = self.forward
        if not self._forward_hooks:
            return forward_call(*args, **kwargs)

        def inner():
            return self.forward(*args, **kwargs)

        return inner()

    __call__ = _wrapped_call_impl

    def __setattr__(self, name, value):
        modules = self.__dict__.get("_modules")
        if isinstance(value, Module) or (modules is not None and name in modules):
            modules[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name):
        modules = self.__dict__.get("_modules", {})
        if name in modules:
            return modules[name]
        raise AttributeError(name)

    def named_modules(self, memo=None, prefix=""):
        memo = set() if memo is None else memo
        if self in memo:
            return
        memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, prefix + "." + name if prefix else name)

    def train(self, mode=True):
        for _, module in self.named_modules():
            module.training = mode
        return self


class Before21(Module):
    """torch 2.0 has one function, without a function in it."""

    def _call_impl(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    __call__ = _call_impl
'''

torch = {"OrderedDict": OrderedDict, "CHILDREN": dict}
exec(compile(STAND_IN, "/stand-in/torch/nn/modules/module.py", "exec"), torch)
Module, Before21 = torch["Module"], torch["Before21"]
CALLS = ("_wrapped_call_impl", "_call_impl")
root = None
cases = 0


def called():
    """The objects of the calls on the stack, outermost first, each once."""
    frame, found = sys._getframe(), []
    while frame is not None:
        if frame.f_code.co_name in CALLS:
            module = frame.f_locals["self"]
            if not found or found[-1] is not module:
                found.append(module)
        frame = frame.f_back
    return found[::-1]


class Leaf(Module):
    def forward(self, wrappers=()):
        global cases
        cases += 1
        names = {id(module): name for name, module in root.named_modules()}
        rows = []
        for module in called():
            parts = names[id(module)].split(".")
            path = ".".join(part for part in parts if part not in wrappers)
            inner = module
            while any(name in wrappers for name in inner._modules):
                inner = next(each for name, each in inner._modules.items() if name in wrappers)
            rows.append([path, type(inner).__name__, module.training])
        print(json.dumps(rows))
        print("ready", flush=True)
        sys.stdin.readline()


class Sequential(Module):
    def __init__(self, *parts):
        super().__init__()
        for index, part in enumerate(parts):
            setattr(self, str(index), part)

    def forward(self, *args):
        for part in self._modules.values():
            part(*args)


class ModuleList(Sequential):
    forward = None


class Block(Module):
    def __init__(self):
        super().__init__()
        self._modules["first"] = None
        self.conv = Leaf()

    def forward(self, *args):
        return self.conv(*args)


class Net(Module):
    """Containers called, indexed, and indexed in each other."""

    def __init__(self):
        super().__init__()
        self.stem = Leaf()
        self.body = Sequential(Block(), Sequential(Leaf()))
        self.layers = ModuleList(Block(), Block(), ModuleList(Block()))
        self.fc = Leaf()

    def forward(self, which, *args):
        if which == "called":
            self.body(*args)
        elif which == "indexed":
            self.layers._modules["1"](*args)
        elif which == "nested":
            self.layers._modules["2"]._modules["0"](*args)
        else:
            self.fc(*args)


class Many(Module):
    """More attributes than an instance's own values hold: a dictionary of its own."""

    def __init__(self):
        super().__init__()
        for index in range(60):
            setattr(self, f"attribute_{index}", index)
        del self.attribute_7
        self.part = Block()

    def forward(self):
        self.part()


class Bare(Module):
    """Never asks for its __dict__: from 3.11 on there is none."""

    __setattr__ = object.__setattr__

    def forward(self):
        self._modules["part"]()


class BareLeaf(Leaf):
    __setattr__ = object.__setattr__


class DistributedDataParallel(Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


class OptimizedModule(Module):
    def __init__(self, module):
        self._modules = {"_orig_mod": module}
        super().__init__()
        self._orig_mod = module

    @property
    def training(self):
        return self._orig_mod.training

    @training.setter
    def training(self, mode):
        self._orig_mod.training = mode

    def forward(self, *args):
        return self._orig_mod(*args)


class Old(Before21):
    def __init__(self):
        super().__init__()
        self.part = OldLeaf()

    def forward(self):
        self.part()


class OldLeaf(Leaf):
    __call__ = Before21._call_impl
    _call_impl = Before21._call_impl


class Lit(Module):
    """Called by no call of its own: as LightningModule.training_step is."""

    def __init__(self):
        super().__init__()
        self.model = Net()

    def training_step(self, which):
        return self.model(which)


class Hooked(Module):
    def __init__(self):
        super().__init__()
        self.part = Leaf()
        self._forward_hooks["one"] = 1

    def forward(self):
        self.part()


def holds(model, which):
    """Holds the model by its first variable, as evaluate(model, loader) does."""
    model.layers._modules["0"]()


def case(_, model, run, *args):
    """The first variable is no module: nothing but the calls themselves tells which is the outermost."""
    global root
    root = model
    run(*args)


def main(_=None):
    net = Net()
    for which in ("called", "indexed", "nested", "fc"):
        case(None, net, net, which)
    net.train(False)
    case(None, net, net, "fc")
    net.fc = Sequential(Leaf())
    net.train()
    case(None, net, net, "fc")
    case(None, net, holds, net, "")
    net.layers._modules["1"] = Block()
    case(None, net, net, "indexed")
    # As when a forward is computed again for backward: nothing that holds it is on the stack.
    case(None, net, net.layers._modules["1"])
    case(None, net, net.layers._modules["2"]._modules["0"].conv)
    many = Many()
    case(None, many, many)
    bare = Bare()
    bare._modules["part"] = BareLeaf()
    case(None, bare, bare)
    torch["CHILDREN"] = OrderedDict
    ordered = Net()
    torch["CHILDREN"] = dict
    case(None, ordered, ordered, "nested")
    block = Block()
    case(None, block, block)
    wrapped = DistributedDataParallel(OptimizedModule(block))
    case(None, wrapped, wrapped, ("module", "_orig_mod"))
    case(None, block, block)
    # Freed, and others made in its place.
    for parts in (2, 1, 3, 1):
        fresh = None
        fresh = Sequential(*(Sequential(Leaf()) for _ in range(parts)))
        case(None, fresh, fresh)
        case(None, fresh, fresh._modules[str(parts - 1)])
        case(None, fresh, fresh._modules["0"]._modules["0"])
    old = Old()
    case(None, old, old)
    lit = Lit()
    case(None, lit, lit.training_step, "indexed")
    hooked = Hooked()
    case(None, hooked, hooked)
    print("done", cases, flush=True)


main()
