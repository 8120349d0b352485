"""Audit models in full and fill their cards: one after another, to be stopped and repeated.

    python tools/card_audits.py MODEL... --data DIR --out DIR [--part main apart] [--write]
        [--calibrate SPEC] [--points 1000] [--minutes 25]

MODEL is a shipped name (cifar10-ratio-0.25) or a checkpoint folder (RUN/model). DIR of `--data` has
cifar10_test.npz and the sets ood32_NAME.npz or NAME.npz. Measured: clean accuracy and calibration
on all test images; `standard` at l2 0.5, l2 1.0, l∞ 8/255; AUC, worst-case AUC (l2 1.0), MMC per
set. Two audits of each model: OUT/NAME (main) has the attacks and the unseen sets, OUT/NAME-apart
the set that training saw and the noises, which are reported apart. The card filled from those that
are finished is OUT/cards/NAME.json (with `--write` also the card beside the weights); that of a
model which is not shipped can go to zoo/audits. Numbers are in OUT/NAME/result.json as they come;
the same command goes on where it was stopped, and finished audits are not made again. Needs torch,
not the command line.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterlens import zoo
from counterlens.errors import CounterlensError
from counterlens.models.checkpoint import read_card
from counterlens.runs import Run, write_json
from counterlens.workflows.audit import audit
from counterlens.workflows.cards import check_weights, with_audit
from counterlens.workflows.table1 import PROTOCOL

UNSEEN = ("caltech256", "flowers102", "intel_scenes", "streetview_chars")
SEEN = "tinyimagenet_val"
NOISES = ("noise:uniform", "noise:smooth")
MAIN, APART = "main", "apart"
PARTS = {MAIN: UNSEEN, APART: (SEEN, *NOISES)}


def folder_of(model: str) -> Path:
    """Where the checkpoint of a shipped name or of a folder lies."""
    return Path(model) if (Path(model) / "card.json").exists() else zoo.folder(model)


def sets(data: Path, names: Sequence[str]) -> list[str]:
    """Specs of these out-distribution sets, as far as they are there; noises are made by code."""
    found = []
    for name in names:
        paths = [p for p in (data / f"ood32_{name}.npz", data / f"{name}.npz") if p.exists()]
        if name in NOISES:
            found.append(name)
        elif paths:
            found.append(f"{name}=pack:{paths[0]}")
        else:
            print(f"{name}: no file in {data}, left out", file=sys.stderr)
    return found


def audited(folder: Path, place: Path, part: str, given: argparse.Namespace) -> Run:
    """One part of the audit, made, gone on with, or there already."""
    if not (place / "DONE").exists():
        how = {**PROTOCOL, "attack_points": given.points}
        if part == APART:
            how["attack"] = []
        audit(
            [str(folder)],
            f"cifar10-test=pack:{given.data}/cifar10_test.npz",
            ood=sets(given.data, PARTS[part]),
            calibrate=given.calibrate,
            out=place,
            resume=(place / "run.json").exists(),
            device=given.device,
            **how,
        )
    run = Run.open(place)
    check_weights(run, folder)
    return run


def filled(card: dict[str, Any], main: Run, apart: Run | None) -> dict[str, Any]:
    """The card with the numbers of both parts; the main one's where both measured."""
    if apart is None:
        return with_audit(card, main)
    seen = [SEEN] if SEEN in apart.manifest["data_fingerprint"] else []
    second = with_audit(card, apart, seen=seen)
    more = {
        "weights_sha256": card["weights_sha256"],
        "numbers": second["numbers"],
        "ood": second["audit"]["ood"],
    }
    whole = with_audit(card, main, also=more)
    marks = second["audit"]["data_fingerprint"] | whole["audit"]["data_fingerprint"]
    return {**whole, "audit": {**whole["audit"], "data_fingerprint": marks}}


def one(model: str, given: argparse.Namespace) -> None:
    """Audit one model, or go on with it, and write its card."""
    folder = folder_of(model)
    card = read_card(folder)
    places = {MAIN: given.out / card["name"], APART: given.out / f"{card['name']}-apart"}
    for part in given.part:
        audited(folder, places[part], part, given)
    main, apart = (
        Run.open(place) if (place / "DONE").exists() else None for place in places.values()
    )
    if main is None:
        return
    whole = filled(card, main, apart)
    if given.write:
        write_json(folder / "card.json", whole)
    kept = {} if card["name"] in zoo.names() else {"weights": "not kept"}
    write_json(given.out / "cards" / f"{card['name']}.json", {**whole, **kept})
    told = {k: round(n["value"], 4) for k, n in whole["numbers"].items() if n["value"] is not None}
    print(f"{card['name']}: {told}", flush=True)


def main() -> int:
    """Audit what there is time for; the exit code is 1 when a model could not be audited."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--calibrate", default="sample:cifar10-calibration")
    parser.add_argument("--points", type=int, default=PROTOCOL["attack_points"])
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    began, failed = time.monotonic(), 0
    for model in given.models:
        if time.monotonic() - began > 60 * given.minutes:
            print(f"{model}: no time left", file=sys.stderr)
            break
        try:
            one(model, given)
        except CounterlensError as error:
            print(f"error: {model}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
