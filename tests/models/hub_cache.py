"""A cache of the Hugging Face hub as a download would have left it, made on the spot."""

import json
import shutil

COMMIT = "0" * 40


def publish(cache, repository, folder):
    """Put the files of a folder where the hub's client looks for ``repository``."""
    place = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def save(folder, model, processor=None):
    """A model of transformers with random weights and its preprocessing, as a repository."""
    model.save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder
