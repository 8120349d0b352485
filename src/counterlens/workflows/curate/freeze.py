"""Freeze: turn the accepted images of a curation into a data set with a card, and check it.

The card holds the funnel, the filters and their hashes, what the review of the images was, licence,
author and source of each image, checksums, and the transfer check. A set that no person has
looked at says so.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens.data.provenance import COLUMNS
from counterlens.data.sources.frozen import SCHEMA
from counterlens.errors import InputError, RunExists
from counterlens.runs import Number, Run, write_json, write_text
from counterlens.workflows._shared.session import teller
from counterlens.workflows.curate.frozen_card import readme
from counterlens.workflows.curate.frozen_files import FORMATS, write_images
from counterlens.workflows.curate.frozen_review import accepted
from counterlens.workflows.curate.held_out import transfer
from counterlens.workflows.curate.sharded import SHARD, Where
from counterlens.workflows.curate.shortlist import classes_of, shortlist


def freeze(
    run: Path,
    *,
    out: Path,
    form: str = "folder",
    held_out: Sequence[str] = (),
    unreviewed: bool = False,
    least: int = 1,
    keep_metadata: bool = False,
    on: str = "here",
    workers: int | None = None,
    seed: int = 0,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write the accepted images of a curation as a data set; returns its card.

    Args:
        run: folder of `curate adversarial` or `curate ood`.
        out: folder to create.
        form: "folder" for a folder per class, "webdataset" for tar files.
        held_out: models that had no part in the filtration, for the transfer check.
        unreviewed: freeze the whole shortlist, whatever reviewers said of it.
        least: reviewers who must have judged an image.
        keep_metadata: leave EXIF, GPS and other metadata in the files.
        on: where held-out models run: here, ray, or ray://HOST:PORT.
        workers: most workers on Ray.
    """
    opened = Run.open(run)
    kind = opened.manifest.get("kind")
    if kind not in ("adversarial", "ood") or not opened.done:
        raise InputError(
            f"{run} is no finished curation. Make one: counterlens curate adversarial."
        )
    if form not in FORMATS:
        raise InputError(f"--format is {form!r}, expected {' or '.join(FORMATS)}.")
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty. Choose another --out.")
    say = teller(quiet)
    shortlist(opened)  # checked before anything of it is used
    chosen = accepted(opened, unreviewed=unreviewed, least=least)
    if not opened.table("shortlist"):
        raise InputError(f"the shortlist of {run} is empty, so there is nothing to freeze.")
    if not chosen.rows:
        raise InputError(
            f"no image of {run} has been accepted, so there is nothing to freeze. "
            f"See how far the review has come: counterlens curate review {run} --status."
        )
    where = Where(SHARD, on, workers, device)
    numbers, others = transfer(
        opened, chosen.rows, held_out, where=where, trust=trust_remote_code, seed=seed, say=say
    )
    out.mkdir(parents=True, exist_ok=True)
    classes = classes_of(opened)
    listed = write_images(
        opened, chosen.rows, out, form=form, classes=classes, keep_metadata=keep_metadata
    )
    told = "kept" if keep_metadata else "removed"
    facts = {"format": form, "classes": classes, "review": chosen.card, "metadata": told}
    card = _card(opened, listed, facts, {**chosen.numbers, **numbers}, others)
    write_text(out / "images.jsonl", "".join(_line(row) for row in listed))
    write_text(out / "README.md", readme(card))
    _write_checksums(out)
    write_json(out / "card.json", card)  # last: a folder with a card is whole
    say(f"{len(listed)} images frozen in {out}: {chosen.card['summary']}")
    say(f"next: counterlens audit MODEL {out}")
    return card


def _card(
    run: Run,
    listed: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    numbers: Mapping[str, Number],
    held_out: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    manifest = run.manifest
    digest = hashlib.sha256("".join(sorted(str(row["sha256"]) for row in listed)).encode())
    screens = {k: n.to_json() for k, n in run.numbers.items() if k.startswith("screen.")}
    counts = {
        f"{fact}s": dict(Counter(str(row[fact]) for row in listed).most_common())
        for fact in COLUMNS
    }
    return {
        "schema": SCHEMA,
        "kind": manifest["kind"],
        "name": run.folder.name,
        "images": len(listed),
        **facts,
        "file_types": dict(Counter(row["file"].rpartition(".")[2] for row in listed)),
        "labels": dict(Counter(str(row["label"]) for row in listed).most_common()),
        "protocol": manifest["protocol"],
        "settings": manifest["settings"],
        "filters": manifest["filters"],
        "held_out": [dict(row) for row in held_out],
        "funnel": run.table("funnel"),
        "set_aside": run.table("aside_counts"),
        "numbers": {**screens, **{key: number.to_json() for key, number in numbers.items()}},
        **counts,
        "pool_fingerprint": manifest["data_fingerprint"],
        "sha256": digest.hexdigest(),
        "versions": manifest["versions"],
    }


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"


def _write_checksums(out: Path) -> None:
    lines = []
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {path.relative_to(out).as_posix()}\n")
    write_text(out / "checksums.sha256", "".join(lines))
