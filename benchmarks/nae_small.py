"""Natural adversarial examples at 32 pixels: mined with one network, they fool the others.

Result (one NVIDIA H200, results/nae_small_adversarial.json and nae_small_ood.json): 35,000 images
→ 3,537 wrong → 1,573 in all crops → 919 under 15 % → 913 without copies → 589 under the cap of 15.
Eight held-out networks fall from 79.5–92.5 % on class-matched images to 8.8–18.2 % on the 589
(paired falls of 61.6 to 83.5 points); low-level AUROC 52.4 % [49.5, 55.4]. Strangers: 15,936 →
2,943; AUPR at 1 : 5 (chance 16.7 %) 22.2 and 21.3 % before mining, 11.8 and 11.6 % after; low-level
AUROC 62.3 % [59.8, 64.7], before mining 51.8 % [49.2, 54.3]. No person has reviewed either set.
Tables: docs/papers/nae2021.md.

Run, with FOLDER the place of the packed sets and MODELS that of the trained networks
(MODELS/nae-resnet18/model, …):
    .venv/bin/python benchmarks/nae_small.py packs FOLDER            # splits Tiny-ImageNet 86 / 86
    .venv/bin/python benchmarks/nae_small.py lowlevel FOLDER         # AUROC before any mining
    .venv/bin/python benchmarks/nae_small.py adversarial FOLDER MODELS OUT
    .venv/bin/python benchmarks/nae_small.py ood FOLDER MODELS OUT
Training, the same for every recipe nae-NAME (the three of nae-tiny86* take tiny86_in.npz, the
twin of the filter --seed 1):
    python -m counterlens.workflows.train.run nae-resnet18 --out MODELS/nae-resnet18 \
        --data pack:FOLDER/cifar10_train_part0.npz
Networks that are not there are left out and named. Runs on a GPU where there is one, and needs
neither timm nor pyarrow.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterlens.data import open_set
from counterlens.data.sets import encoded
from counterlens.images import prepared
from counterlens.runs import Number, Run, atomic, read_json, write_json
from counterlens.screen.lowlevel import auroc, features
from counterlens.types import Preprocess
from counterlens.workflows.audit.run import audit
from counterlens.workflows.curate.freeze import freeze
from counterlens.workflows.curate.run import adversarial, ood

RESULTS = Path(__file__).parent / "results"
PARTS = ("tinyimagenet32_out_train_part0.npz", "tinyimagenet32_out_train_part1.npz")
TEST_PER_CLASS = 17
HELD_OUT = (
    *("nae-resnet18-twin", "nae-resnet18-wide", "nae-wide", "nae-resnext", "nae-resnext-se"),
    *("nae-resnet18-noise", "nae-resnet18-fgsm", "nae-resnet18-pgd"),
)
HELD_OUT_OOD = ("nae-tiny86-resnext", "nae-tiny86-wide")


def packs(folder: Path) -> None:
    """Three packs of Tiny-ImageNet: 86 synsets to train on, some of them to test on, 86 foreign."""
    whole = open_set("pack:" + "+".join(str(folder / part) for part in PARTS))
    order = np.random.default_rng(0).permutation(np.unique(whole.labels))
    known = set(order[: len(order) // 2].tolist())
    rows: dict[str, list[int]] = {"tiny86_in": [], "tiny86_test": [], "tiny86_foreign": []}
    for k in order.tolist():
        own = np.flatnonzero(whole.labels == k).tolist()
        if k not in known:
            rows["tiny86_foreign"] += own
            continue
        rows["tiny86_test"] += own[:TEST_PER_CLASS]
        rows["tiny86_in"] += own[TEST_PER_CLASS:]
    for name, chosen in rows.items():
        kept = sorted({int(whole.labels[i]) for i in chosen})
        place = {k: j for j, k in enumerate(kept)}
        data = [encoded(whole.read, i) for i in chosen]
        with atomic(folder / f"{name}.npz") as part, part.open("wb") as file:
            np.savez(
                file,
                encoded=np.frombuffer(b"".join(data), np.uint8),
                offsets=np.cumsum([0] + [len(d) for d in data], dtype=np.int64),
                labels=np.array([place[int(whole.labels[i])] for i in chosen]),
                classes=np.array([whole.classes[k] for k in kept]),
                ids=np.array([whole.ids[i] for i in chosen]),
            )
        print(f"{name}: {len(chosen)} images of {len(kept)} synsets")


def _model(models: Path, name: str) -> str:
    return str(models / name / "model")


def _there(models: Path, names: Sequence[str]) -> list[str]:
    """Names of the networks that have been trained; the others are said to be missing."""
    found = [name for name in names if (models / name / "model").is_dir()]
    missing = [name for name in names if name not in found]
    if missing:
        print(f"not trained, left out: {', '.join(missing)}")
    return found


def _trained(models: Path, name: str) -> dict[str, object]:
    """What the card of a network says about its training."""
    card = read_json(models / name / "model" / "card.json")
    recipe, training = card["recipe"], card["training"]
    return {
        "epochs": recipe["epochs"],
        "updates": training["updates"],
        "seed": training["seed"],
        "held_out_accuracy": training["held_out"].get("held_out.clean"),
        "held_out_images": card["data"]["held_out"]["n"],
    }


def low_level(folder: Path) -> Number:
    """How well low-level statistics tell foreign synsets from known ones before any mining."""
    view = Preprocess(size=(32, 32), crop=1.0)
    sides = []
    for name in ("tiny86_foreign", "tiny86_test"):
        images = open_set(f"pack:{folder}/{name}.npz", limit=1000)
        seen = [prepared(images.read, i, view).transpose(1, 2, 0) for i in range(len(images))]
        sides.append(np.array([features(np.ascontiguousarray(pixels)) for pixels in seen]))
    return auroc(sides[0], sides[1], 0)


def _measure(run: Run, models: Path, names: Sequence[str], out: Path, result: Path) -> None:
    began = time.monotonic()
    held_out = [_model(models, name) for name in names]
    card = freeze(run.folder, out=out / "set", held_out=held_out, unreviewed=True)
    filters = [{**row, "model": Path(row["model"]).parent.name} for row in card["filters"]]
    own = {k: n.to_json() for k, n in run.numbers.items() if not k.startswith("funnel.")}
    found = {
        "funnel": [{k: row[k] for k in ("stage", "kept", "rule")} for row in run.table("funnel")],
        "filters": filters,
        "held_out": list(names),
        "trained": {
            name: _trained(models, name) for name in (*(row["model"] for row in filters), *names)
        },
        "device": run.manifest.get("device"),
        "numbers": {**own, **card["numbers"]},
    }
    text = json.dumps(found).replace(f"{models}/", "").replace("_model.", ".")
    write_json(result, json.loads(text.replace("/model ", " ")))
    print(" → ".join(f"{row['kept']:,} {row['stage']}" for row in run.table("funnel")))
    for key, number in card["numbers"].items():
        ends = "" if number["low"] is None else f" [{number['low']:.4f}, {number['high']:.4f}]"
        print(f"{key}: {number['value']}{ends} n={number['n']}")
    print(f"frozen and measured in {time.monotonic() - began:.0f} s", flush=True)


def _draw(
    models: Path, names: Sequence[str], data: str, out: Path, ood: Sequence[str] = ()
) -> None:
    """The paper's Figures 8–11, 14, 15 in small: the report of a comparison of all networks."""
    specs = [f"{name.removeprefix('nae-')}={_model(models, name)}" for name in names]
    result = audit(specs, data, ood=ood, anyway=True, out=out / "family", quiet=True)
    print(result.report)


