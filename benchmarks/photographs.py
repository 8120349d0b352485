"""ImageNet classifiers on photographs: for whom they are worse, and what a release breaks.

One set of four: the ImageNet validation images of Imagenette and Imagewoof (test files), the pets
whose breed is an ImageNet class, and one image of each of the 1,000 classes (imagenet1k_samples,
probably training images: accuracy there is optimistic, and no slice can be compared within a class
of one image). All 1,000 answers count. The first three are 136 pixels wide, enlarged to the input.

    pack      writes the set, at most --each images of each of the four, 5/3 of that of the samples,
              with the columns `set`, `kind` (dog, other animal, thing) and `category`
    groups    audits the models on it by set, kind, category, brightness, contrast, sharpness,
              and looks for slices
    releases  compares pairs of releases on the images that the audit of Lite0 reported on:
              EfficientNet-Lite0 and the same with weights rounded to half precision, MobileNetV2
              and Lite0, MobileNetV2 and the same in int8 (onnxruntime, calibrated on 64 of the
              images), Lite0 and Lite2. Then 2 % of the images are seeded as regressions into the
              real answers: of 1,000 images drawn without replacement, 2 % that are right in both
              releases are turned wrong, and the gate `flips.negative.high<=0.02` is asked.

Result: docs/how-to/groups.md, docs/how-to/gate-releases.md.
Run: python benchmarks/photographs.py pack DATA photographs.npz
     python benchmarks/photographs.py groups photographs.npz WEIGHTS RUNS --out …/photo_groups.json
     python benchmarks/photographs.py releases photographs.npz WEIGHTS RUNS --out …/releases.json
DATA holds the packed files; WEIGHTS the files of the package authors, see MODELS.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterlens as cl
from counterlens.data.sets import sample_rows
from counterlens.images import prepared
from counterlens.label_spaces.imagenet import imagenet_names
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.runs import Run, check_gates, parse_gate, stored_logits
from counterlens.workflows._shared.result import Result
from counterlens.workflows.compare.flips import flip_rate, flips

Facts = dict[str, Any]
SETS = {
    "imagenette": ("photos_imagenette_test.npz", "imagenet_val"),
    "imagewoof": ("photos_imagewoof_test.npz", "imagenet_val"),
    "pets": ("photos_pets_test.npz", ""),
    "samples": ("imagenet1k_samples.npz", ""),
}
MODELS = {
    "lite0": "timm:tf_efficientnet_lite0@{}/efficientnet-lite0-57934424.pth",
    "lite2": "timm:tf_efficientnet_lite2@{}/efficientnet-lite2-9656183e.pth",
    "mobilenet": "torchvision:mobilenet_v2@{}/mobilenet_v2-b0353104.pth",
}
COLUMNS = "set,kind,category,image:brightness,image:contrast,image:sharpness"
DOGS, ANIMALS = range(151, 269), 398
PAIRS = ("lite0,lite0-half", "mobilenet,lite0", "mobilenet,mobilenet-int8", "lite0,lite2")
LIMIT, SEEDED, DRAWN, REPEATS = 0.02, 0.02, 1000, 1000
RULE = f"flips.negative.high<={LIMIT}"


def pack(data: Path, out: Path, each: int) -> None:
    """The four sets as one packed file in ImageNet's classes."""
    pieces, labels, ids, columns = [], [], [], {"set": [], "kind": [], "category": []}
    names = imagenet_names()
    for name, (file, flag) in SETS.items():
        with np.load(data / file) as held:
            arrays = dict(held)
        own = arrays["labels"]
        index = arrays["imagenet_index"][own] if "imagenet_index" in arrays else own
        keep = index >= 0
        if flag:
            keep &= arrays[flag]
        rows, most = np.flatnonzero(keep), each * 5 // 3 if name == "samples" else each
        for i in rows[sample_rows(len(rows), most, 0)].tolist():
            pieces.append(arrays["encoded"][arrays["offsets"][i] : arrays["offsets"][i + 1]])
            label = int(index[i])
            labels.append(label)
            ids.append(f"{name}/{i}")
            animal = "other animal" if label < ANIMALS else "thing"
            columns["set"].append(name)
            columns["kind"].append("dog" if label in DOGS else animal)
            columns["category"].append("" if name == "samples" else names[label])
    np.savez(
        out,
        encoded=np.concatenate(pieces),
        offsets=np.cumsum([0, *map(len, pieces)]).astype(np.int64),
        labels=np.array(labels, dtype=np.int64),
        classes=np.array(names),
        ids=np.array(ids),
        **{key: np.array(values) for key, values in columns.items()},
    )
    print(f"{len(labels)} images, {np.unique(columns['set'], return_counts=True)}")


def audited(model: Any, photographs: Path, folder: Path, **options: Any) -> Result:
    """The audit of a model, made once."""
    if (folder / "DONE").exists():
        return Result(Run.open(folder))
    return cl.audit(
        model, f"pack:{photographs}", out=folder, resume=folder.exists(), quiet=True, workers=0,
        group_width=0.25, groups=COLUMNS.split(","), **options,
    )  # fmt: skip


