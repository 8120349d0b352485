"""A planted tag: is it found, and does a repair mend it, against placebos, on other photographs?

Cats and dogs of Oxford-IIIT Pets (136 px). A striped tag in the upper left corner goes with dogs in
90 % or 100 % of the photographs that a head on EfficientNet-Lite0's ImageNet features (128 px) was
fitted on, and with neither in the control. Fitted on 300 photographs, repaired with 1,200 others of
the same correlation, proved on the 726 test photographs, half of each class with the tag.

Result (case-seed; bar: worst group +20 points or more, at most 1 point lost without the tag):
    90-0: pairs, better, worst group +27.7 points [+9.4, +45.4], without tag 93.7 -> 95.0 %
    90-1: pairs, better, worst group +23.9 points [+6.9, +38.1], without tag 92.6 -> 95.6 %
    90-2: pairs, not shown, worst group +20.1 points [+2.3, +38.0], without tag 91.2 -> 96.4 %
    100-0: pairs, better, worst group +37.3 points [+16.5, +56.4], without tag 85.7 -> 92.0 %
    100-1: pairs, better, worst group +39.4 points [+18.7, +58.1], without tag 85.1 -> 92.8 %
    100-2: pairs, better, worst group +41.0 points [+21.3, +55.1], without tag 87.1 -> 93.7 %
    control-0: group-weights, not shown, worst group +6.8 points [−6.0, +18.8], without tag 95.9
      -> 96.4 %
    control-1: pairs, not shown, +6.8 points [−7.0, +19.8], without tag 97.0 -> 95.0 %
    control-2: pairs, not shown, +3.4 points [−10.0, +17.0], without tag 97.0 -> 97.5 %
At 100 % dfr and group-weights refuse, pairs run. A held-out probe still finds the tag after
erasure fitted on pairs (AUROC 1.00 -> 0.62 to 0.77): with some 600 images for 1,280 features the
bar of 0.5 is not reached; `repair_erasure.py` shows how many images it takes.
Ranked by `neurons spurious` on some 98 pictures of each class, masks of what the tag leaves
visible: 90-0 has one feature of ten on the background, the first; 100-0 two, the first and the
second; control-0 none.
Run: .venv/bin/python benchmarks/repair_pets.py --weights efficientnet-lite0.pth \
         --data photos_pets_train.npz --test photos_pets_test.npz --work runs/repair-pets

`--spurious` ranks the features of the first model of each kind instead.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

from counterlens import load, neurons, open_set, repair
from counterlens.classifier import Classifier
from counterlens.data.masks import own_masks
from counterlens.data.sets import array_set
from counterlens.images import ImageSet, write_png
from counterlens.runs import read_object, write_json
from counterlens.types import Preprocess
from counterlens.workflows._shared.result import Result
from counterlens.workflows.repair import features
from counterlens.workflows.repair.edits.made import drawn
from counterlens.workflows.repair.groups import Grouped
from counterlens.workflows.repair.heads import Examples, Head, Problem, Scale, Start, logistic

RESULTS = Path(__file__).parent / "results" / "repair_pets.json"
BOX = (0.08, 0.08, 0.35, 0.35)
CLASSES, TAGS = ("cat", "dog"), ("no tag", "tag")
TRAINED, MENDED = 300, 1200
REMEDIES = "spufix,erase,group-weights,dfr,pairs,jtt"
FACTORY = """import timm
import torch
from counterlens import Classifier
from counterlens.types import Preprocess

def make():
    net = timm.create_model("tf_efficientnet_lite0", num_classes=2)
    net.load_state_dict(torch.load({weights!r}, weights_only=True))
    half = (0.5, 0.5, 0.5)
    fit = Preprocess(({side}, {side}), 128 / 136, "bicubic")
    return Classifier(net, ("cat", "dog"), half, half, preprocess=fit, name={name!r})
