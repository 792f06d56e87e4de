"""Files of weights, as training scripts leave them."""

from argparse import Namespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vizattn.errors import ModelError
from vizattn.models import load_model
from vizattn.models.checkpoint import read_entries
from vizattn.models.fitting import load_checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("index", torch.arange(3))


class Net(nn.Module):
    """Two blocks and a head: 12 tensors, two of them tables of indices."""

    def __init__(self, n_classes=5, width=4):
        super().__init__()
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, n_classes) if n_classes else nn.Identity()


def build(n_classes):
    return Net(5 if n_classes is None else n_classes)


def load(path, **more):
    return load_checkpoint(path, build, lambda _: ("head",), lambda state, _: state, **more)


def prefixed(prefix, state):
    return {prefix + key: tensor for key, tensor in state.items()}


def same(module, state):
    ours = module.state_dict()
    return ours.keys() == state.keys() and all(torch.equal(ours[key], state[key]) for key in ours)


THEIRS = Net().state_dict()


@pytest.mark.parametrize(
    "nested",
    [
        THEIRS,
        {"state_dict": THEIRS, "epoch": 3},
        {"model": THEIRS, "optimizer": {"state": {"a": torch.zeros(1)}}},
        {"model_state_dict": prefixed("module.", THEIRS)},
        prefixed("backbone.", THEIRS),
        prefixed("_orig_mod.module.", THEIRS),
        prefixed("visual.trunk.", THEIRS),
        {"ema": {"module": prefixed("encoder.", THEIRS)}},
        {"a": {"b": {"c": THEIRS}}, "args": Namespace(lr=0.1)},
    ],
)
def test_nesting_and_prefixes_are_seen_through(nested, tmp_path):
    torch.save(nested, tmp_path / "own.pth")
    module, report = load(tmp_path / "own.pth")
    assert same(module, THEIRS)
    assert (report.matched, report.total, report.missing) == (12, 12, ())
    assert report.n_classes == 5


def test_a_prefix_that_the_file_lacks_is_added(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = Net(0)
            self.head = nn.Linear(4, 2)

    torch.save(Net(0).state_dict(), tmp_path / "base.pth")
    module, report = load_checkpoint(
        tmp_path / "base.pth", lambda _: Wrapped(), lambda _: ("head",), lambda state, _: state
    )
    assert report.missing == ("head.weight", "head.bias")
    assert "missing, left random: head.weight, head.bias" in report.sentence
    assert module.vit.state_dict().keys() == Net(0).state_dict().keys()


def test_a_head_beside_the_backbones_prefix_is_taken_along(tmp_path):
    state = {k if k.startswith("head") else f"backbone.{k}": v for k, v in THEIRS.items()}
    torch.save(state, tmp_path / "own.pth")
    assert same(load(tmp_path / "own.pth")[0], THEIRS)


def test_parts_of_the_same_name_in_another_tower_fill_nothing(tmp_path):
    """Without this, the text tower's blocks would fill holes of the vision tower unnoticed."""
    vision = prefixed("visual.", THEIRS)
    del vision["visual.blocks.1.proj.weight"]
    torch.save({**Net().blocks.state_dict(prefix="blocks."), **vision}, tmp_path / "clip.pth")
    with pytest.raises(ModelError, match=r"11 of 12 tensors match; missing are blocks\.1\.proj"):
        load(tmp_path / "clip.pth")


@pytest.mark.parametrize("averaged", ["teacher", "model_ema", "state_dict_ema"])
def test_of_two_that_fit_alike_the_averaged_one_is_taken(averaged, tmp_path):
    torch.save({"model": Net().state_dict(), averaged: THEIRS}, tmp_path / "own.pth")
    module, report = load(tmp_path / "own.pth")
    assert same(module, THEIRS)
    assert report.entry == averaged


def test_the_one_that_fits_better_wins_over_the_averaged_one(tmp_path):
    torch.save({"model": THEIRS, "ema": {"decay": torch.zeros(1)}}, tmp_path / "own.pth")
    assert load(tmp_path / "own.pth")[1].entry == "model"


def test_the_head_gets_as_many_classes_as_the_files(tmp_path):
    theirs = Net(7).state_dict()
    save_file(theirs, tmp_path / "own.safetensors")
    module, report = load(tmp_path / "own.safetensors")
    assert same(module, theirs)
    assert report.n_classes == 7


def test_a_head_that_is_not_in_the_file_is_left_out_or_left_random(tmp_path):
    save_file(Net(0).state_dict(), tmp_path / "own.safetensors")
    module, report = load(tmp_path / "own.safetensors", can_be_headless=True)
    assert isinstance(module.head, nn.Identity)
    assert report.missing == ()
    module, report = load(tmp_path / "own.safetensors")
    assert report.missing == ("head.weight", "head.bias")


def test_what_the_model_has_no_place_for_is_reported(tmp_path):
    torch.save({**THEIRS, "decoder.weight": torch.zeros(2)}, tmp_path / "own.pth")
    _, report = load(tmp_path / "own.pth")
    assert report.unexpected == ("decoder.weight",)
    assert report.sentence == (
        "weights from own.pth: 12 of 12 tensors matched; 5 classes; not used: decoder.weight"
    )


def test_an_incomplete_backbone_is_refused_with_its_missing_keys(tmp_path):
    state = {key: tensor for key, tensor in THEIRS.items() if "blocks.1" not in key}
    torch.save(state, tmp_path / "half.pth")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "half.pth")
    assert "half.pth does not fill Net: 7 of 12 tensors match" in str(caught.value)
    assert "missing are blocks.1.norm.weight" in str(caught.value)


