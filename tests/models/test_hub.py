"""Without a network: one sentence, soon."""

import socket
import sys
import time

import pytest
import torch

from vizattn.errors import ModelError
from vizattn.models import hub, load_model

NAMES = [
    "timm/vit_tiny_patch16_224",
    "hf/facebook/dinov2-small",
    "torchvision/vit_b_32",
    "open_clip/ViT-B-32/openai",
]
OFFERS = ["'vizattn/dinov2-small'", "weights=PATH", "weights='random'"]


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))


@pytest.fixture
def no_network(monkeypatch):
    """No name is found, as on a machine that is not connected."""

    def fail(*_arguments, **_more):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.fixture
def silent_network(monkeypatch):
    """Names are looked up and nothing ever answers."""
    monkeypatch.setattr(hub, "PATIENCE", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_more: time.sleep(2))


def refusal(name):
    start = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        load_model(name)
    return str(caught.value), time.perf_counter() - start


@pytest.mark.parametrize("name", NAMES)
def test_without_a_network_one_sentence_says_what_was_tried_and_what_to_do(name, no_network):
    refusal("timm/vit_tiny_patch16_224")  # libraries are imported; only asking is timed
    said, seconds = refusal(name)
    assert said.startswith(f"the weights of '{name}' could not be fetched: ")
    assert "cannot be reached from here" in said
    assert all(offer in said for offer in OFFERS)
    assert ("PyTorch's server" in said) == name.startswith("torchvision")
    assert seconds < 5


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_network_that_never_answers_is_given_up_soon(name, silent_network):
    said, seconds = refusal(name)
    assert "cannot be reached from here" in said
    assert seconds < 5


def test_offline_mode_is_heeded_without_asking(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(hub, "_in_time", lambda _: pytest.fail("the network was asked"))
    assert "could not be fetched" in refusal("timm/vit_tiny_patch16_224")[0]


def test_the_hubs_own_mode_is_put_back_afterwards(no_network):
    from huggingface_hub import constants

    refusal("hf/facebook/dinov2-small")
    assert constants.HF_HUB_OFFLINE is False


def test_what_goes_wrong_with_a_network_is_not_blamed_on_it(monkeypatch):
    monkeypatch.setattr(hub, "_hub_answers", lambda: True)
    with (
        pytest.raises(ModelError, match="was reached, but 'timm/x' could not be loaded: too big"),
        hub.hugging_face("timm/x"),
    ):
        raise RuntimeError("too big")


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"pip install 'vizattn\[hf\]'"):
        load_model("hf/facebook/dinov2-small")
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError, match=r"pip install 'vizattn\[open_clip\]'"):
        load_model("open_clip/ViT-B-32")
