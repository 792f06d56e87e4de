"""The one service that the page and the command line call.

A picture and some names go in, an explanation comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from PIL import Image

from vizattn.capture import capture
from vizattn.errors import MethodError
from vizattn.gradients import capture_gradients
from vizattn.heatmap import Heatmap
from vizattn.images import ImageSource, open_image
from vizattn.methods import METHODS, Asker, Method, find_method, parse_settings
from vizattn.models import VisionModel, load_model
from vizattn.predictions import Prediction, predictions_of
from vizattn.progress import Pace, Progress, Tell
from vizattn.record import AttentionRecord
from vizattn.targets import Target

# Loaded models are kept: a few, because each holds its weights in memory.
KEPT_MODELS = 3


@dataclass(frozen=True)
class Explanation:
    """Everything a page, a file or a person needs of one look at one picture.

    Attributes:
        image: The original picture, upright, RGB.
        name: The picture's file name, for people.
        record: The captured attention.
        method: The method with its settings.
        model: The model that was looked into.
        at: Who was asked: a pixel's patch or a kind of token, ``None`` for the model's own query.
        heatmap: The map of the method's own settings.
        target: What a method with gradients was asked to explain, ``None`` for the model's own.
    """

    image: Image.Image
    name: str
    record: AttentionRecord
    method: Method
    model: VisionModel
    at: Asker | None
    heatmap: Heatmap
    target: Target | None = None

    def to_html(self, path: str | Path, layers: Iterable[int] | None = None) -> Path:
        """Write one HTML file that shows this explanation, from disk and without a network.

        Args:
            path: The file to write.
            layers: Layers whose patches can be pointed at, by index; by default the last ones that
                keep the file under 7.5 MB.
        """
        from vizattn.html import write_html

        label = self.model.label or self.record.model
        return write_html(
            path, self.record, self.image, method=self.method, at=self.at, layers=layers,
            name=self.name, label=label,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        """The same in a notebook, in a frame of its own."""
        from vizattn.html import framed
        from vizattn.viewer import View

        return framed(View.of(self))

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The first classes of a model that has classes, the likeliest first."""
        return predictions_of(self.record, self.model)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of everything that had a hand in the numbers."""
        return {name: _version(name) for name in ("vizattn", "torch", "timm")}


def explain(
    image: ImageSource,
    *,
    model: str | VisionModel = "vizattn/dinov2-small",
    method: str | Method = "raw",
    settings: Mapping[str, Any] | None = None,
    at: Asker | None = None,
    target: Target | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Look at one picture with one model and one method.

    Args:
        image: Anything ``open_image`` takes.
        model: A name for ``load_model``, or a model.
        method: A name in ``METHODS``, or a method with its settings.
        settings: Settings for a named method as people give them: text is read, and layers and
            heads count from 1.
        at: Who asks: the patch under a pixel ``(x, y)`` of the picture, or tokens by what they are:
            ``class``, ``register``, ``mean`` of the patches. By default as the model itself does.
        target: What a method with gradients explains: a class by index or name, or, where a model
            has no classes, what its embedding is compared with: ``patch:X,Y`` of the same picture,
            ``picture:FILE``, ``text:WORDS``, an embedding. By default the top class, or the
            embedding itself.
        name: How to name the picture; its file name when left out.
        progress: Called with a share from 0 to 1 and what is being done; of steps that take more
            than two seconds again and again, with the time left in that step.

    Raises:
        VizattnError: With a sentence for people; nothing is changed or lost.
    """
    name = name or (Path(image).name if isinstance(image, str | Path) else "picture")
    recipe = recipe_of(method, settings or {})  # cheap checks first
    progress = progress or _silent
    progress(0.0, "Opening the picture")
    picture = open_image(image)
    progress(0.05, "Loading the model")
    vision = model_named(model) if isinstance(model, str) else model
    look = Pace(progress, "Looking at the picture", 0.3, 0.7)
    record = record_for(vision, picture, recipe, target, look)
    heat = recipe.heatmap(record, at=at, progress=Pace(progress, recipe.title, 0.7, 1.0))
    progress(1.0, "Done")
    return Explanation(picture, name, record, recipe, vision, at, heat, target)


def record_for(
    model: VisionModel,
    picture: Image.Image,
    method: Method,
    target: Target | None = None,
    progress: Tell | None = None,
) -> AttentionRecord:
    """What a method needs of a picture: attention alone, or what a target depends on as well.

    Raises:
        MethodError: The method takes no target.
        CaptureError: The model cannot be looked into, or not be differentiated.
    """
    if target is not None and method.class_agnostic:
        known = ", ".join(name for name, each in METHODS.items() if not each.class_agnostic)
        raise MethodError(
            f"{method.name} is the same whatever class is asked about, so it takes no target. "
            f"These do: {known}."
        )
    if not method.wanted:
        return capture(model, picture, values=False, progress=progress)
    return capture_gradients(model, picture, target, needs=method.wanted)


def _silent(_share: float, _words: str) -> None:
    """Nobody is watching."""


def recipe_of(method: str | Method, settings: Mapping[str, Any]) -> Method:
    """A method with its settings, from a name and settings as people give them."""
    if isinstance(method, Method):
        return method
    found = find_method(method)
    return found(**parse_settings(found, settings))


@lru_cache(maxsize=KEPT_MODELS)
def model_named(name: str) -> VisionModel:
    """A model by its name; a few are kept."""
    return load_model(name)


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout without installing
        return "unknown"
