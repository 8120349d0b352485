"""Audit models in full and fill their cards: one after another, to be stopped and repeated.

    python tools/card_audits.py MODEL... --data DIR --out DIR [--part main apart ...] [--write]
        [--calibrate SPEC] [--points 1000] [--minutes 25]

MODEL is a shipped name (cifar10-ratio-0.25) or a checkpoint folder (RUN/model). DIR of `--data` has
cifar10_test.npz and the sets ood32_NAME.npz or NAME.npz. Every part is an audit of its own, with
clean accuracy and calibration on all test images:
    main      OUT/NAME: `standard` at l2 0.5, l2 1.0, l∞ 8/255 on the first 1,000 test images; AUC,
              worst-case AUC (l2 1.0) and MMC of the unseen sets
    apart     OUT/NAME-apart: the same three of the set that training saw and of the noises
    whole     OUT/NAME-whole: `standard` at l2 0.5 on all test images
    fast-0.5  OUT/NAME-fast-0.5, and fast-1.0: `fast` at that l2 radius on all test images, for
              benchmarks/zoo_orderings.py, not for cards
The card filled from the parts that are finished is OUT/cards/NAME.json (with `--write` also the
card beside the weights); numbers of the same weights that the card had and no part measures stay.
That of a model which is not shipped can go to zoo/audits. Numbers are in result.json of each folder
as they come; the same command goes on where it was stopped, and finished audits are not made again.
Needs torch, not the command line.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens import zoo
from counterlens.errors import CounterlensError
from counterlens.models.sources.checkpoint import read_card
from counterlens.runs import Run, write_json
from counterlens.workflows.audit.run import audit
from counterlens.workflows.reproduce.cards import check_weights, with_audit
from counterlens.workflows.reproduce.table1 import PROTOCOL

UNSEEN = ("caltech256", "flowers102", "intel_scenes", "streetview_chars")
SEEN = "tinyimagenet_val"
NOISES = ("noise:uniform", "noise:smooth")
MAIN, APART, WHOLE, FAST, FAST_FAR = "main", "apart", "whole", "fast-0.5", "fast-1.0"
ALL = 10_000
PARTS: dict[str, dict[str, Any]] = {
    MAIN: {"ood": UNSEEN},
    APART: {"ood": (SEEN, *NOISES), "attack": []},
    WHOLE: {"attack": ["l2:0.5"], "attack_points": ALL},
    FAST: {"attack": ["l2:0.5"], "attack_points": ALL, "attack_version": "fast"},
    FAST_FAR: {"attack": ["l2:1.0"], "attack_points": ALL, "attack_version": "fast"},
}
"""What each part measures, where it differs from PROTOCOL."""

CARDED = (APART, MAIN, WHOLE)
"""Parts whose numbers go on the card; of a number that several have, the last one's."""


def folder_of(model: str) -> Path:
    """Where the checkpoint of a shipped name or of a folder lies."""
    return Path(model) if (Path(model) / "card.json").exists() else zoo.folder(model)


def place(name: str, part: str, out: Path) -> Path:
    """The folder of one part of a model's audit."""
    return out / (name if part == MAIN else f"{name}-{part}")


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


def audited(folder: Path, target: Path, part: str, given: argparse.Namespace) -> Run:
    """One part of the audit, made, gone on with, or there already."""
    if not (target / "DONE").exists():
        how = {**PROTOCOL, "attack_points": given.points, **PARTS[part]}
        how["attack_points"] = min(how["attack_points"], given.most)
        audit(
            [str(folder)],
            f"cifar10-test=pack:{given.data}/cifar10_test.npz",
            calibrate=given.calibrate,
            out=target,
            resume=(target / "run.json").exists(),
            device=given.device,
            **{**how, "ood": sets(given.data, how.get("ood", ()))},
        )
    run = Run.open(target)
    check_weights(run, folder)
    return run


def filled(card: Mapping[str, Any], runs: Mapping[str, Run]) -> dict[str, Any] | None:
    """The card with the numbers of some parts; None where neither they nor it have the main ones.

    Args:
        card: its numbers stay where they are of the same weights and no part measured them.
        runs: finished audits, by part.
    """
    parts = {}
    for part in (part for part in CARDED if part in runs):
        seen = [SEEN] if SEEN in runs[part].manifest["data_fingerprint"] else []
        parts[part] = with_audit(card, runs[part], seen=seen)
    hashes = {made["audit"]["weights_hash"] for made in parts.values()}
    if card.get("audit", {}).get("weights_hash") in hashes:
        parts = {"stored": dict(card), **parts}
    first = parts.get(MAIN) or parts.get("stored")
    if first is None:
        return None
    joined: dict[str, dict[str, Any]] = {"numbers": {}, "ood": {}, "data_fingerprint": {}}
    for made in parts.values():
        joined["numbers"] |= made["numbers"]
        joined["ood"] |= made["audit"]["ood"]
        joined["data_fingerprint"] |= made["audit"]["data_fingerprint"]
    told = {key: joined[key] for key in ("ood", "data_fingerprint")}
    dates = {part: made["audit"]["date"] for part, made in parts.items() if part in CARDED}
    told |= {"date": max(dates.values()), "dates": dates}
    return {**first, "numbers": joined["numbers"], "audit": {**first["audit"], **told}}


def one(model: str, given: argparse.Namespace) -> None:
    """Audit one model, or go on with it, and write its card."""
    folder = folder_of(model)
    card = read_card(folder)
    name = card["name"]
    for part in given.part:
        audited(folder, place(name, part, given.out), part, given)
    places = {part: place(name, part, given.out) for part in CARDED}
    runs = {part: Run.open(path) for part, path in places.items() if (path / "DONE").exists()}
    whole = filled(card, runs) if runs else None
    if whole is None:
        return
    if given.write:
        write_json(folder / "card.json", whole)
    kept = {} if name in zoo.names() else {"weights": "not kept"}
    write_json(given.out / "cards" / f"{name}.json", {**whole, **kept})
    told = {k: round(n["value"], 4) for k, n in whole["numbers"].items() if n["value"] is not None}
    print(f"{name}: {told}", flush=True)


def main() -> int:
    """Audit what there is time for; the exit code is 1 when a model could not be audited."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=[MAIN, APART])
    parser.add_argument("--calibrate", default="sample:cifar10-calibration")
    parser.add_argument("--points", type=int, default=PROTOCOL["attack_points"])
    parser.add_argument("--most", type=int, default=ALL, help="images attacked by any part")
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
