"""Train the seed ViT to name handwritten digits: ``python scripts/train_digits.py``.

One recipe from scratch with a fixed seed. What makes it learn within minutes, in order of weight:

* Tokens are labelled as well (Jiang et al. 2021, "All Tokens Matter"): while training, a second
  head says of each patch which digit's box it lies in. It is thrown away at the end, and its share
  of the loss fades to nothing, so the last pictures are learnt from their labels alone.
* Small windows of the grid of patches come first, with the positions of a window: 17 tokens learn
  the shape of digits at an eighth of the cost of 145.
* Positions start as waves (Vaswani et al. 2017), which neighbours can be read from.
* Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for the rest.

It goes on where it was stopped, and gives the same weights as a run that was not, on one machine.
"""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor, nn

from vizattn.digits import CELL, CLASSES, SIDE, Scans, Scenery, Scenes, read_scans
from vizattn.vit import ViT

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "models" / "digits"
MODEL = json.loads((FOLDER / "config.json").read_text())["model_args"]
GRID = SIDE // CELL
ABSENT = CLASSES  # the label of a patch in no digit's box


@dataclass(frozen=True)
class Stage:
    """Pictures of one size: side in px, fewest and most digits, pictures in a step, steps."""

    side: int
    counts: tuple[int, int]
    batch: int
    steps: int


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    stages: tuple[Stage, ...] = (
        Stage(32, (1, 1), 128, 400),
        Stage(64, (1, 3), 48, 1_000),
        Stage(SIDE, (2, 4), 32, 3_000),
    )
    jitter: int = 4
    seed: int = 0
    adamw: float = 0.003
    muon: float = 0.005
    decay: float = 0.05
    warm_up: int = 200
    constant: float = 0.3
    token_loss: float = 1.0
    average: float = 0.998

    @property
    def steps(self) -> int:
        """Of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage of a step."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]

    def rate(self, step: int) -> float:
        """Share of the full learning rate: up in a line, level, down along a cosine to 2 %."""
        share = step / self.steps
        if share < self.constant:
            return min(1.0, (step + 1) / self.warm_up)
        fall = (share - self.constant) / (1 - self.constant)
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * fall))

    def token_share(self, step: int) -> float:
        """Weight of the token loss: level, then down in a line to nothing at nine tenths."""
        share = step / self.steps
        return self.token_loss * min(1.0, max(0.0, (0.9 - share) / 0.4))


def waves(dim: int) -> Tensor:
    """Positions of the grid as sines and cosines of row and column, ``[position, dim]``."""
    quarter = dim // 4
    speed = 1.5 * 30 ** (-torch.arange(quarter) / quarter)
    place = torch.arange(GRID)[:, None] * speed
    row = place.repeat_interleave(GRID, 0)
    col = place.repeat(GRID, 1)
    return torch.cat((row.sin(), row.cos(), col.sin(), col.cos()), 1)


def new_model(seed: int) -> ViT:
    """The model before its first step."""
    torch.manual_seed(seed)
    model = ViT(**MODEL)
    with torch.no_grad():
        model.pos_embedding[:1] *= 0.02
        model.pos_embedding[1:] = waves(MODEL["dim"]) / 2
        model.cls_token /= 2
    return model


def tokens_of(model: ViT, pixels: Tensor, corner: np.ndarray) -> Tensor:
    """Tokens after the last normalisation, of pictures that may be smaller than the model's own.

    A smaller picture takes the positions of a window of the grid, whose top left is ``corner``.
    """
    side = pixels.shape[-1] // CELL
    row, col = corner.tolist()
    places = model.pos_embedding[1:].unflatten(0, (GRID, GRID))
    places = places[row : row + side, col : col + side].flatten(0, 1)
    patches = model.to_patch_embedding(pixels) + places
    first = (model.cls_token + model.pos_embedding[:1]).expand(len(pixels), 1, -1)
    tokens: Tensor = model.transformer(torch.cat((first, patches), 1))
    return tokens


def token_labels(scenes: Scenes) -> Tensor:
    """Whose box the middle of each patch lies in, ``[picture, patch]``."""
    middle = torch.arange(scenes.pixels.shape[-1] // CELL) * CELL + CELL // 2
    left, top, right, bottom = scenes.boxes[..., None, None, :].unbind(-1)
    y, x = middle[:, None], middle[None, :]
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
    return torch.where(inside.any(1), inside.int().argmax(1), ABSENT).flatten(1)


def normalised(pixels: Tensor) -> Tensor:
    """Colours from 0 to 1 as the model takes them, from -1 to 1."""
    return pixels * 2 - 1


class Training:
    """A model on its way, and everything needed to go on."""

    def __init__(self, recipe: Recipe, scans: Scans, *, half: bool) -> None:
        self.recipe, self.scans, self.half = recipe, scans, half
        self.model = new_model(recipe.seed)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.token_head = nn.Linear(MODEL["dim"], CLASSES + 1)
        blocks = self.model.transformer.layers
        matrices = [weight for weight in blocks.parameters() if weight.ndim == 2]
        chosen = {id(weight) for weight in matrices}
        everything = [*self.model.parameters(), *self.token_head.parameters()]
        rest = [weight for weight in everything if id(weight) not in chosen]
        self.optimizers = {
            "muon": torch.optim.Muon(
                matrices, lr=recipe.muon, weight_decay=recipe.decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            "adamw": torch.optim.AdamW(rest, lr=recipe.adamw, betas=(0.9, 0.98), weight_decay=0.0),
        }  # fmt: skip
        self.everything = everything
        self.step = 0
        self.log: list[dict[str, float]] = []

    def advance(self) -> float:
        """Learn from one more batch; the loss of its labels."""
        recipe, stage = self.recipe, self.recipe.stage(self.step)
        random = np.random.default_rng([recipe.seed, self.step])
        scenery = Scenery(stage.counts, recipe.jitter, stage.side)
        scenes = scenery.scenes(self.scans, stage.batch, random)
        corner = random.integers(0, GRID - stage.side // CELL + 1, size=2)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            tokens = tokens_of(self.model, normalised(scenes.pixels), corner)
            logits = self.model.mlp_head(tokens[:, 0])
            about = self.token_head(tokens[:, 1:])
        labels = F.binary_cross_entropy_with_logits(logits.float(), scenes.present.float())
        each = F.cross_entropy(about.float().flatten(0, 1), token_labels(scenes).flatten())
        self._learn(labels + recipe.token_share(self.step) * each)
        self.step += 1
        return float(labels.detach())

    def _learn(self, loss: Tensor) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = getattr(self.recipe, name) * self.recipe.rate(self.step)
        loss.backward()
        nn.utils.clip_grad_norm_(self.everything, 1.0)
        for optimizer in self.optimizers.values():
            optimizer.step()
        keep = min(self.recipe.average, (self.step + 1) / (self.step + 20))
        with torch.no_grad():
            for mean, weight in zip(
                self.average.parameters(), self.model.parameters(), strict=True
            ):
                mean.lerp_(weight, 1 - keep)

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        """What has a state."""
        return {"model": self.model, "average": self.average, "token_head": self.token_head,
                **self.optimizers}  # fmt: skip

    def save(self, path: Path) -> None:
        """Write everything needed to go on."""
        states = {name: part.state_dict() for name, part in self.parts().items()}
        waiting = path.with_suffix(".tmp")
        torch.save(
            {"step": self.step, "log": self.log, "recipe": repr(self.recipe), **states}, waiting
        )
        waiting.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from what ``save`` wrote, if it was made by this recipe."""
        kept = torch.load(path, weights_only=True)
        if kept["recipe"] != repr(self.recipe):
            raise SystemExit(f"{path} was made by another recipe; remove it to start again.")
        self.step, self.log = kept["step"], kept["log"]
        for name, part in self.parts().items():
            part.load_state_dict(kept[name])


