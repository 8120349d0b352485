"""Twelve OOD scores on four shipped CIFAR-10 networks against eight unknown sets.

Known: test images of CIFAR-10. Fitted on sample:cifar10-calibration (2,000 images that trained no
network). Near: Tiny ImageNet and Caltech-256 without classes like those of CIFAR-10. Far: flowers,
scenes, street-view characters, drawn textures, smooth and uniform noise.

Run: python benchmarks/ood_score_table.py FOLDER --out benchmarks/results/ood_score_table.json
FOLDER holds cifar10_test.npz and the packed sets ood32_NAME.npz. It can be run again to go on.
"""

import argparse
import json
from pathlib import Path

import counterlens as cl
from counterlens.runs import atomic

MODELS = (
    "zoo:cifar10-plain-small",
    "zoo:cifar10-ratio-small",
    "zoo:cifar10-at-0.5",
    "zoo:cifar10-ratio-0.25",
)
NEAR = ("tinyimagenet_val", "caltech256")
FAR = ("flowers102", "intel_scenes", "streetview_chars")
METRICS = ("auroc", "fpr95")


def table(model: str, folder: Path, packs: Path, limit: int) -> dict[str, object]:
    """AUROC and FPR95 of every score on every set, means, and which score wins."""
    sets = [f"{name}=pack:{packs / f'ood32_{name}.npz'}" for name in (*NEAR, *FAR)]
    result = cl.audit(
        model,
        f"cifar10=pack:{folder / 'cifar10_test.npz'}",
        calibrate="sample:cifar10-calibration",
        ood=[*sets, "sample:textures", "noise:smooth", "noise:uniform"],
        ood_near=NEAR,
        ood_score="all",
        limit=limit,
        out=Path("runs/ood-score-table") / model.partition(":")[2],
        resume=True,
        quiet=True,
    )
    fields = ("value", "n", "low", "high", "protocol")
    numbers = {
        key: {field: getattr(number, field) for field in fields}
        for key, number in result.numbers.items()
        if key.startswith("ood_score.") and key.endswith(METRICS)
    }
    return {"numbers": numbers, "pairs": result.table("ood_score_pairs")}


def main() -> None:
    """Audit each network, print the means, store everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packs", type=Path, help="Folder of the unknown sets. Default: FOLDER.")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    for model in args.models:
        found[model] = one = table(model, args.folder, args.packs or args.folder, args.limit)
        for key, number in one["numbers"].items():  # type: ignore[attr-defined]
            if key.split(".")[1] in ("all", "near", "far"):
                ends = f"[{number['low']:.3f}, {number['high']:.3f}]"
                print(f"{model} {key} {number['value']:.3f} {ends}", flush=True)
        with atomic(args.out) as part:
            part.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