def main() -> None:
    """Split, mine, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("packs", "lowlevel", "adversarial", "ood"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    parser.add_argument("--confidence", type=float, default=0.5, help="least, of strangers")
    parser.add_argument("--limit", type=int, help="images of each set, for a trial")
    asked = parser.parse_args()
    if asked.what == "packs":
        packs(asked.folder)
        return
    if asked.what == "lowlevel":
        print(json.dumps(low_level(asked.folder).to_json(), indent=1))
        return
    began = time.monotonic()
    if asked.what == "adversarial":
        names = _there(asked.models, HELD_OUT)
        pool = [f"pack:{asked.folder}/cifar10_{part}.npz" for part in ("train_part1", "test")]
        run = adversarial(
            pool,
            filters=[_model(asked.models, "nae-resnet18")],
            against=[f"pack:{asked.folder}/cifar10_train_part0.npz"],
            limit=asked.limit,
            shard=2500,
            out=asked.out / "run",
        )
        first, data, strangers = "nae-resnet18", str(asked.out / "set"), []
    else:
        names = _there(asked.models, HELD_OUT_OOD)
        known = f"pack:{asked.folder}/tiny86_test.npz"
        run = ood(
            [f"pack:{asked.folder}/tiny86_foreign.npz"],
            filters=[_model(asked.models, "nae-tiny86")],
            inside=known,
            confidence=asked.confidence,
            limit=asked.limit,
            shard=2500,
            out=asked.out / "run",
        )
        first, data, strangers = "nae-tiny86", known, [str(asked.out / "set")]
    print(f"mined in {time.monotonic() - began:.0f} s", flush=True)
    result = asked.results / f"nae_small_{asked.what}.json"
    _measure(run, asked.models, names, asked.out, result)
    _draw(asked.models, (first, *names), data, asked.out, strangers)
    print(f"all in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