def measure(model: nn.Module, scans: Scans, count: int, jitter: int, seed: int) -> dict[str, float]:
    """Share of labels and of pictures that are right, and mean average precision."""
    scenes = Scenery(jitter=jitter).scenes(scans, count, np.random.default_rng([99, seed]))
    with torch.inference_mode():
        logits = torch.cat([model(normalised(some)) for some in scenes.pixels.split(100)])
    right = (logits > 0) == scenes.present
    precision = [_average_precision(*each) for each in zip(logits.T, scenes.present.T, strict=True)]
    found = ((logits > 0) & scenes.present).sum() / scenes.present.sum()
    return {
        "per_label": float(right.float().mean()),
        "exact": float(right.all(1).float().mean()),
        "mean_average_precision": sum(precision) / len(precision),
        "recall": float(found),
    }


def _average_precision(scores: Tensor, present: Tensor) -> float:
    sorted_present = present[scores.argsort(descending=True)].float()
    precision = sorted_present.cumsum(0) / torch.arange(1, len(scores) + 1)
    return float((precision * sorted_present).sum() / sorted_present.sum())


def main(
    work: Annotated[Path, typer.Option(help="Folder for what is needed to go on.")] = Path(
        "build/digits"
    ),
    output: Annotated[Path, typer.Option(help="Folder for the finished model.")] = FOLDER,
    threads: Annotated[int, typer.Option(help="Threads that PyTorch computes with.")] = 2,
    half: Annotated[
        bool, typer.Option(help="bfloat16 products, where the processor is fast at them.")
    ] = True,
) -> None:
    """Train the digits model, or go on with it, and write it to the assets."""
    torch.set_num_threads(threads)
    scans = read_scans(FOLDER / "scans.png")
    training = Training(Recipe(), scans.split("train"), half=half)
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "training.pt"
    if kept.exists():
        training.resume(kept)
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[state]}")) as progress:
        task = progress.add_task(
            "Training", total=training.recipe.steps, completed=training.step, state=""
        )
        _train(
            training,
            scans,
            kept,
            lambda state: progress.update(task, completed=training.step, state=state),
        )
    _write(training, scans, output)


