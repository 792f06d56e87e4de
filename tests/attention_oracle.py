"""What there is to be found in a model, worked out without vizattn.

A class takes a softmax over something when its own source says so. A module of such a class that
runs in a forward pass is one that capture has to see.
"""

import ast
import inspect
import re
import textwrap
from contextlib import contextmanager
from functools import cache
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_SOFTMAX = re.compile(
    r"softmax|scaled_dot_product|multi_head_attention_forward"
    r"|attention_interface|shifted_window_attention"  # functions of transformers and torchvision
)
_ATTENDS = nn.MultiheadAttention


@cache
def takes_softmax(kind):
    """Whether the code of a class, without comments and docstrings, takes a softmax."""
    if issubclass(kind, _ATTENDS):
        return True
    if not issubclass(kind, nn.Module) or kind.__module__.startswith("torch."):
        return False
    return any(_SOFTMAX.search(_code(each)) for each in kind.__mro__ if _is_foreign(each))


def _is_foreign(kind):
    """Neither PyTorch's own nor the ground that all models of a library stand on."""
    ours = ("torch.", "transformers.modeling_utils", "transformers.modeling_layers")
    return issubclass(kind, nn.Module) and not kind.__module__.startswith(ours)


def _code(kind):
    """Bodies of a class's methods; annotations and what it builds in ``__init__`` do not count."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    methods = [
        node
        for node in tree.body[0].body
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    ]
    for method in methods:
        if ast.get_docstring(method) is not None:
            method.body = method.body[1:] or [ast.Pass()]
    return "\n".join(ast.unparse(method) for method in methods)


@contextmanager
def attention_that_runs(model):
    """The names of the modules that take a softmax and run meanwhile, in order."""
    names, handles = {}, []
    for name, module in model.named_modules():
        if takes_softmax(type(module)) or _holds_softmax(module):
            note = lambda *_, name=name: names.setdefault(name)  # noqa: E731
            handles.append(module.register_forward_pre_hook(note))
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def _holds_softmax(module):
    """Whether a module calls a softmax that is a module of its own, and is more than a sequence."""
    if isinstance(module, nn.Sequential | nn.ModuleList):
        return False
    sequences = [child for child in module.children() if isinstance(child, nn.Sequential)]
    parts = [part for each in (module, *sequences) for part in each.children()]
    return any(isinstance(part, nn.Softmax) for part in parts)


class _WithoutDraws(TorchFunctionMode):
    """Leaves out what takes longest when a large model is made: drawing weights."""

    _DRAWS = re.compile(r"((kaiming_|xavier_)?(normal|uniform)|erfinv)_")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        drawn = args[0] if args else kwargs.get("tensor")
        if self._DRAWS.fullmatch(name) or (name == "div_" and isinstance(drawn, nn.Parameter)):
            return drawn  # dividing what was not drawn would only fill memory
        return func(*args, **kwargs)


@contextmanager
def without_draws():
    """Make a timm model quickly whose weights ``randomised`` will draw."""

    def keep(tensor, *_args, **_kwargs):
        return tensor

    with (
        mock.patch("timm.layers.weight_init._trunc_normal_", keep),
        mock.patch("torch.nn.init._no_grad_trunc_normal_", keep),
        _WithoutDraws(),
    ):
        yield


_POSITIONS = re.compile(r"pos_embed|rel_pos|relative_position|bias_table|attention_bias")
_FIXED = re.compile(r"logit_scale|temperature|\bscale$")


def randomised(model, sharpness=1.5, seed=1):
    """Weights with which attention is far from uniform and differs from head to head.

    Drawn by fan-in, queries and keys ``sharpness`` times as large; biases and positions too, which
    most models start at zero, where a forgotten bias would not show.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if _FIXED.search(name) or not parameter.numel():
            continue
        data = parameter.data
        if _POSITIONS.search(name):
            data.uniform_(-1, 1, generator=generator)
        elif data.numel() == max(data.shape, default=1):
            _vector(name, data, generator)
        else:
            sharper = sharpness if re.search(r"qkv|\bq\b|query|to_q|in_proj", name) else 1.0
            fan_in = data[0].numel()
            data.normal_(0, sharper / fan_in**0.5, generator=generator)
    return model.eval()


def _vector(name, data, generator):
    """Gains around 1, biases around 0, tokens anywhere."""
    if name.endswith("bias") or "lambda_" in name:
        data.normal_(0, 0.1, generator=generator)
    elif name.endswith(("weight", "gamma", "scale")) or data.dim() < 2:
        data.uniform_(0.7, 1.3, generator=generator)
    else:
        data.uniform_(-1, 1, generator=generator)


def measure_norms(model, pixels):
    """Run once; batch norms take the picture's statistics, or drawn weights would overflow."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        # two pictures, because a norm of a single number has no statistics
        model(torch.stack([pixels, pixels.flip(-1)]))
    return model.eval()


def shorten(model, keep):
    """Leave only the first few of each run of like blocks, in place; how many were left out."""
    left_out = 0
    for parent in list(model.modules()):
        if isinstance(parent, nn.Sequential | nn.ModuleList):
            kept = []
            for block in parent:
                if [_form(other) for other in kept[-keep:]] != [_form(block)] * keep:
                    kept.append(block)
            left_out += len(parent) - len(kept)
            if len(kept) < len(parent):
                del parent[:]
                parent.extend(kept)
    return left_out


def _form(block):
    return type(block), [(name, parameter.shape) for name, parameter in block.named_parameters()]
