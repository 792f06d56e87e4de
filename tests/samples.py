"""Models, pictures and records in small, and what is known of them beforehand."""

import contextlib
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image


def randomised(model):
    """Weights large enough that attention is far from uniform: a wrong scale would show."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            gain = 2.0 if "qkv" in name else 1.0
            parameter.data.normal_(0, gain / parameter.shape[-1] ** 0.5, generator=generator)
    return model.eval()


def close(ours, theirs):
    """Two copies of one model agree: where weights lie in memory moves the last bit."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def dot_image(width, height, x, y, radius=6):
    """A black picture with one white square around pixel ``x``, ``y``."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1] = 255
    return Image.fromarray(values)


def tokens_of(grid, frame=None, index=None):
    """Where the tokens of a grid lie; on ten pixels for each patch when nothing else is said."""
    from vizattn.frame import Frame
    from vizattn.places import Tokens

    return Tokens(grid, frame or Frame(0, 0, 10 * grid.cols, 10 * grid.rows), index)


def dense(layer):
    """All weights of a layer, ``[head, query, key]``, the slow and obvious way in float64."""
    scores = layer.q.double() @ layer.k.double().mT * layer.scale
    if layer.bias is not None:
        scores = scores + layer.bias.double()
    return scores.softmax(-1)


def command_line(*words):
    """``vizattn WORDS`` in this process, which has loaded everything already: what came of it."""
    from vizattn.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["vizattn", *words])
        patch.setenv("COLUMNS", "200")
        patch.setenv("NO_COLOR", "1")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())
