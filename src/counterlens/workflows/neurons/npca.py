"""Components of a class: what they contribute, which images show them, and whether they do harm.

Harm: images that do not show the class, yet are taken for it because of the component. They are
looked for among the images of other classes in the same set.

Paper: Neuhaus et al. 2023 (neuhaus2023); Augustin et al. 2024 (digin2024, section 5).
Differs: the paper collects such images from another set and labels them by hand; here they come
       from a labelled set.
"""

from collections.abc import Sequence
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.explanations.cam import feature_saliency, overlay
from counterlens.explanations.counterfactuals.targets import class_index
from counterlens.explanations.features.directions import Direction, driven
from counterlens.explanations.features.npca import NeuralPCA, neural_pca
from counterlens.explanations.figure import Panel
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.parts import head
from counterlens.runs import Number, Run
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.objects import pictures_given
from counterlens.workflows._shared.pictures import open_pictures
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.data import KnownFeatures, read_known
from counterlens.workflows.neurons.job import FeatureRows, NeuronJob, NeuronWork
from counterlens.workflows.neurons.options import ComponentOptions
from counterlens.workflows.neurons.pixel import key, on_pictures
from counterlens.workflows.neurons.scan import pixels

FIRST = 4
"""Components of a class that are shown unless one is named."""
TOP = 6
MANY = 50
ACTIVE, FOREIGN = "most activating images", "most activating images of other classes"


def npca(job: NeuronJob, options: ComponentOptions) -> NeuronWork:
    """Components on the data; or, where pictures are given, raised on these in pixel space."""
    net = job.classifier
    job.check_head()
    known = read_known(net, options.data, limit=options.limit, seed=options.seed, log=job.log)
    chosen = components(net, known, options.npca)
    given = pictures_given(options.image, options.limit, options.seed)
    pictures = open_pictures(given, net, limit=options.limit, seed=options.seed) if given else None

    def work(run: Run) -> tuple[FeatureRows, dict[str, Number]]:
        run.note(data=known.images.name)
        if pictures is None:
            return show_components(run, net, known, chosen, job.log)
        return on_pictures(run, job, pictures, [direction for _, direction in chosen]), {}

    return work


def components(
    classifier: Classifier, known: KnownFeatures, names: Sequence[str], *, first: int = FIRST
) -> list[tuple[NeuralPCA, Direction]]:
    """CLASS:COMPONENT, or CLASS for its first components, or all for those of every class."""
    wanted: dict[int, list[int | None]] = {}
    for text in names:
        if text == "all":
            for target in sorted(set(known.labels[known.labels >= 0].tolist())):
                if int((known.labels == target).sum()) >= 2:
                    wanted.setdefault(target, []).append(None)
            continue
        name, number = parse(text)
        wanted.setdefault(class_index(classifier.classes, name), []).append(number)
    if not wanted:
        raise InputError(f"{known.images.name} has no labelled class that the model knows.")
    chosen = []
    for target, numbers in wanted.items():
        name = classifier.classes[target]
        here = known.labels == target
        if int(here.sum()) < 2:
            raise InputError(
                f"{known.images.name} has {int(here.sum())} images labelled {name}, expected 2 or "
                "more. Give images of that class: data=SPEC."
            )
        pca = neural_pca(head(classifier), known.features[here], target)
        most = min(first, len(pca.weight))
        these = [n for number in numbers for n in (range(most) if number is None else (number,))]
        chosen += [(pca, pca.direction(n, name)) for n in dict.fromkeys(these)]
    return chosen


def parse(text: str) -> tuple[str, int | None]:
    """Class and component; the component may be left out.

    >>> parse("cat:3"), parse("cat"), parse("tiger cat:x")
    (('cat', 3), ('cat', None), ('tiger cat:x', None))
    """
    name, colon, number = text.rpartition(":")
    if colon and number.isascii() and number.isdigit():
        return name, int(number)
    if colon and number.lstrip("-").isdigit():
        raise InputError(f"npca {text}: the component is {number}, expected 0 or more.")
    return text, None