def test_tensors_of_another_shape_are_refused_with_both_shapes(tmp_path):
    torch.save(Net(width=6).state_dict(), tmp_path / "wide.pth")
    with pytest.raises(ModelError, match=r"norm.weight is \(6,\) and not \(4,\)"):
        load(tmp_path / "wide.pth")


def test_tables_of_indices_may_be_missing(tmp_path):
    state = {key: tensor for key, tensor in THEIRS.items() if "index" not in key}
    torch.save(state, tmp_path / "own.pth")
    module, report = load(tmp_path / "own.pth")
    assert same(module, THEIRS)
    assert report.missing == ()


def test_a_translation_is_used_where_keys_do_not_fit_as_they_are(tmp_path):
    foreign = {key.replace("proj", "dense"): tensor for key, tensor in THEIRS.items()}
    torch.save({"model": prefixed("module.", foreign)}, tmp_path / "own.pth")
    module, _ = load_checkpoint(
        tmp_path / "own.pth", build, lambda _: ("head",),
        lambda state, _: {key.replace("dense", "proj"): value for key, value in state.items()},
    )  # fmt: skip
    assert same(module, THEIRS)


def test_a_file_that_would_run_code_is_not_opened(tmp_path):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return ran.touch, ()

    torch.save({"model": THEIRS, "bomb": Bomb()}, tmp_path / "bomb.pt")
    with pytest.raises(ModelError, match="could run code, and are not opened"):
        read_entries(tmp_path / "bomb.pt")
    assert not ran.exists()


def test_a_whole_pickled_module_is_not_opened(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    with pytest.raises(ModelError, match=r"save model\.state_dict\(\) instead"):
        read_entries(tmp_path / "whole.pt")


def test_safetensors_are_known_by_their_content(tmp_path):
    save_file(THEIRS, tmp_path / "named.bin")
    assert read_entries(tmp_path / "named.bin")[""].keys() == THEIRS.keys()


def test_a_folder_of_shards_is_one_state(tmp_path):
    keys = sorted(THEIRS)
    for index, part in enumerate((keys[:5], keys[5:])):
        save_file({key: THEIRS[key] for key in part}, tmp_path / f"{index}.safetensors")
    assert same(load(tmp_path)[0], THEIRS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no weights at all", "could not be read"),
        (b"", "could not be read"),
        (None, r"holds no \.safetensors files"),
    ],
)
def test_files_that_hold_no_weights_are_refused(content, said, tmp_path):
    path = tmp_path / "own.pth"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read_entries(path)


def test_a_file_without_tensors_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "own.pth")
    with pytest.raises(ModelError, match="holds no tensors by name"):
        read_entries(tmp_path / "own.pth")


def test_a_file_that_does_not_exist_is_refused_before_anything_is_built():
    with pytest.raises(ModelError, match="neither 'pretrained' nor 'random' nor a file"):
        load_model("timm/vit_tiny_patch16_224", weights="nowhere.pth")
