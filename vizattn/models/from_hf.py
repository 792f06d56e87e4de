"""Models of transformers: ``hf/OWNER/NAME`` on the Hugging Face hub, or ``hf/FOLDER``.

Configuration files choose among the classes of transformers itself; code that a repository brings
is never run. Of models with two towers the vision tower is built, and the other when a text comes.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vizattn.errors import ModelError
from vizattn.models.fitting import load_checkpoint
from vizattn.models.from_timm import load_timm
from vizattn.models.hf_module import ImageModel
from vizattn.models.hf_preprocess import preprocess_of
from vizattn.models.hf_text import text_tower
from vizattn.models.hub import hugging_face, need
from vizattn.models.vision import Request, VisionModel, accept_size
from vizattn.preprocess import Preprocess

# Parts that may start random: they come after the last attention.
_AFTER = ("pooler", "classifier", "head", "visual_projection")


def load_hf(request: Request) -> VisionModel:
    """Load a model of transformers by its repository or folder."""
    transformers = need("transformers", "hf")
    with _quiet(transformers), hugging_face(request.full_name):
        raw = _read_json(request.name, "config.json")
        if "model_type" not in raw:
            return load_timm(_as_timm(request, raw))
        config = _config(transformers, request, raw)
        settings = _image_settings(request.name)
        transform = preprocess_of(transformers, settings, raw["model_type"], request.size)
        whole, config = config, getattr(config, "vision_config", None) or config
        if hasattr(whole, "projection_dim"):
            config.projection_dim = whole.projection_dim  # its own is not always kept in step
        kind = _class_of(transformers, request, config, raw.get("architectures") or ())
        model, notes, report = _model(request, kind, config)
        text = text_tower(transformers, request, whole, model)
    module = ImageModel(model, _settings(model, transform)).eval()
    accept_size(module, request, transform.height, transform.width)
    labels = _labels(model.config) if "ImageClassification" in type(model).__name__ else ()
    label = request.name.rpartition("/")[2]
    several = getattr(model.config, "problem_type", None) == "multi_label_classification"
    return VisionModel(
        module, transform, labels, request.full_name, label, notes, checkpoint=report, text=text,
        is_multi_label=several,
    )  # fmt: skip


def _model(request: Request, kind: Any, config: Any) -> tuple[nn.Module, tuple[str, ...], Any]:
    """The model, filled as it was asked for, and what there is to say about its weights."""
    if request.path is not None:

        def build(n_classes: int | None) -> nn.Module:
            own = deepcopy(config)
            if n_classes is not None:
                own.num_labels = n_classes
            module: nn.Module = kind(own).eval()
            return module

        heads = ("classifier", "cls_classifier", "distillation_classifier")
        model, report = load_checkpoint(
            request.path, build, lambda _: heads, lambda state, _: state
        )
        return model, request.notes(report), report
    if not request.is_pretrained:
        return kind(config).eval(), request.notes(), None
    model, info = kind.from_pretrained(
        request.name, config=config, dtype=torch.float32, output_loading_info=True
    )
    return model.eval(), _loaded_notes(request, info), None


def _loaded_notes(request: Request, info: dict[str, Any]) -> tuple[str, ...]:
    missing = sorted(info["missing_keys"])
    lost = [key for key in missing if not any(part in _AFTER for part in key.split("."))]
    if lost or info["mismatched_keys"]:
        keys = [*lost, *(str(key[0]) for key in info["mismatched_keys"])]
        raise ModelError(
            f"the weights of {request.full_name} leave {len(keys)} tensors of the model empty, "
            f"such as {', '.join(keys[:5])}."
        )
    if not missing:
        return ()
    return (f"not in the weights, left random: {', '.join(missing[:5])}",)


def _read_json(name: str, file: str) -> dict[str, Any]:
    """A file of a repository or folder as JSON."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        path = folder / file
        if not path.is_file():
            raise ModelError(f"the folder {folder.name} has no {file}.")
        return _json(path)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return _json(Path(hf_hub_download(name, file)))
    except LocalEntryNotFoundError:
        raise
    except GatedRepoError as error:
        raise ModelError(
            f"hf/{name} is gated: accept its terms at https://huggingface.co/{name} and log in "
            f"with `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"there is no repository {name!r} on the Hugging Face hub, or it is private. Names "
            f"are hf/OWNER/NAME, such as hf/facebook/dinov2-small."
        ) from error
    except EntryNotFoundError as error:
        raise ModelError(
            f"hf/{name} has no {file}, so it is no model of transformers. Repositories of "
            f"open_clip are loaded as open_clip/NAME/TAG."
        ) from error


def _json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _image_settings(name: str) -> dict[str, Any]:
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    settings: dict[str, Any] = get_image_processor_config(str(Path(name).expanduser())) or {}
    return settings


def _as_timm(request: Request, raw: dict[str, Any]) -> Request:
    """The repositories of timm hold timm's own configuration."""
    if "architecture" not in raw:
        raise ModelError(f"the config.json of {request.full_name} names no model_type.")
    is_folder = Path(request.name).expanduser().is_dir()
    name = f"{'local-dir' if is_folder else 'hf-hub'}:{request.name}"
    return Request("timm", name, request.weights, request.size)


def _config(transformers: Any, request: Request, raw: dict[str, Any]) -> Any:
    kind = raw["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{request.full_name} is of type {kind!r}, which transformers "
            f"{transformers.__version__} does not have. Code that a repository brings is not run; "
            f"load it yourself and give it to wrap_model."
        )
    return transformers.CONFIG_MAPPING[kind].from_dict(raw)


def _class_of(transformers: Any, request: Request, config: Any, declared: Any) -> Any:
    """The class that takes pixels: the one the repository declares, or the type's own.

    Of two towers, one that projects into the space that both share comes first.
    """
    named = [getattr(transformers, name, None) for name in declared]
    known = transformers.MODEL_MAPPING.get(type(config), None)
    siblings = _siblings(config)
    shared = [kind for kind in siblings if kind.__name__.endswith("VisionModelWithProjection")]
    known = known if isinstance(known, tuple) else (known,)
    candidates = [*named, *shared, *known, *siblings]
    for kind in candidates:
        if kind is not None and kind.config_class is type(config) and _takes_pixels(kind):
            return kind
    raise ModelError(
        f"{request.full_name} ({config.model_type}) has no model in transformers that takes "
        f"nothing but pixel_values. Load it yourself and give its vision part to wrap_model."
    )


def _siblings(config: Any) -> list[Any]:
    """Models of the same file, the plainest first."""
    modeling = import_module(type(config).__module__.replace("configuration_", "modeling_"))
    found = [value for value in vars(modeling).values() if hasattr(value, "config_class")]
    return sorted(found, key=lambda kind: (len(kind.__name__), kind.__name__))


def _takes_pixels(kind: Any) -> bool:
    """Whether pixels are the first input, and the only one that has to be given."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    is_first = bool(parameters) and parameters[0].name == "pixel_values"
    return is_first and needed in ([], ["pixel_values"]) and kind.main_input_name == "pixel_values"


def _settings(model: Any, transform: Preprocess) -> dict[str, Any]:
    """What has to be said on every call, so that a model sees all of a picture, always alike."""
    parameters = inspect.signature(model.forward).parameters
    settings: dict[str, Any] = {}
    side = getattr(model.config, "image_size", None)
    own = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    if "interpolate_pos_encoding" in parameters and own != (transform.height, transform.width):
        settings["interpolate_pos_encoding"] = True
    if model.config.model_type == "vit_mae":
        model.config.mask_ratio = 0.0  # a masked auto-encoder hides patches and shuffles the rest
        patch = model.config.patch_size
        count = (transform.height // patch) * (transform.width // patch)
        settings["noise"] = torch.arange(count, dtype=torch.float32).unsqueeze(0)
    return settings


def _labels(config: Any) -> tuple[str, ...]:
    """Names of the classes; the ones that transformers makes up are none."""
    names = tuple(str(config.id2label[index]) for index in sorted(config.id2label))
    return () if all(name.startswith("LABEL_") for name in names) else names


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Its warning about every tensor of the text tower is not for the reader; errors are."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
