"""From an audit to its explanation: the worst mistakes, both ways, as a chapter of its report.

Each mistake is turned to what it shows (predicted → true: what would put it right) and more to
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
from counterlens.data.sources.slices import members
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.pixel import default_radii
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.generators.diffusion.cutouts import seen
from counterlens.images import ImageSet, fitting_size, prepare
from counterlens.models import check_consent
from counterlens.models.parts import head
from counterlens.runs import Run, key_part, stored_logits
from counterlens.workflows._shared.features import features_of
from counterlens.workflows._shared.figures import save
from counterlens.workflows._shared.names import named
from counterlens.workflows._shared.pictures import Given
from counterlens.workflows.explain.job import ExplainJob
from counterlens.workflows.explain.maps import explain_maps

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
    def open(cls, folder: Path, train: str | None, *, trust: bool = False) -> "Audit":
        """Read what was audited; the nearest images come from the best set that is known.

        Args:
            trust: whether a Python file that the run names as its model may be run.
        """
        run = Run.open(folder)
        settings = run.manifest["settings"]
        given = {key: settings.get(key) for key in ("model", "data")}
        if run.manifest["command"] != "audit" or not all(
            isinstance(v, str) for v in given.values()
        ):
            raise InputError(f"{folder} is no audit, so it has no worst mistakes.")
        model = check_consent(named(given["model"])[1], source=folder / "run.json", trust=trust)
        data, held = str(given["data"]), _held(run)
        if train:
            known = (train, f"the training images {name_of(train)}")
        elif held:
            known = (held, f"the audit's calibration images {name_of(held)}; "
                     "no training set was named with --train")  # fmt: skip
        else:
            known = (data, f"the audited images {name_of(data)} themselves; "
                     "no training set was named with --train")  # fmt: skip
        return cls(run, model, data, *known)

    def check_data(self, classifier: Classifier) -> None:
        """Refuse data that is not what was audited, before a picture of it is read.

        The run names its data, and may come from anyone: pictures elsewhere on this machine are
        shown only where names, labels and sizes of all files are those that the run recorded.
        """
        settings = self.run.manifest["settings"]
        recorded = self.run.manifest.get("data_fingerprint")
        opened = open_set(
            self.data,
            limit=settings.get("limit"),
            seed=settings.get("seed", 0),
            size=fitting_size(classifier.preprocess),
            channels=classifier.channels,
        )
        if not isinstance(recorded, dict) or recorded.get(opened.name) != opened.fingerprint:
            raise InputError(
                f"{self.data} is not the data of {self.run.folder}, or has changed "
                "since (their fingerprints differ). Audit it anew, then explain that run."
            )

    def worst(self, count: int, slice_number: int | None = None) -> list[Given]:
        """Pictures of the surest mistakes, of a confirmed slice where its number is given."""
        if count < 1:
            raise InputError(f"worst is {count}, expected 1 or more.")
        stored = stored_logits(self.run).get(key_part(name_of(self.data)))
        if stored is None:
            raise InputError(f"{self.run.folder} has no logits, so its mistakes are not known.")
        logits = torch.from_numpy(stored.logits.copy()).double() / stored.temperature
        sure, answer = logits.softmax(1).max(1)
        labels = torch.from_numpy(stored.labels)
        wrong = torch.nonzero((answer != labels) & (labels >= 0)).flatten()
        if not len(wrong):
            raise InputError(
                f"{self.run.folder} shows no mistakes, so there is nothing to explain."
            )
        if slice_number is not None:
            inside = members(str(self.run.folder), str(slice_number))
            wrong = wrong[[stored.ids[i] in inside for i in wrong.tolist()]]
        order = wrong[sure[wrong].argsort(descending=True, stable=True)][:count]
        return [f"{self.data}#{stored.ids[i]}" for i in order.tolist()]

    def folder(self) -> Path:
        """Where the next explanation goes: inside the audit, beside earlier ones."""
        number = 1
        while (self.run.folder / _numbered(number) / "DONE").exists():
            number += 1
        return self.run.folder / _numbered(number)


def _held(run: Run) -> str | None:
    """The calibration set, if it is unchanged since the audit; it lies outside of the run."""
    facts, spec = run.manifest, run.manifest["settings"].get("calibrate")
    if not isinstance(spec, str) or "calibration_fingerprint" not in facts:
        return None
    settings = facts["settings"]
    opened = open_set(spec, limit=settings.get("limit"), seed=settings.get("seed", 0))
    return spec if opened.fingerprint == facts["calibration_fingerprint"] else None


def _numbered(number: int) -> str:
    return FOLDER if number == 1 else f"{FOLDER}-{number}"


def radii_for(classifier: Classifier, norm: Any) -> tuple[float, ...]:
    """Two budgets suffice for a chapter: the third and the sixth of the usual ones."""
    usual = default_radii(norm, classifier.preprocess.size)
    return usual[2], usual[5]


def add_chapter(audit: Audit, job: ExplainJob, method: str) -> list[str]:
    """Maps and nearest images beside the counterfactuals; remarks on them."""
    side = job.classifier.preprocess.size[0]
    small = replace(job, pictures=replace(job.pictures, x=seen(job.pictures.x, side)))
    if method != "cam":
        explain_maps(small, figures="figure-map")
    notes = nearest_images(small, audit)
    job.run.note(audit=audit.run.folder.name, neighbours=audit.which)
    return notes


def nearest_images(job: ExplainJob, audit: Audit) -> list[str]:
    """The images of a set whose features are most like those of each mistake."""
    try:
        head(job.classifier)
    except InputError as error:
        return [f"No nearest images: {error}"]
    pool = open_set(audit.train)
    job.log(f"nearest among {len(pool)} images: {audit.which}")
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


def _picture(job: ExplainJob, pool: ImageSet, k: int) -> str:
    net = job.classifier
    pixels = prepare(pool.read(k), net.preprocess, channels=net.channels)
    return save(job.run, f"near-{k}.png", torch.from_numpy(pixels).float() / 255)