def show_components(
    run: Run,
    classifier: Classifier,
    known: KnownFeatures,
    chosen: Sequence[tuple[NeuralPCA, Direction]],
    log: Log,
) -> tuple[list[dict[str, Any]], dict[str, Number]]:
    """Rows of pictures and numbers; the table of contributions goes to the run."""
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Number] = {}
    table = []
    for pca, direction in chosen:
        log(direction.name)
        table.append(_contribution(classifier, known, pca, direction))
        own = known.labels == pca.target
        rows += show_top(run, classifier, known, direction, own, ACTIVE)
        other = (known.labels >= 0) & ~own
        if other.any():
            harm, pictures = _harm(run, classifier, known, direction)
            numbers |= harm
            rows += pictures
    run.write_table("components", table)
    return rows, numbers


def _contribution(
    classifier: Classifier, known: KnownFeatures, pca: NeuralPCA, direction: Direction
) -> dict[str, Any]:
    """What a component adds to the logit, on images of its class and of others."""
    values = direction.values(known.features.double())
    own = values[known.labels == pca.target]
    low, high = torch.quantile(own, torch.tensor([0.05, 0.95]).double()).tolist()
    others = values[(known.labels >= 0) & (known.labels != pca.target)]
    at = direction.number
    return {
        "class": classifier.classes[pca.target], "component": at,
        "variance": (pca.variances[at] / pca.variances.sum()).item(),
        "logit_per_step": pca.shares[at].item(), "spread": own.std().item(),
        "low": low, "high": high, "n": len(own),
        "others_mean": others.mean().item() if len(others) else None, "others": len(others),
        "logit_mean": (pca.mean.sum() + pca.bias).item(),
    }  # fmt: skip


def show_top(
    run: Run, classifier: Classifier, known: KnownFeatures, direction: Direction,
    here: torch.Tensor, how: str, extra: dict[int, dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The images that drive a direction most, and where."""
    places = torch.nonzero(here).flatten()
    values = direction.values(known.features[places].double())
    order = torch.argsort(values, descending=True, stable=True)[:TOP]
    chosen = places[order].tolist()
    x = pixels(classifier, known.images, chosen)
    mapped = overlay(x, feature_saliency(classifier, x, direction.weight).cpu())
    rows, line = [], []
    stem = f"{key(direction)}-{'own' if how == ACTIVE else 'other'}"
    for b, i in enumerate(chosen):
        answer = classifier.classes[int(known.answers[i])]
        rows.append(
            {
                "kind": direction.kind, "unit": direction.number, "name": direction.name,
                "how": how, "id": str(known.images.ids[i]), "predicted": answer,
                "image": save(run, f"{stem}-{b}.png", x[b]),
                "map": save(run, f"{stem}-{b}-map.png", mapped[b]),
                "activation": values[order[b]].item(), "start": None, "votes": [],
                **(extra or {}).get(i, {}),
            }
        )  # fmt: skip
        line += [Panel(x[b], f"{answer}\n{values[order[b]]:.2f}"), Panel(mapped[b], "")]
    save_figure(run, f"figure-{stem}", [line], title=f"{direction.name}: {how}")
    return rows


def _harm(
    run: Run, classifier: Classifier, known: KnownFeatures, direction: Direction
) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """How many images of other classes are taken for the class, and by this component."""
    assert direction.target is not None
    values = direction.values(known.features.double())
    taken, pushed = driven(known.logits, values, direction.target, known.labels)
    other = (known.labels >= 0) & (known.labels != direction.target)
    n, name = int(other.sum()), classifier.classes[direction.target]
    start = f"npca.{key(direction)}"
    places = torch.nonzero(other).flatten()
    first = places[torch.argsort(values[places], descending=True, stable=True)[:MANY]]
    numbers = {}
    for metric, hits, count, protocol in (
        ("taken", int(taken.sum()), n, f"images of other classes whose answer is {name}"),
        ("driven", int(pushed.sum()), n,
         f"the same, and the answer changes with the component at its usual value "
         f"(median over images of other classes); data: {known.images.name}"),
        ("top_taken", int(taken[first].sum()), len(first),
         f"of the {len(first)} images of other classes with most of the component, those whose "
         f"answer is {name}"),
    ):  # fmt: skip
        low, high = wilson(hits, count)
        numbers[f"{start}.{metric}"] = Number(hits / count, count, low, high, protocol)
    extra = {
        i: {"taken": bool(taken[i]), "driven": bool(pushed[i]),
            "label": classifier.classes[int(known.labels[i])]}
        for i in first[:TOP].tolist()
    }  # fmt: skip
    return numbers, show_top(run, classifier, known, direction, other, FOREIGN, extra)