def _train(training: Training, scans: Scans, kept: Path, tell: object) -> None:
    started, losses = time.process_time(), []
    while training.step < training.recipe.steps:
        losses.append(training.advance())
        if training.step % 250 and training.step < training.recipe.steps:
            continue
        scores = measure(training.average, scans.split("tune"), 300, training.recipe.jitter, 0)
        training.log.append({"step": training.step, "loss": sum(losses) / len(losses), **scores,
                             "cpu_seconds": time.process_time() - started})  # fmt: skip
        started, losses = time.process_time(), []
        training.save(kept)
        tell(f"{scores['per_label']:.1%} per label")  # type: ignore[operator]


def _write(training: Training, scans: Scans, output: Path) -> None:
    """The averaged weights in float16, how they were made, and how good they are."""
    model = training.average.eval()
    half = {name: weight.half().contiguous() for name, weight in model.state_dict().items()}
    save_file(half, output / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in half.items()})
    scores = {
        f"{split}, jitter {jitter}": measure(model, scans.split(split), 2_000, jitter, 1)
        for split in ("held-out", "report", "train")
        for jitter in (training.recipe.jitter, 0)
    }
    _write_log(training, scores, output / "training.json")
    for name, each in scores.items():
        print(name, " ".join(f"{key} {value:.4f}" for key, value in each.items()))


def _write_log(training: Training, scores: dict[str, dict[str, float]], path: Path) -> None:
    """Everything that was measured, a line for each entry."""
    about = {"recipe": asdict(training.recipe), "scores": scores, "log": training.log}
    rounded = json.loads(json.dumps(about), parse_float=lambda text: round(float(text), 4))
    text = json.dumps(rounded)
    for start in (
        '"recipe": ',
        '"scores": ',
        '"log": ',
        '{"step"',
        '"held-out',
        '"report',
        '"train,',
    ):
        text = text.replace(start, f"\n {start}")
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
