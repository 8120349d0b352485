"""The pool of a curation: its sets in the classes of the filters, and one pass over it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data.sets import Excluded
from counterlens.data.sources.pools import join_parts, open_part
from counterlens.errors import InputError, RunExists
from counterlens.filters.opinions import Opinions
from counterlens.images import ImageSet
from counterlens.label_spaces import match_classes
from counterlens.label_spaces.maps import SPACES, declared_map
from counterlens.label_spaces.matching import pair_classes
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.runs import Run, read_json, write_json
from counterlens.workflows._shared.multilabel import single_label
from counterlens.workflows._shared.session import Log
from counterlens.workflows.curate.sharded import Where, in_shards


@dataclass(frozen=True)
class ClassFrame:
    """The classes of a curated set, and where each model has them.

    Args:
        classes: names, in the order of the columns.
        columns: for each model its outputs that stand for them.
        description: in words.
    """

    classes: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    description: str


@dataclass(frozen=True)
class Pool:
    """Images to choose from.

    Args:
        images: all of them; labels are columns of the frame, −1 for a class outside it.
        sets: name of the set of each image.
        own: the class of each image in the words of its set; empty where unknown.
        excluded: files that never became images, and why.
    """

    images: ImageSet
    sets: tuple[str, ...]
    own: tuple[str, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True)
class PoolParts:
    """The sets of a pool as they were opened."""

    sets: tuple[ImageSet, ...]
    excluded: tuple[Excluded, ...]

    @classmethod
    def open(
        cls, specs: Sequence[str], *, alias: Sequence[str] = (), limit: int | None, seed: int
    ) -> "PoolParts":
        """Open the sets; what cannot be used is excluded.

        Args:
            alias: "NAME=CLASS": classes of the pool that the filters know by another name.
        """
        if not specs:
            raise InputError("no pool given, expected a folder, a manifest or pack:FILE.npz.")
        names = dict(_alias(text) for text in alias)
        unused = set(names)
        sets, excluded = [], []
        for spec in specs:
            own: list[Excluded] = []
            part = open_part(spec, own, limit=limit, seed=seed)
            named = tuple(names.get(name, name) for name in part.classes)
            unused -= set(part.classes)
            sets.append(replace(part, classes=named))
            excluded += [
                (f"{part.name}/{name}" if len(specs) > 1 else name, why) for name, why in own
            ]
        if unused:
            raise InputError(f"alias names {sorted(unused)[0]!r}, which no set of the pool has.")
        return cls(tuple(sets), tuple(excluded))

    def need_labels(self) -> None:
        """Refuse a set none of whose images has a class."""
        for part in self.sets:
            if not (part.labels >= 0).any():
                raise InputError(
                    f"{part.name} holds {len(part)} images and no class of any of them. Expected "
                    "a folder per class, e.g. cat/1.jpg, or a table with the columns path and "
                    "label."
                )


def _alias(text: str) -> tuple[str, str]:
    name, sign, known = text.partition("=")
    if not (sign and name.strip() and known.strip()):
        raise InputError(f"alias is {text!r}, expected NAME=CLASS such as car=automobile.")
    return name.strip(), known.strip()


def load_models(specs: Sequence[str], *, device: str, trust_remote_code: bool) -> list[Classifier]:
    """Load models; the same one twice is refused."""
    if not specs:
        raise InputError("no filter given. Name a model: filters=timm:resnet50.")
    if len(set(specs)) < len(specs):
        raise InputError(f"a model is named twice: {', '.join(specs)}.")
    loaded = [load(s, device=device, trust_remote_code=trust_remote_code) for s in specs]
    return [single_label(one, "curation") for one in loaded]


def choose_frame(models: Sequence[Classifier], parts: PoolParts, wanted: str) -> ClassFrame:
    """The classes in which images are judged.

    Args:
        models: the filters; the first one's names are used.
        parts: the pool.
        wanted: "pool" for the classes the pool shows, "all" for the filter's, a declared space
            such as imagenet-a, or a text file with a class a line.
    """
    first = models[0].classes
    if wanted == "pool":
        outputs = sorted({i for part in parts.sets for i in _places(first, part) if i >= 0})
        description = f"the {len(outputs)} classes of {models[0].name} that the pool shows"
    elif wanted == "all":
        outputs = list(range(len(first)))
        description = f"all {len(first)} classes of {models[0].name}"
    elif wanted in SPACES:
        map_ = declared_map(wanted, first)
        if map_ is None or map_.rule != "subset":
            raise InputError(
                f"label_space {wanted} is no subset of the classes of {models[0].name}."
            )
        outputs = list(map_.columns)
        description = f"the {len(outputs)} classes of {wanted}"
    else:
        outputs = _listed(Path(wanted), first)
        description = f"the {len(outputs)} classes of {Path(wanted).name}"
    if len(outputs) < 2:
        raise InputError(
            f"the pool shows {len(outputs)} classes of {models[0].name}, expected 2 or more. "
            "Name its folders as the model names its classes, or use label_space=all."
        )
    names = tuple(first[i] for i in outputs)
    columns = [tuple(outputs)]
    for model in models[1:]:
        matching = match_classes(model.classes, names, least=1.0)
        columns.append(matching.position)
    return ClassFrame(names, tuple(columns), description)


def _listed(path: Path, model_classes: Sequence[str]) -> list[int]:
    if not path.is_file():
        raise InputError(
            f"label_space is {path}, expected pool, all, a space ({', '.join(SPACES)}) or a text "
            "file with a class a line."
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
    return sorted(set(match_classes(model_classes, names, least=1.0).position))


def _places(model_classes: Sequence[str], part: ImageSet) -> list[int]:
    if not part.classes:
        return []
    return [i for i, _ in pair_classes(model_classes, part.classes)]


def labelled(parts: PoolParts, frame: ClassFrame, first: Classifier) -> Pool:
    """The pool with labels as columns of the frame."""
    column = {output: k for k, output in enumerate(frame.columns[0])}
    labels = []
    for part in parts.sets:
        places = [column.get(i, -1) for i in _places(first.classes, part)]
        labels.append(np.array([*places, -1], dtype=np.int64)[part.labels])
    own = tuple(
        part.classes[k] if k >= 0 else "" for part in parts.sets for k in part.labels.tolist()
    )
    sets = tuple(part.name for part in parts.sets for _ in range(len(part)))
    return Pool(join_parts(parts.sets, np.concatenate(labels)), sets, own, parts.excluded)


def matches(parts: PoolParts, first: Classifier) -> list[dict[str, object]]:
    """Which class of each set is which of the filter's."""
    rows: list[dict[str, object]] = []
    for part in parts.sets:
        pairs = pair_classes(first.classes, part.classes) if part.classes else []
        for name, (i, how) in zip(part.classes, pairs, strict=True):
            model_class = first.classes[i] if i >= 0 else None
            data_class = f"{part.name}: {name}"
            rows.append(
                {"data_class": data_class, "model_class": model_class, "how": how or "none"}
            )
    return rows


def filter_facts(specs: Sequence[str], models: Sequence[Classifier]) -> list[dict[str, object]]:
    """What a card says of each filter: name, hash, input."""
    return [
        {
            "model": spec,
            "weights_hash": weights_hash(model),
            "size": list(model.preprocess.size),
            "crop": model.preprocess.crop,
        }
        for spec, model in zip(specs, models, strict=True)
    ]


def judge_pool(run: Run, query: Opinions, where: Where, *, log: Log) -> dict[str, np.ndarray]:
    """Opinions on the whole pool, a row per image; what the run already has is read back."""
    _same_pool(run, query, where.size)
    folder = run.path("tables", "opinions/x").parent
    table = in_shards(folder, query, len(query.pool), where, what="images judged", log=log)
    assert np.array_equal(table["row"], np.arange(len(query.pool)))
    return table


def _same_pool(run: Run, query: Opinions, size: int) -> None:
    """Shards of another pool must not be mixed with this one's."""
    path = run.path("state", "pool.json")
    facts = {"fingerprint": query.pool.fingerprint, "images": len(query.pool), "shard": size}
    if path.exists() and read_json(path) != facts:
        raise RunExists(f"the pool of {run.folder} has changed since. Choose another: out=FOLDER.")
    write_json(path, facts)
