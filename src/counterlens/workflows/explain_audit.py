"""From an audit to its explanation: the worst mistakes, both ways, as a chapter of its report.

Each mistake is turned to what it shows (predicted → true: what would put it right) and further to
what it was taken for (true → predicted: what misled the model, more of it). Maps show where the
evidence for either lies, and the nearest images that the model learned from show what it resembles.
The audit's own files are not touched but for its report, which is rendered again.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from counterlens.classifier import Classifier
from counterlens.data import name_of, open_set
from counterlens.errors import InputError
from counterlens.explanations.pixel import default_radii
from counterlens.explanations.targets import class_named
from counterlens.generators.cutouts import seen
from counterlens.images import ImageSet, prepare
from counterlens.models.parts import head
from counterlens.runs import Run, kept_logits, key_part
from counterlens.workflows.evaluate_real import features_of
from counterlens.workflows.explain_maps import explain_maps
from counterlens.workflows.inputs import Given
from counterlens.workflows.showing import Job, save

FOLDER = "explained"
NEAREST = 3
PART = 1024
WORST = 8


@dataclass(frozen=True)
class Audit:
    """An audit whose mistakes are explained.

    Args:
        run: its run.
        model, data: specs of both.
        train: spec of the images among which the nearest are sought, and in words which they are.
    """

    run: Run
    model: str
    data: str
    train: str
    which: str

    @classmethod
    def open(cls, folder: Path, train: str | None) -> "Audit":
        """Read what was audited; the nearest images come from the best set that is known."""
        run = Run.open(folder)
        settings = run.manifest["settings"]
        if run.manifest["command"] != "audit" or "data" not in settings:
            raise InputError(f"{folder} is no audit, so it has no worst mistakes.")
        data, held = str(settings["data"]), settings.get("calibrate")
        if train:
            known = (train, f"the training images {name_of(train)}")
        elif held:
            known = (str(held), f"the audit's calibration images {name_of(str(held))}; "
                     "no training set was named with --train")  # fmt: skip
        else:
            known = (data, f"the audited images {name_of(data)} themselves; "
                     "no training set was named with --train")  # fmt: skip
        return cls(run, str(settings["model"]), data, *known)

    def worst(self, count: int) -> list[Given]:
        """Pictures of the surest mistakes."""
        if count < 1:
            raise InputError(f"--worst is {count}, expected 1 or more.")
        kept = kept_logits(self.run).get(key_part(name_of(self.data)))
        if kept is None:
            raise InputError(f"{self.run.folder} kept no logits, so its mistakes are not known.")
        logits = torch.from_numpy(kept.logits.copy()).double() / kept.temperature
        sure, answer = logits.softmax(1).max(1)
        labels = torch.from_numpy(kept.labels)
        wrong = torch.nonzero((answer != labels) & (labels >= 0)).flatten()
        if not len(wrong):
            raise InputError(
                f"{self.run.folder} shows no mistakes, so there is nothing to explain."
            )
        order = wrong[sure[wrong].argsort(descending=True, stable=True)][:count]
        return [f"{self.data}#{kept.ids[i]}" for i in order.tolist()]

    def folder(self) -> Path:
        """Where the next explanation goes: inside the audit, beside earlier ones."""
        number = 1
        while (self.run.folder / _numbered(number) / "DONE").exists():
            number += 1
        return self.run.folder / _numbered(number)


def _numbered(number: int) -> str:
    return FOLDER if number == 1 else f"{FOLDER}-{number}"


def radii_for(classifier: Classifier, norm: Any) -> tuple[float, ...]:
    """Two budgets suffice for a chapter: the third and the sixth of the usual ones."""
    usual = default_radii(norm, classifier.preprocess.size)
    return usual[2], usual[5]


def add_chapter(audit: Audit, job: Job, method: str) -> list[str]:
    """Maps and nearest images beside the counterfactuals; what a reader should know."""
    side = job.classifier.preprocess.size[0]
    small = replace(job, pictures=replace(job.pictures, x=seen(job.pictures.x, side)))
    if method != "cam":
        explain_maps(small, figures="figure-map")
    notes = nearest_images(small, audit)
    job.run.note(audit=audit.run.folder.name, neighbours=audit.which)
    return notes


def nearest_images(job: Job, audit: Audit) -> list[str]:
    """The images of a set whose features are most like those of each mistake."""
    try:
        head(job.classifier)
    except InputError as error:
        return [f"No nearest images: {error}"]
    pool = open_set(audit.train)
    job.say(f"nearest among {len(pool)} images: {audit.which}")
    mine = normalize(features_of(job.classifier, job.pictures.x), dim=1)
    best = _closest(job.classifier, pool, mine, set(job.pictures.ids))
    rows = []
    for i, (cosines, places) in enumerate(best):
        near = [
            {
                "id": str(pool.ids[k]),
                "label": _label(job.classifier, pool, k),
                "image": _picture(job, pool, k),
                "cosine": round(c, 4),
            }
            for c, k in zip(cosines, places, strict=True)
        ]
        rows.append({**job.row(i), "nearest": near})
    job.run.write_table("neighbours", rows)
    return []


def _closest(
    net: Classifier, pool: ImageSet, mine: torch.Tensor, avoid: set[str]
) -> list[tuple[list[float], list[int]]]:
    """Cosines and places of the nearest, part by part; a picture is not its own neighbour."""
    best = torch.full((len(mine), NEAREST), -2.0)
    which = torch.full((len(mine), NEAREST), -1)
    rows = [i for i in range(len(pool)) if pool.ids[i] not in avoid]
    for at in range(0, len(rows), PART):
        part = rows[at : at + PART]
        pixels = torch.stack(
            [
                torch.from_numpy(prepare(pool.read(i), net.preprocess, channels=net.channels))
                for i in part
            ]
        )
        alike = mine @ normalize(features_of(net, pixels), dim=1).T
        values = torch.cat([best, alike], 1)
        places = torch.cat([which, torch.tensor(part).expand(len(mine), -1)], 1)
        best, order = values.topk(NEAREST, dim=1)
        which = places.gather(1, order)
    return [
        ([c for c, k in zip(a, b, strict=True) if k >= 0], [k for k in b if k >= 0])
        for a, b in zip(best.tolist(), which.tolist(), strict=True)
    ]


def _label(net: Classifier, pool: ImageSet, k: int) -> str | None:
    """The label in the classifier's words where it has them."""
    label = int(pool.labels[k])
    if label < 0:
        return None
    place = class_named(net.classes, pool.classes[label])
    return net.classes[place] if place >= 0 else str(pool.classes[label])


def _picture(job: Job, pool: ImageSet, k: int) -> str:
    net = job.classifier
    pixels = prepare(pool.read(k), net.preprocess, channels=net.channels)
    return save(job.run, f"near-{k}.png", torch.from_numpy(pixels).float() / 255)