def groups(args: argparse.Namespace) -> Facts:
    """The judged groups and the slices of each model."""
    facts: Facts = {}
    for name in args.models:
        spec = MODELS[name].format(args.weights)
        result = audited(spec, args.photographs, args.runs / name, slices=True)
        top = result.numbers["accuracy.top1"]
        rows = result.table("groups")
        judged = [row for row in rows if row["judged"]]
        print(f"{name}: {100 * top.value:.1f} [{100 * top.low:.1f}, {100 * top.high:.1f}], {top.n}")
        print(f"{len(rows)} groups, {len(judged)} judged, {rows[0]['least']} images or more")
        for row in judged:
            if row["gap_high"] < 0 or row["gap_low"] > 0:
                keys = ("accuracy", "low", "high", "gap", "gap_low", "gap_high")
                print(f"  {row['group']}, n {row['n']}:", [round(100 * row[k], 1) for k in keys])
        slices = result.table("slices")
        for row in slices:
            print(" ", {k: row[k] for k in ("name", "confirmed", "n", "excess", "low", "high")})
        facts[name] = {
            "accuracy": {"value": top.value, "low": top.low, "high": top.high, "n": top.n},
            "looked_at": len(rows),
            "judged": judged,
            "slices": slices,
        }
    return facts


def int8(model: cl.Classifier, photographs: Path, at: Path) -> str:
    """The same network with int8 weights and activations, as an ONNX file."""
    from export_faults import quantised, right, stack, to_onnx

    at.mkdir(parents=True, exist_ok=True)
    if not (at / "int8.onnx").exists():
        images = cl.open_set(f"pack:{photographs}", limit=64, seed=1)
        plain = to_onnx(model, right, at / "fp32.onnx")
        quantised(plain, at / "int8.onnx", stack(model, [one for one, _ in images]))
    return f"onnx:{at / 'int8.onnx'}"


def half(model: cl.Classifier) -> cl.Classifier:
    """The same network with its weights rounded to half precision."""
    with torch.no_grad():
        for tensor in model.net.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().float())
    return model


def audited_answers(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Ids, labels and answers of the images that an audit of `groups` reported on."""
    one = next(x for x in stored_logits(Run.open(folder)).values() if x.role == "in")
    return list(one.ids), one.labels, np.asarray(one.logits).argmax(1)


def answers(name: str, args: argparse.Namespace) -> np.ndarray:
    """What a release answers for the images of the audit of Lite0, computed once."""
    if (args.runs / name / "DONE").exists():
        return audited_answers(args.runs / name)[2]
    cache = args.runs / f"{name}.npy"
    if not cache.exists():
        weights, photographs = args.weights, args.photographs
        model = cl.load(MODELS[name.partition("-")[0]].format(weights))
        if name.endswith("-int8"):
            model = cl.load(int8(model, photographs, args.runs / "onnx"))
        if name.endswith("-half"):
            model = half(model)
        images = cl.open_set(f"pack:{photographs}")
        place = {one: i for i, one in enumerate(images.ids)}
        rows, out = [place[one] for one in audited_answers(args.runs / "lite0")[0]], []
        for start in range(0, len(rows), 32):
            x = np.stack(
                [prepared(images.read, i, model.preprocess) for i in rows[start : start + 32]]
            )
            with torch.inference_mode():
                out.append(model(torch.from_numpy(x).float() / 255).numpy())
        np.save(cache, np.concatenate(out))
    found: np.ndarray = np.load(cache).argmax(1)
    return found


def seeded(before: np.ndarray, after: np.ndarray, share: float, seed: int) -> bool:
    """Whether the gate stops a release on DRAWN of the images, some of them turned wrong."""
    rng = np.random.default_rng([11, seed])
    rows = rng.permutation(len(before))[:DRAWN]
    old, new = before[rows], after[rows].copy()
    both = np.flatnonzero(old & new)
    new[rng.permutation(both)[: round(share * DRAWN)]] = False
    number = flip_rate(flips(old, new)["negative"], "negative", "drawn images")
    return not check_gates([parse_gate(RULE)], {"flips.negative": number})[0].passed


def releases(args: argparse.Namespace) -> Facts:
    """Flips of each pair on all images, and how often the gate stops it as it is and seeded."""
    labels = audited_answers(args.runs / "lite0")[1]
    facts: Facts = {"rule": RULE, "drawn": DRAWN, "repeats": REPEATS, "seeded": SEEDED}
    for pair in args.pairs:
        one, two = pair.split(",")
        before, after = (answers(name, args) == labels for name in (one, two))
        rates = {k: flip_rate(v, k, "all images") for k, v in flips(before, after).items()}
        stopped = {
            kind: sum(seeded(before, after, share, k) for k in range(REPEATS))
            for kind, share in (("as it is", 0.0), ("seeded", SEEDED))
        }
        facts[pair] = {
            "images": len(before),
            "accuracy": [float(before.mean()), float(after.mean())],
            "flips": {k: [r.value, r.low, r.high] for k, r in rates.items()},
            "stopped": {k: {"n": n, "of": REPEATS, "interval": wilson(n, REPEATS)}
                        for k, n in stopped.items()},
        }  # fmt: skip
        print(pair, json.dumps(facts[pair], indent=1), flush=True)
    return facts


def main() -> None:
    """One of the three parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("pack")
    one.add_argument("data", type=Path)
    one.add_argument("target", type=Path)
    one.add_argument("--each", type=int, default=300)
    for name in ("groups", "releases"):
        one = parts.add_parser(name)
        one.add_argument("photographs", type=Path)
        one.add_argument("weights", type=Path)
        one.add_argument("runs", type=Path)
        one.add_argument("--models", nargs="+", default=["lite0", "mobilenet"])
        one.add_argument("--pairs", nargs="+", default=list(PAIRS))
        one.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.part == "pack":
        pack(args.data, args.target, args.each)
        return
    found = {"groups": groups, "releases": releases}[args.part](args)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False, default=str) + "\n")


if __name__ == "__main__":
    main()
