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
from counterlens.review.shortlist import classes_of, shortlist
from counterlens.runs import Number, Run, write_json, write_text
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger
from counterlens.workflows.curate.frozen_card import readme
from counterlens.workflows.curate.frozen_files import write_images
from counterlens.workflows.curate.frozen_review import Accepted, accepted
from counterlens.workflows.curate.held_out import transfer
from counterlens.workflows.curate.options import FreezeOptions
from counterlens.workflows.curate.sharded import SHARD, Where


@takes(FreezeOptions)
def freeze(run: Path | str | Run | Result, options: FreezeOptions) -> dict[str, Any]:
    """Write the accepted images of a curation as a data set in `out`; returns its card.

    Args:
        run: result or folder of `curate adversarial` or `curate ood`.
    """
    opened, out = finished(run), options.out
    if out is None:
        raise InputError("no folder given for the data set, expected out=FOLDER.")
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty. Choose another: out=FOLDER.")
    log = logger(options)
    shortlist(opened)  # checked before anything of it is used
    chosen = accepted(opened, unreviewed=options.unreviewed, least=options.least)
    if not opened.table("shortlist"):
        raise InputError(f"the shortlist of {opened.folder} is empty: there is nothing to freeze.")
    if not chosen.rows:
        raise InputError(
            f"no image of {opened.folder} has been accepted, so there is nothing to freeze. See "
            f"how far the review has come: counterlens curate review {opened.folder} --status."
        )
    numbers, others = transfer(
        opened,
        chosen.rows,
        options.held_out,
        where=Where(SHARD, options.on, options.ray_workers, options.device),
        trust=options.trust_remote_code,
        seed=options.seed,
        log=log,
    )
    card = _write(opened, chosen, out, options, {**chosen.numbers, **numbers}, others)
    log(f"{card['images']} images frozen in {out}: {card['review']['summary']}")
    log(f"next: counterlens audit MODEL {out}")
    return card


def finished(run: Path | str | Run | Result) -> Run:
    """A finished curation, from its result or its folder."""
    folder = run if isinstance(run, Path | str) else run.folder
    opened = Run.open(Path(folder))
    if opened.manifest.get("kind") not in ("adversarial", "ood") or not opened.done:
        raise InputError(
            f"{folder} is no finished curation. Make one: counterlens curate adversarial."
        )
    return opened


def _write(
    run: Run,
    chosen: Accepted,
    out: Path,
    options: FreezeOptions,
    numbers: Mapping[str, Number],
    held_out: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The folder of the data set, its card last: a folder with a card is whole."""
    out.mkdir(parents=True, exist_ok=True)
    classes = classes_of(run)
    listed = write_images(
        run,
        chosen.rows,
        out,
        form=options.form,
        classes=classes,
        keep_metadata=options.keep_metadata,
    )
    facts = {
        "format": options.form,
        "classes": classes,
        "review": chosen.card,
        "metadata": "kept" if options.keep_metadata else "removed",
    }
    card = _card(run, listed, facts, numbers, held_out)
    write_text(out / "images.jsonl", "".join(_line(row) for row in listed))
    write_text(out / "README.md", readme(card))
    _write_checksums(out)
    write_json(out / "card.json", card)
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
