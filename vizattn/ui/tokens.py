"""What the model makes of each patch: its output tokens as colours and as lengths, for a pane."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

import numpy as np

from vizattn.features import Features, capture_features
from vizattn.ui.ask import Answer, answered
from vizattn.ui.kept import MODEL, Kept


@answered
def features(kept: Kept, _asked: Answer) -> Answer:
    """Colours (three principal components) and lengths of the tokens that the model puts out.

    ``asked``: ``id``.
    """
    with kept.lock:
        if kept.features is None:
            explanation = kept.explanation
            with MODEL:
                found = capture_features(
                    explanation.model, explanation.image, record=explanation.record
                )
            kept.features = _described(found)
    return {"features": kept.features}


def _described(found: Features) -> dict[str, Any]:
    grid, frame, colours, norms = found.grid, found.frame, found.colours(), found.norms()
    rgb = np.round(colours.rgb.numpy() * 255).astype(np.uint8)
    return {
        "grid": {"rows": grid.rows, "cols": grid.cols, "prefix": list(grid.roles)},
        "frame": asdict(frame),
        "rgb": _text(rgb),
        "shares": list(colours.shares),
        "norms": _text(norms.values.numpy().astype("<f4")),
        "prefix": norms.prefix_mass.tolist(),
    }


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
