"""The study's loss ablation on photographs: each loss removed, three seeds, mean mask and collapse.

    python benchmarks/cgn_natural_ablation.py my_gan.py:make --salient u2netp.onnx \\
        --vgg vgg16.ckpt --judged-by MODEL --iterations 50 --images 2048 --device cuda --out OUT

Beside each row stand the study's and the paper's mean mask (BigGAN-256, 2,000 images, an Inception
score in place of the judge's accuracy). A stopped run goes on when the command is repeated.

Not run on a trained generator yet: results/ holds no file of it.
"""

import argparse
import json
from pathlib import Path

import counterlens as cl
from counterlens.errors import InputError

PUBLISHED = {"none": (0.3, 0.3), "shape": (0.3, 0.2), "texture": (0.4, 0.9),
             "background": (0.1, 0.1), "reconstruction": (0.4, 0.3)}  # fmt: skip
KEYS = ("mask", "entropy", "collapsed", "judged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("generator")
    parser.add_argument("--salient", required=True)
    parser.add_argument("--vgg")
    parser.add_argument("--judged-by")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for ablation in PUBLISHED:
        for seed in range(args.seeds):
            result = trained(args, ablation, seed)
            if not result.done:
                raise InputError(f"{result.folder} is not finished: repeat the command.")
            numbers = result.numbers
            known = {key: numbers.get(f"natural.{key}") for key in KEYS}
            row = {"removed": ablation, "seed": seed, "study": PUBLISHED[ablation][0],
                   "paper": PUBLISHED[ablation][1]}  # fmt: skip
            row |= {key: {"value": one.value, "low": one.low, "high": one.high, "n": one.n}
                    for key, one in known.items() if one is not None}  # fmt: skip
            rows.append(row)
            print(json.dumps(row))
    (args.out / "ablation.json").write_text(json.dumps(rows, indent=1) + "\n")


def trained(args: argparse.Namespace, ablation: str, seed: int) -> cl.Result:
    folder = args.out / f"{ablation}-{seed}"
    if (folder / "DONE").exists():
        return cl.open_result(folder)
    return cl.cgn.train_natural(
        args.generator, salient=args.salient, vgg=args.vgg, judged_by=args.judged_by,
        iterations=args.iterations, images=args.images, ablation=ablation, seed=seed,
        device=args.device, out=folder, resume=folder.exists(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