"""


def tag() -> np.ndarray:
    """Yellow and black stripes."""
    rows, columns = np.mgrid[:64, :64]
    bright = ((rows + columns) // 8 % 2)[..., None] == 1
    return np.where(bright, (255, 210, 0), (0, 0, 0)).astype(np.uint8)


def photographs(
    name: str, images: ImageSet, rows: np.ndarray, tagged: np.ndarray, spec: str
) -> ImageSet:
    """Some photographs, some with the tag; with labels, tags and masks."""
    found = own_masks(spec, images, border=True)
    assert found is not None
    pixels = [images.read(int(i)) for i in rows]
    pixels = [drawn(x, tag(), BOX) if t else x for x, t in zip(pixels, tagged, strict=True)]
    made = array_set(name, np.stack(pixels), is_dog(images)[rows], CLASSES)
    masks = np.stack([found[1](int(i)) for i in rows]).astype(np.uint8)
    covered = drawn(np.zeros_like(pixels[0]), np.full((1, 1, 3), 255, dtype=np.uint8), BOX)
    masks[tagged] &= covered[..., 0] == 0  # what the tag hides is no longer seen
    ids = tuple(str(images.ids[int(i)]) for i in rows)
    return replace(made, ids=ids, extra={"tag": np.array(TAGS)[tagged.astype(int)], "mask": masks})


def is_dog(images: ImageSet) -> np.ndarray:
    """0 for cats, 1 for dogs."""
    dogs = np.array([name.endswith("dog") for name in images.classes])
    return dogs[images.labels].astype(np.int64)


def tags(labels: np.ndarray, share: float | None, rng: np.random.Generator) -> np.ndarray:
    """The tag on this share of dogs and on the rest of the cats; None: on nothing."""
    if share is None:
        return np.zeros(len(labels), dtype=bool)
    out = labels == 1
    for label in (0, 1):
        rows = np.flatnonzero(labels == label)
        odd = rng.choice(rows, round((1 - share) * len(rows)), replace=False)
        out[odd] = ~out[odd]
    return out


def biased(folder: Path, weights: Path, images: ImageSet, name: str, side: int = 128) -> str:
    """A network whose head was fitted on the photographs; its spec."""
    base = load(f"timm:tf_efficientnet_lite0@{weights}", device="cpu")
    fit, half = Preprocess((side, side), 128 / 136, "bicubic"), (0.5, 0.5, 0.5)
    classifier = Classifier(base.net, base.classes, half, half, preprocess=fit, name="base")
    store = features.FeatureStore.open(folder.parent / "features", classifier)
    x = features.compute(classifier, images, store).astype(np.float64)
    scale = Scale.of(x)
    zeros = Head(np.zeros((2, x.shape[1])), np.zeros(2))
    whole = Examples(x, Grouped(images.labels, images.labels * 0, CLASSES, ("all",)))
    start = Start.of(Problem(zeros, whole, whole), scale)
    fitted = logistic(scale.apply(x), images.labels, start, strength=0.001)
    head = scale.folded(fitted.weight, fitted.bias)
    net = timm.create_model("tf_efficientnet_lite0", num_classes=2)
    state = dict(base.net.state_dict())
    state["classifier.weight"] = torch.from_numpy(head.weight).float()
    state["classifier.bias"] = torch.from_numpy(head.bias).float()
    net.load_state_dict(state)
    file = folder / f"{name}.pth"
    torch.save(net.state_dict(), file)
    (folder / f"{name}.py").write_text(
        FACTORY.format(weights=str(file.resolve()), name=name, side=side)
    )
    return f"{folder / f'{name}.py'}:make"


def case(asked: argparse.Namespace, share: float | None, seed: int) -> dict[str, Any]:
    """One model, one repair."""
    name = f"{'control' if share is None else round(100 * share)}-{seed}"
    folder = asked.work / name
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, 7])
    train, test = open_set(f"pack:{asked.data}"), open_set(f"pack:{asked.test}")
    labels = is_dog(train)
    pool = np.random.default_rng(0).permutation(len(train))  # the same photographs for all seeds
    half = (TRAINED + MENDED) // 2
    both = [rng.permutation(pool[labels[pool] == k][:half]) for k in (0, 1)]
    first = np.concatenate([part[: TRAINED // 2] for part in both])
    second = np.concatenate([part[TRAINED // 2 :] for part in both])
    wanted = tags(labels[first], share, rng), tags(labels[second], share or 0.5, rng)
    known = photographs("fitted", train, first, wanted[0], f"pack:{asked.data}")
    fix = photographs("fix", train, second, wanted[1], f"pack:{asked.data}")
    half_tagged = tags(is_dog(test), 0.5, rng)
    check = photographs("check", test, np.arange(len(test)), half_tagged, f"pack:{asked.test}")
    write_png(folder / "tag.png", tag())
    model = biased(folder, asked.weights, known, name)
    start = time.perf_counter()
    if asked.spurious:
        return {"case": name, "features": ranked(model, fix, folder, asked.limit)}
    result = repair(
        model, fix=fix, check=check, groups_from="column:tag",
        pairs=f"patch:{folder / 'tag.png'}@{','.join(map(str, BOX))}", remedies=asked.remedies,
        allow="accuracy.top1:-0.01", out=folder / f"run-{int(time.time())}", seed=seed,
        features=asked.work / "features", device="cpu",
    )  # fmt: skip
    row = {"case": name, "share": share, "seed": seed, "seconds": time.perf_counter() - start}
    row |= summary(result)
    return row


def summary(result: Result) -> dict[str, Any]:
    """The table of all heads, the verdict, and the accuracy without the tag."""
    rows = [r for r in result.table("receipt") if str(r["name"]).endswith("no tag")]
    n = sum(r["n"] for r in rows)
    before, after = (sum(r["n"] * r[key] for r in rows) / n for key in ("before", "after"))
    keys = ("name", "kind", "picked", "refused", "worst_group", "worst_low", "worst_high",
            "accuracy", "groups", "groups.worst.change", "groups.worst.low", "groups.worst.high",
            "choose_worst", "seconds")  # fmt: skip
    numbers = {key: [one.value, one.low, one.high] for key, one in result.numbers.items()}
    return {
        "verdict": result.table("verdict")[0],
        "clean": {"n": n, "before": before, "after": after},
        "tried": [{k: r[k] for k in keys if k in r} for r in result.table("tried")],
        "sizes": result.table("sizes"),
        "numbers": numbers,
    }


def ranked(model: str, images: ImageSet, folder: Path, limit: int) -> list[dict[str, Any]]:
    """What `counterlens neurons spurious` ranks, on images like those the head was fitted on."""
    result = neurons(
        model, method="spurious", data=images, limit=limit, device="cpu",
        out=folder / f"spurious-{int(time.time())}", quiet=True,
    )  # fmt: skip
    keys = ("rank", "name", "outside", "low", "high", "background", "verdict", "n")
    return [{key: row[key] for key in keys} for row in result.table("spurious")]


def main() -> None:
    """All cases; each is written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "data", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--remedies", default=REMEDIES)
    parser.add_argument("--spurious", action="store_true")
    parser.add_argument("--limit", type=int, default=800)
    asked = parser.parse_args()
    kind = "spurious" if asked.spurious else "cases"
    seeds = 1 if asked.spurious else asked.seeds
    rows: list[dict[str, Any]] = []
    for share in (0.9, 1.0, None):
        for seed in range(seeds):
            file = asked.work / f"{kind}-{seed}-{share}.json"
            if not file.exists():
                write_json(file, case(asked, share, seed))
            rows.append(read_object(file))
            stored = read_object(RESULTS) if RESULTS.exists() else {}
            write_json(RESULTS, {**stored, kind: rows})
            print(rows[-1]["case"], rows[-1].get("verdict") or rows[-1]["features"][0], flush=True)


if __name__ == "__main__":
    main()
