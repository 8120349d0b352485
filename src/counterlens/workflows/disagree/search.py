"""The search of disagree: images of all classes, both ways, measured on the files on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.explanations.counterfactuals.pixel import confidences, temperature_of
from counterlens.explanations.counterfactuals.targets import class_named
from counterlens.explanations.disagreement import (
    JudgedClass,
    by_logarithms,
    disagreement,
    disturbed,
    succeeded,
)
from counterlens.generators.diffusion.cutouts import seen
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import ChainSettings, Term
from counterlens.runs import Run, key_part
from counterlens.types import Images, Scores
from counterlens.workflows._shared.generation.generate import (
    Generated,
    Generation,
    Nets,
    Request,
    Workers,
    column,
    optimise,
    reread,
    seed_of,
)
from counterlens.workflows._shared.session import Log

WAYS = ("first", "second")
ClassifierPair = tuple[Classifier, Classifier]


@dataclass(frozen=True)
class Shared:
    """A class that both classifiers know: its name, its words, and its place in each."""

    name: str
    word: str
    places: tuple[int, int]


@dataclass(frozen=True)
class DisagreeTask:
    """One call: with which generator and how, who judges, and who does the work.

    Args:
        workers: on Ray; None computes here.
        logarithms: of confidences are raised and lowered, not the confidences themselves.
        graphs: replay the generator's network as CUDA graphs.
    """

    run: Run
    model: LatentDiffusion
    judges: tuple[Classifier, ...]
    settings: ChainSettings
    count: int
    seed: int
    memory: str | None
    log: Log
    workers: Workers | None = None
    logarithms: bool = False
    graphs: bool = False


def differences(nets: Nets, batch: Sequence[Request]) -> list[Term]:
    """Each request names two classifiers by number and a class of each: the first is raised.

    A batch is of one direction: who is raised is the same for all.
    """
    return disagreement(*_opinions(nets, batch))


def logarithms(nets: Nets, batch: Sequence[Request]) -> list[Term]:
    """The same by logarithms."""
    return by_logarithms(*_opinions(nets, batch))


def _opinions(nets: Nets, batch: Sequence[Request]) -> tuple[JudgedClass, JudgedClass]:
    def one(k: int) -> JudgedClass:
        net = nets[batch[0].columns[2 * k]]
        places = column([request.columns[2 * k + 1] for request in batch], net.mean.device)
        return JudgedClass(net, places, net.preprocess.size[0], temperature_of(net))

    return one(0), one(1)


def search(
    task: DisagreeTask,
    pair: ClassifierPair,
    wanted: Sequence[Shared],
    *,
    numbers: tuple[int, int] = (0, 1),
    prefix: str = "",
) -> list[dict[str, Any]]:
    """All images of all classes, both ways; both ways start from the same images.

    Args:
        pair: the two classifiers.
        numbers: their places among those that a worker opens.
        prefix: of the files.
    """
    rows: list[dict[str, Any]] = []
    nets: list[Classifier] = [pair[0]] * (max(numbers) + 1)
    for number, net in zip(numbers, pair, strict=True):
        nets[number] = net
    for way in (0, 1):
        requests, classes = [], []
        up, down = numbers[way], numbers[1 - way]
        for one in wanted:
            for i in range(task.count):
                start = seed_of("disagree", task.seed, one.name, i)
                name = f"{prefix}{WAYS[way]}-{key_part(one.word)}-{i:02d}"
                columns = (up, one.places[way], down, one.places[1 - way])
                requests.append(Request(name, captions.prompt(one.word), start, columns))
                classes.append(one)
        task.log(f"{pair[way].name} up, {pair[1 - way].name} down: {len(requests)} images")
        terms = logarithms if task.logarithms else differences
        job = Generation(
            task.run, task.model, nets, terms, task.settings, task.memory, task.log, task.workers,
            task.graphs,
        )  # fmt: skip
        images = optimise(job, requests)
        rows += _rows(task, images, classes, way, pair)
    return rows


def _rows(
    task: DisagreeTask,
    images: Sequence[Generated],
    classes: Sequence[Shared],
    way: int,
    pair: ClassifierPair,
) -> list[dict[str, Any]]:
    """Everything measured on the PNG files, read back from disk."""
    x = reread(task.run, [one.image for one in images])
    begin = reread(task.run, [one.start for one in images])
    up, down = pair[way], pair[1 - way]
    ups = torch.tensor([one.places[way] for one in classes])
    downs = torch.tensor([one.places[1 - way] for one in classes])
    columns = {
        "p_up": confidence_in(up, x, ups), "p_down": confidence_in(down, x, downs),
        "start_p_up": confidence_in(up, begin, ups),
        "start_p_down": confidence_in(down, begin, downs),
        "saturated": saturated(x), "start_saturated": saturated(begin),
    }  # fmt: skip
    for name, other in disturbed(x).items():
        columns[f"{name}.p_up"] = confidence_in(up, other, ups)
        columns[f"{name}.p_down"] = confidence_in(down, other, downs)
    for judge in task.judges:
        places = torch.tensor([class_named(judge.classes, one.name) for one in classes])
        if (places >= 0).all():
            columns[f"{judge.name}.p"] = confidence_in(judge, x, places)
    good = succeeded(columns["p_up"], columns["p_down"])
    return [
        {
            "class": classes[i].word, "name": classes[i].name, "way": WAYS[way],
            "up": up.name, "down": down.name,
            "image": one.image, "start": one.start, "succeeded": bool(good[i]),
            **{key: round(values[i].item(), 6) for key, values in columns.items()},
        }
        for i, one in enumerate(images)
    ]  # fmt: skip


def saturated(x: Images) -> Scores:
    """Per image the share of channel values that are 0 or 255: more than a photograph has of them
    is a sign of a search that left what its generator was trained on."""
    levels = (x * 255).round()
    return ((levels == 0) | (levels == 255)).flatten(1).float().mean(1)


def confidence_in(net: Classifier, x: Images, places: torch.Tensor) -> Scores:
    """A classifier's confidences in one class per image, after temperature."""
    parts = torch.split(seen(x, net.preprocess.size[0]), 64)
    probs = torch.cat([confidences(net, part) for part in parts])
    return probs.gather(1, places[:, None])[:, 0]
