"""The held-out models of a frozen set: that they are none of the filters, and their numbers.

Whether a model is held out is decided by its weights as loaded, not by how it was named. Logits
over the pool are computed shard by shard and stored beside the run in RUN.held-out/, so that
freezing again, after more of the review, does not repeat them; the folder may be deleted.
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterlens.classifier import Classifier
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.label_spaces import match_classes
from counterlens.models import check_consent, load
from counterlens.models.specs import parse
from counterlens.models.weights import shared_weights, weights_hash
from counterlens.review.shortlist import classes_of
from counterlens.runs import Number, Run, key_part
from counterlens.runs.keys import model_words
from counterlens.types import Logits
from counterlens.workflows._shared.session import Log
from counterlens.workflows.audit.network_facts import network_facts
from counterlens.workflows.curate.pool import ClassFrame, PoolParts, labelled, load_models
from counterlens.workflows.curate.sharded import Where, in_shards
from counterlens.workflows.curate.transfer import (
    Answering,
    TransferTarget,
    adversarial_numbers,
    ood_numbers,
    readable,
)


@dataclass(frozen=True)
class HeldOut:
    """A loaded model that is none of the filters.

    Args:
        spec: as it was named.
        model: the model.
        facts: what the card says of it.
    """

    spec: str
    model: Classifier
    facts: dict[str, Any]

    @property
    def key(self) -> str:
        """What its numbers start with."""
        return str(self.facts["key"])


def load_held_out(
    run: Run, specs: Sequence[str], filters: Sequence[Classifier], *, device: str, trust: bool
) -> list[HeldOut]:
    """Load models and refuse those that are a filter under another name."""
    used = run.manifest["filters"]
    families = {
        network_facts(model)["family"]: row["model"]
        for row, model in zip(used, filters, strict=True)
    }
    out = []
    for spec in specs:
        model = load(spec, device=device, trust_remote_code=trust)
        shared = {
            str(row["model"]): shared_weights(model, other)
            for row, other in zip(used, filters, strict=True)
        }
        same = [
            row["model"]
            for row in used
            if spec == row["model"]
            or shared[row["model"]] == 1
            or (shared[row["model"]] is not None and weights_hash(model) == row["weights_hash"])
        ]
        if same:
            raise InputError(
                f"{spec} has the weights of {same[0]}, which was a filter: it is not held out. "
                "Name a model that had no part in the mining."
            )
        most = max((share or 0.0, name) for name, share in shared.items())
        facts = {
            "model": spec,
            "key": f"transfer.{_short(spec)}",
            "weights_hash": weights_hash(model),
            "family_of_filter": families.get(network_facts(model)["family"]),
            "shared_weights": most[0],
            "shares_weights_with": most[1] if most[0] else None,
        }
        out.append(HeldOut(spec, model, facts))
    return out


def transfer(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    specs: Sequence[str],
    *,
    where: Where,
    trust: bool,
    seed: int,
    log: Log,
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """Numbers of the transfer check, and what the card says of each held-out model."""
    if not specs:
        return {}, []
    settings = run.manifest["settings"]
    adversarial = run.manifest["kind"] == "adversarial"
    if not adversarial and not settings["inside"]:
        raise InputError(
            "the transfer check of an OOD set needs known images: mine it with inside=SPEC."
        )
    for spec in settings["filters"]:
        check_consent(str(spec), source=run.folder / "run.json", trust=trust)
    filters = load_models(settings["filters"], device=where.device, trust_remote_code=trust)
    held = load_held_out(run, specs, filters, device=where.device, trust=trust)
    target = _target(run, rows, filters[0], adversarial)
    known = None if adversarial else known_images(run, settings["inside"])
    pass_ = _Pass(run, target.classes, where, trust, log)
    numbers: dict[str, Number] = {}
    for one in held:
        logits = pass_.logits(one, target.pool)
        if known is None:
            numbers |= adversarial_numbers(one.key, logits, target, seed=seed)
        else:
            inside = pass_.logits(one, known)
            numbers |= ood_numbers(one.key, inside, logits, target.chosen, seed=seed)
    return numbers, [one.facts for one in held]


@dataclass(frozen=True)
class _Pass:
    """Passes of held-out models over images.

    Args:
        run: the curation, beside which logits are stored.
        classes: of the curated set.
        where: how a pass is cut, and where it runs.
        trust: whether models may run code of their own.
        log: takes lines of progress.
    """

    run: Run
    classes: Sequence[str]
    where: Where
    trust: bool
    log: Log

    def logits(self, held: HeldOut, images: ImageSet) -> Logits:
        """Logits of all images over the curated classes, read back where they are stored."""
        where = self.where
        columns = match_classes(held.model.classes, self.classes, least=1.0).position
        query = Answering(images, held.spec, columns, where.device, self.trust)
        make = query if where.on != "here" else lambda: query.using(held.model)
        with tempfile.TemporaryDirectory() as temporary:
            folder = _stored(self.run, held, images, columns, where.size)
            if parse(held.spec).scheme == "file":  # its code may change while its weights do not
                folder = Path(temporary)
            what = f"images seen by {held.spec}"
            table = in_shards(folder, make, len(images), where, what=what, log=self.log)
        return torch.from_numpy(table["logits"])


def _stored(run: Run, held: HeldOut, images: ImageSet, columns: Sequence[int], size: int) -> Path:
    """The folder of a model's logits: named by its weights, its input and the images."""
    facts = {
        "weights": held.facts["weights_hash"],
        "model": held.spec,
        "preprocess": repr(held.model.preprocess),
        "images": [images.fingerprint, len(images), size],
        "columns": list(columns),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    folder = run.folder.resolve()
    return folder.with_name(f"{folder.name}.held-out") / digest[:16]


def _short(spec: str) -> str:
    """A model in a key: its name, with the folder of a checkpoint that is merely called model."""
    name = spec.split("@")[0]
    last = Path(name).name
    return key_part(model_words(name) if last == "model" else last)


def known_images(run: Run, spec: str) -> ImageSet:
    """The known images that an OOD set was mined beside; no others."""
    known = open_set(spec)
    if known.fingerprint != run.manifest.get("inside_fingerprint"):
        raise InputError(
            f"{spec} is not the set of known images that {run.folder} was mined with (their "
            "fingerprints differ). Mine it again, or leave the transfer check out."
        )
    return known


def _target(
    run: Run, rows: Sequence[Mapping[str, Any]], first: Classifier, adversarial: bool
) -> TransferTarget:
    settings = run.manifest["settings"]
    parts = PoolParts.open(
        settings["pool"], alias=settings["alias"], limit=settings["limit"], seed=settings["seed"]
    )
    classes = tuple(classes_of(run))
    columns = match_classes(first.classes, classes, least=1.0).position
    pool = labelled(
        parts, ClassFrame(classes, (columns,), f"the classes of {run.folder.name}"), first
    ).images
    if pool.fingerprint != run.manifest["data_fingerprint"]:
        raise InputError("the pool has changed since it was mined: the transfer check needs it.")
    pool = readable(pool, run.table("fate"), adversarial)
    place = {name: i for i, name in enumerate(pool.ids)}
    return TransferTarget(pool, np.array([place[row["id"]] for row in rows], np.int64), classes)
