"""predict on a GPU against the CPU: half precision, overflow repeated in float32, real back-off."""

import numpy as np
import pytest
import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.images import ImageSet
from counterlens.predictions import predict
from counterlens.types import Preprocess

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _read(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def _set(n: int) -> ImageSet:
    ids = [str(i) for i in range(n)]
    return ImageSet("made", ids, np.zeros(n, np.int64), ("a",), _read)


def _classifier(scale: float = 1.0) -> Classifier:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    with torch.no_grad():
        net[0].weight.mul_(scale)
        net[4].weight.div_(scale)
    return Classifier(net, list("abcd"), preprocess=Preprocess((32, 32))).eval()


@pytest.mark.parametrize("amp", [None, False])
def test_the_gpu_gives_the_logits_of_the_cpu(amp):
    images = _set(50)
    here = predict(_classifier(), images, batch=16, workers=0, progress=False)
    there = predict(_classifier().to("cuda"), images, batch=16, workers=2, amp=amp, progress=False)
    torch.testing.assert_close(
        there.logits, here.logits, rtol=0, atol=1e-4 if amp is False else 1e-2
    )


def test_a_batch_that_overflows_in_half_precision_is_repeated_in_float32():
    images, scale = _set(20), 1e6
    here = predict(_classifier(scale), images, workers=0, progress=False)
    there = predict(_classifier(scale).to("cuda"), images, workers=0, progress=False)
    assert there.nonfinite == 0
    torch.testing.assert_close(there.logits, here.logits, rtol=1e-3, atol=1e-3)
