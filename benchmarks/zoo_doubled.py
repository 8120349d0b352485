"""Search twice as long as an audit for confident points around unknown images, one file per set.

For the doubling check of zoo_orderings.py (--doubled NAME=FOLDER): does the audit's worst case
stand? The same images and ball as the audit, 200 steps × 5 restarts and another seed, searched at
temperature 1. FOLDER/SET.npz has logits, ids and weights_hash, whole or not there; sets whose file
is there are not searched again.

Run: python benchmarks/zoo_doubled.py MODEL --ood NAME=SPEC ... --out FOLDER
MODEL is zoo:NAME or a checkpoint folder; names and files of the sets are those of the audit. Needs
torch, not the command line.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.errors import CounterlensError, InputError
from counterlens.images import fitting_size
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.runs import atomic, key_part
from counterlens.search import AttackSettings, worst_confidence
from counterlens.workflows.audit.attacks.search import attacked_rows, model_logits, pixels
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.audit.ood import worst
from counterlens.workflows.audit.settings import Settings

AUDIT_SEED = 0
RADIUS = "l2:1.0"


def double(net: Classifier, spec: str, path: Path, given: argparse.Namespace) -> None:
    """Search around the images that an audit attacks, and keep what the model says there."""
    size = fitting_size(net.preprocess)
    other = open_set(spec, seed=AUDIT_SEED, size=size, channels=net.channels)
    asked = Settings(model=given.model, data=spec, attack_points=given.points, seed=AUDIT_SEED)
    rows, _ = attacked_rows(other.labels, asked)
    found = worst_confidence(
        net,
        pixels(other, rows, net),
        parse_attack(RADIUS),
        steps=given.steps,
        restarts=worst.RESTARTS,
        queries=0,
        settings=AttackSettings(seed=AUDIT_SEED + 1, trust=False),
    )
    logits = model_logits(net, found.points, net).numpy()
    ids = np.array([other.ids[int(i)] for i in rows])
    with atomic(path) as part, part.open("wb") as file:
        np.savez_compressed(file, logits=logits, ids=ids, weights_hash=np.array(weights_hash(net)))


def study(given: argparse.Namespace) -> None:
    """Make the files that are missing."""
    paths = {spec: given.out / f"{key_part(name_of(spec))}.npz" for spec in given.ood}
    if len(set(paths.values())) < len(given.ood):
        raise InputError("two sets of --ood have one name. Name them yourself: --ood NAME=SPEC.")
    net = load(given.model, device=given.device)
    for spec, path in paths.items():
        began = time.monotonic()
        if path.exists():
            with np.load(path) as file:
                if str(file.get("weights_hash")) != weights_hash(net):
                    raise InputError(f"{path} is of other weights. Give another --out.")
            print(f"{path.name}: there already")
            continue
        double(net, spec, path, given)
        print(f"{path.name}: {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    """Run the searches; the exit code is 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ood", nargs="+", action="extend", required=True, metavar="NAME=SPEC")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--points", type=int, default=1000, help="as many as the audit attacked")
    parser.add_argument("--steps", type=int, default=2 * worst.STEPS)
    parser.add_argument("--device", default="auto")
    try:
        study(parser.parse_args())
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
