"""What a default audit costs next to one bare prediction pass, and its memory at two sizes.

Each arm runs in a process of its own, on the same photographs, model, batch and no workers, one
thread: a loop written by hand (decode, resize, crop, forward), and `counterlens.audit` with its
defaults, so with the doctor, calibration, pictures and the report. The arms take turns in each
round. Time is CPU time after the model is loaded, which both need; memory is the peak of the
process. From two sizes n follow the time per image and what an audit costs once, with them the
ratio at 10,000 photographs.

Run: python benchmarks/bench_audit.py WEIGHTS.pth photos_imagenette_train.npz
     --out benchmarks/results/audit_cost.json
WEIGHTS are those of EfficientNet-Lite0.
"""

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ARMS = ("bare", "audit")
GOAL = 10_000


def bare(model: object, pack: Path, n: int) -> None:
    """What one would write by hand: decode, resize the shorter side, crop, normalise, forward."""
    height, crop, batch = 256, 224, 32
    with np.load(pack) as file:
        encoded, offsets = file["encoded"], file["offsets"]
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(offsets) - 1)[:n])
    out = []
    with torch.inference_mode():
        for start in range(0, n, batch):
            planes = []
            for i in rows[start : start + batch]:
                image = Image.open(io.BytesIO(encoded[offsets[i] : offsets[i + 1]].tobytes()))
                image = image.convert("RGB")
                scale = height / min(image.size)
                wide = (round(image.width * scale), round(image.height * scale))
                image = image.resize(wide, Image.Resampling.BICUBIC)
                left, top = (wide[0] - crop) // 2, (wide[1] - crop) // 2
                planes.append(np.array(image.crop((left, top, left + crop, top + crop))))
            x = torch.from_numpy(np.stack(planes)).permute(0, 3, 1, 2).float() / 255
            out.append(model(x))  # type: ignore[operator]
    assert len(torch.cat(out)) == n


def one(arm: str, weights: Path, pack: Path, n: int) -> dict[str, float]:
    """CPU seconds and peak memory of one arm, in this process."""
    import counterlens as cl
    from counterlens.report import html  # noqa: F401  what both arms load before the clock starts

    torch.set_num_threads(1)
    model = cl.load(f"timm:tf_efficientnet_lite0@{weights}")
    model(torch.zeros(1, 3, 224, 224))
    before, clock = time.process_time(), time.perf_counter()
    if arm == "bare":
        bare(model, pack, n)
    else:
        with tempfile.TemporaryDirectory() as folder:
            cl.audit(
                model, f"pack:{pack}", limit=n, workers=0, batch=32, out=Path(folder) / "run",
                quiet=True,
            )  # fmt: skip
    return {
        "cpu_s": time.process_time() - before,
        "wall_s": time.perf_counter() - clock,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def lap(arm: str, n: int, given: argparse.Namespace) -> dict[str, float]:
    """One arm in a fresh process."""
    call = [sys.executable, __file__, given.weights, given.pack, "--arm", arm, "--n", n]
    done = subprocess.run([*map(str, call)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Both arms in turn at each size, then the line through them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--n", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arm", choices=ARMS, help="only this one, in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.arm:
        print(json.dumps(one(given.arm, given.weights, given.pack, given.n[0])))
        return
    laps: dict[str, dict[int, list[dict[str, float]]]]
    laps = {arm: {n: [] for n in given.n} for arm in ARMS}
    for _ in range(given.rounds):
        for n in given.n:
            for arm in ARMS:
                laps[arm][n].append(lap(arm, n, given))
    best = {
        arm: {n: statistics.median(x["cpu_s"] for x in laps[arm][n]) for n in given.n}
        for arm in ARMS
    }
    few, many = min(given.n), max(given.n)
    each = {arm: (best[arm][many] - best[arm][few]) / (many - few) for arm in ARMS}
    once = {arm: best[arm][few] - few * each[arm] for arm in ARMS}
    at = {arm: once[arm] + GOAL * each[arm] for arm in ARMS}
    peak = {n: max(x["peak_mb"] for x in laps["audit"][n]) for n in given.n}
    found = {
        "cpu_s": best,
        "ms_per_image": {arm: 1000 * each[arm] for arm in ARMS},
        "once_s": once,
        "ratio": {n: best["audit"][n] / best["bare"][n] for n in given.n},
        f"ratio_at_{GOAL}_projected": at["audit"] / at["bare"],
        "peak_mb_of_audit": peak,
        "laps": laps,
    }
    print(json.dumps({k: v for k, v in found.items() if k != "laps"}, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
