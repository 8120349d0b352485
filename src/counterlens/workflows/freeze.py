"""Freeze: turn the accepted images of a curation into a data set with a card, and check it.

The card holds the funnel, the filters and their hashes, agreement of the reviewers, source and
licence of each image, checksums, and the transfer check. A set that no person has looked at says
so.
"""

import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.data.frozen import SCHEMA
from counterlens.errors import InputError, RunExists
from counterlens.label_spaces import match_classes
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.review import Store, agreement, decisions, store_path
from counterlens.runs import Number, Run, atomic, key_part, read_json, write_json, write_text
from counterlens.runs.keys import model_words
from counterlens.workflows.curate_pool import Frame, Parts, labelled, load_models
from counterlens.workflows.frozen_card import readme
from counterlens.workflows.network_facts import network_facts
from counterlens.workflows.telling import teller
from counterlens.workflows.transfer import (
    Target,
    adversarial_numbers,
    answers_over,
    ood_numbers,
    readable,
)

FORMATS = ("folder", "webdataset")
_PER_TAR = 1000


def freeze(
    run: Path,
    *,
    out: Path,
    form: str = "folder",
    held_out: Sequence[str] = (),
    unreviewed: bool = False,
    least: int = 1,
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
        unreviewed: freeze the whole shortlist although nobody has reviewed it.
        least: reviewers who must have accepted an image.
    """
    opened = Run.open(run)
    kind = opened.manifest.get("kind")
    if kind not in ("adversarial", "ood") or not opened.done:
        raise InputError(
            f"{run} is no finished curation. Make one: counterlens curate adversarial."
        )
    if form not in FORMATS:
        raise InputError(f"--format is {form!r}, expected {' or '.join(FORMATS)}.")
    used = set(opened.manifest["settings"]["filters"])
    if used & set(held_out):
        raise InputError(f"{sorted(used & set(held_out))[0]} was a filter: it is not held out.")
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty. Choose another --out.")
    say = teller(quiet)
    rows, reviewed = _accepted(opened, unreviewed, least)
    if not rows:
        raise InputError(f"no image of {run} has been accepted, so there is nothing to freeze.")
    numbers = dict(reviewed.pop("numbers"))
    found, others = _transfer(
        opened, rows, held_out, seed=seed, device=device, trust=trust_remote_code, quiet=quiet
    )
    numbers |= found
    out.mkdir(parents=True, exist_ok=True)
    listed = _write_images(opened, rows, out, form)
    card = _card(opened, listed, form, reviewed, numbers, others)
    write_text(out / "images.jsonl", "".join(_line(row) for row in listed))
    write_text(out / "README.md", readme(card))
    _write_checksums(out)
    write_json(out / "card.json", card)  # last: a folder with a card is whole
    say(f"{len(listed)} images frozen in {out}")
    return card


def _accepted(
    run: Run, unreviewed: bool, least: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The accepted rows of the shortlist, and what the card says of the review."""
    rows = run.table("shortlist")
    path = store_path(run.folder)
    if unreviewed:
        told = "no person has looked at these images"
        return rows, {"reviewed": False, "told": told, "numbers": {}}
    if not path.exists():
        raise InputError(
            f"nobody has reviewed {run.folder}. Review it: counterlens curate review "
            f"{run.folder} --reviewer NAME, or freeze the whole shortlist with --unreviewed."
        )
    store = Store.open(path)
    ids = [row["id"] for row in rows]
    said = store.latest()
    made = decisions(ids, said, least=least)
    people = sorted({v.reviewer for v in said if v.role == "reviewer"})
    counts = Counter(d.outcome for d in made.values())
    kept = [
        {**row, "tags": list(made[row["id"]].tags), "reviewers": made[row["id"]].reviewers}
        for row in rows
        if made[row["id"]].outcome == "accept"
    ]
    told = f"{len(people)} reviewers, each image accepted by {least} or more and rejected by none"
    review = {"reviewed": True, "told": told, "reviewers": people, "outcomes": dict(counts)}
    return kept, {**review, "numbers": agreement(ids, said)}


def _transfer(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    held_out: Sequence[str],
    *,
    seed: int,
    device: str,
    trust: bool,
    quiet: bool,
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """Numbers of the transfer check, and what the card says of each held-out model."""
    if not held_out:
        return {}, []
    settings = run.manifest["settings"]
    adversarial = run.manifest["kind"] == "adversarial"
    filters = load_models(settings["filters"], device=device, trust_remote_code=trust)
    families = {
        network_facts(m)["family"]: s for s, m in zip(settings["filters"], filters, strict=True)
    }
    target = _target(run, rows, filters[0], adversarial)
    known = None
    if not adversarial:
        if not settings["inside"]:
            raise InputError(
                "the transfer check of an OOD set needs known images: mine it with --inside SPEC."
            )
        known = open_set(settings["inside"])
    out: dict[str, Number] = {}
    others = []
    for spec in held_out:
        model = load(spec, device=device, trust_remote_code=trust)
        key = f"transfer.{_short(spec)}"
        others.append(
            {
                "model": spec,
                "key": key,
                "weights_hash": weights_hash(model),
                "family_of_filter": families.get(network_facts(model)["family"]),
            }
        )
        logits = answers_over(model, target.pool, target.classes, quiet=quiet)
        if adversarial:
            out |= adversarial_numbers(key, logits, target, seed=seed)
        else:
            assert known is not None
            inside = answers_over(model, known, target.classes, quiet=quiet)
            out |= ood_numbers(key, inside, logits, target.chosen, seed=seed)
    return out, others


def _short(spec: str) -> str:
    """A model in a key: its name, with the folder of a checkpoint that is merely called model."""
    name = spec.split("@")[0]
    last = Path(name).name
    return key_part(model_words(name) if last == "model" else last)


def _target(
    run: Run, rows: Sequence[Mapping[str, Any]], first: Classifier, adversarial: bool
) -> Target:
    settings = run.manifest["settings"]
    parts = Parts.open(
        settings["pool"], alias=settings["alias"], limit=settings["limit"], seed=settings["seed"]
    )
    facts = read_json(run.folder / "tables" / "classes.json")
    classes = tuple(facts["classes"])
    columns = match_classes(first.classes, classes, least=1.0).position
    pool = labelled(parts, Frame(classes, (columns,), facts["told"]), first).images
    if pool.fingerprint != run.manifest["data_fingerprint"]:
        raise InputError("the pool has changed since it was mined: the transfer check needs it.")
    pool = readable(pool, run.table("fate"), adversarial)
    place = {name: i for i, name in enumerate(pool.ids)}
    return Target(pool, np.array([place[row["id"]] for row in rows], np.int64), classes)


def _write_images(
    run: Run, rows: Sequence[Mapping[str, Any]], out: Path, form: str
) -> list[dict[str, Any]]:
    """The pictures as they were stored in the pool, byte by byte, each once."""
    listed: list[dict[str, Any]] = []
    tar: tarfile.TarFile | None = None
    for number, row in enumerate(rows):
        data = (run.folder / row["image"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(f"{row['image']} of {run.folder} is not what it was when mined.")
        entry = {k: v for k, v in row.items() if k not in ("image", "rank", "row")}
        name = f"{number:06d}{Path(row['image']).suffix}"
        if form == "folder":
            entry["file"] = f"images/{folder_name(row['label'])}/{row['sha256'][:16]}-{name}"
            with atomic(out / entry["file"]) as part:
                part.write_bytes(data)
        else:
            shard = f"shards/{number // _PER_TAR:06d}.tar"
            if number % _PER_TAR == 0:
                if tar:
                    tar.close()
                (out / "shards").mkdir(exist_ok=True)
                tar = tarfile.open(out / shard, "w")  # noqa: SIM115  # open over several images
            entry["file"] = f"{shard}#{name}"
            assert tar is not None
            _put(tar, name, data)
            _put(tar, f"{number:06d}.json", json.dumps(entry, ensure_ascii=False).encode())
            _put(tar, f"{number:06d}.cls", str(row["label"]).encode())
        listed.append(entry)
    if tar:
        tar.close()
    return listed


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # no time, no owner: the same images give the same file
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def folder_name(label: str) -> str:
    """A class name as the name of a folder.

    >>> folder_name("a/b"), folder_name("..."), folder_name("Persian cat")
    ('a_b', '_...', 'Persian cat')
    """
    name = re.sub(r"[/\\\0:*?\"<>|\n\r\t]", "_", label).strip() or "_"
    return f"_{name}" if name.startswith(".") else name[:120]


def _card(
    run: Run,
    listed: Sequence[Mapping[str, Any]],
    form: str,
    reviewed: Mapping[str, Any],
    numbers: Mapping[str, Number],
    held_out: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    manifest = run.manifest
    digest = hashlib.sha256("".join(sorted(str(row["sha256"]) for row in listed)).encode())
    screens = {k: n.to_json() for k, n in run.numbers.items() if k.startswith("screen.")}
    return {
        "schema": SCHEMA,
        "kind": manifest["kind"],
        "name": run.folder.name,
        "format": form,
        "images": len(listed),
        "classes": read_json(run.folder / "tables" / "classes.json")["classes"],
        "labels": dict(Counter(str(row["label"]) for row in listed).most_common()),
        "protocol": manifest["protocol"],
        "settings": manifest["settings"],
        "filters": manifest["filters"],
        "held_out": [dict(row) for row in held_out],
        "funnel": run.table("funnel"),
        "set_aside": run.table("aside_counts"),
        "review": dict(reviewed),
        "numbers": {**screens, **{key: number.to_json() for key, number in numbers.items()}},
        "licences": dict(Counter(str(row["licence"]) for row in listed).most_common()),
        "sources": dict(Counter(str(row["source"]) for row in listed).most_common()),
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
