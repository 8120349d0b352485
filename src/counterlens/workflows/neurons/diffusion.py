"""Neurons drawn by a generator: the best real image, the best prompt, and the optimised image.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5, Figures 9, 29 and 30.
Differs: candidate words are the classes of the best real images and those the unit votes for, and
       a list or a captioner's phrases where given; the paper has a captioner's list alone. Prompts
       are searched at the guidance of the pictures, not at 7.5.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterlens.classifier import Classifier
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.explanations.counterfactuals.targets import class_index
from counterlens.explanations.figure import Panel
from counterlens.generators.diffusion.model import LatentDiffusion
from counterlens.generators.diffusion.optimise import COUNTERFACTUAL, ChainSettings, Term
from counterlens.generators.diffusion.optimise import draw as draw_prompts
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models.captioner import Captioner, load_captioner
from counterlens.models.parts import head
from counterlens.objectives import entry
from counterlens.runs import Number, Run, key_part
from counterlens.types import Images
from counterlens.workflows._shared.figures import save, save_figure
from counterlens.workflows._shared.generation.generate import (
    DRAWS,
    Generation,
    Nets,
    Request,
    Workers,
    changed,
    check_steps,
    column,
    fitting,
    optimise,
    reread,
    seed_of,
)
from counterlens.workflows._shared.generation.generator import check_graphs, open_generator_for
from counterlens.workflows._shared.objects import load_all
from counterlens.workflows._shared.session import Log
from counterlens.workflows.neurons.job import FeatureRows, NeuronJob, NeuronWork
from counterlens.workflows.neurons.options import DrawOptions
from counterlens.workflows.neurons.scan import (
    Scan,
    cross,
    groups,
    pixels,
    scan,
    unit_values,
    units_and_logits,
)

REAL, PROMPT, OPTIMISED = "best real image", "prompt only", "optimised"


@dataclass(frozen=True)
class Drawing:
    """One call: which units, with which generator, against which real images.

    Args:
        units: by number; after the last unit come the logits, in the order of the classes.
        similar: how many units like each of them are drawn, too.
        words, captioner: more candidate words, for all units and from their best images.
    """

    run: Run
    classifier: Classifier
    model: LatentDiffusion
    units: tuple[int, ...]
    data: object
    settings: ChainSettings
    count: int
    seed: int
    memory: str | None
    log: Log
    workers: Workers | None = None
    similar: int = 0
    words: tuple[str, ...] = ()
    captioner: Captioner | None = None
    graphs: bool = False

    @property
    def width(self) -> int:
        """How many units there are."""
        return head(self.classifier).in_features

    def name(self, unit: int) -> str:
        """A unit or a logit in words."""
        if unit < self.width:
            return f"unit {unit}"
        return f"logit {captions.word(self.classifier.classes[unit - self.width])}"

    def weights(self, unit: int) -> Tensor:
        """What a unit or a logit says to each class."""
        weight = head(self.classifier).weight.detach()
        if unit < self.width:
            return weight[:, unit]
        return torch.nn.functional.one_hot(torch.tensor(unit - self.width), len(weight)).to(weight)


def draw(job: NeuronJob, options: DrawOptions) -> NeuronWork:
    """Pictures of units and logits by a generator, beside real images and prompts."""
    net = job.classifier
    listed = _listed(options.words) if options.words else ()
    classes = [class_index(net.classes, str(name)) for name in options.logit]
    model = open_generator_for([net], options.generator, half=options.half)
    check_graphs(model, options.graphs)

    def opened() -> tuple[LatentDiffusion, list[Classifier]]:  # in a worker: its own device
        mine = load_all(
            [job.given], device=options.device, trust_remote_code=options.trust_remote_code
        )
        return open_generator_for(mine, options.generator, half=options.half), mine

    gpus = float(model.device.type == "cuda")
    workers = (
        None if options.on == "here" else Workers(options.on, opened, options.ray_workers, gpus)
    )
    settings = changed(fitting(COUNTERFACTUAL, model), options.changes)
    check_steps(model, settings.steps)
    units = dict.fromkeys([*options.unit, *(head(net).in_features + k for k in classes)])
    captioner = (
        load_captioner(options.captioner, device=model.device) if options.captioner else None
    )

    def work(run: Run) -> tuple[FeatureRows, dict[str, Number]]:
        run.note(search=asdict(settings))
        return draw_units(
            Drawing(
                run, net, model, tuple(units), options.data, settings, options.count, options.seed,
                options.memory, job.log, workers, options.similar, listed, captioner,
                options.graphs,
            )
        )  # fmt: skip

    return work


def _listed(path: Path) -> tuple[str, ...]:
    """Words of a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of words: {error}.") from None
    words = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not words:
        raise InputError(f"{path} holds no word, expected one a line.")
    return words


def neuron_term(classifier: Classifier, units: Sequence[int]) -> Term:
    """The activation of one penultimate unit, or one logit, per image.

    Equation: digin2024 (6)   max φ(D(z_0))_n
    """
    columns = column(units, classifier.mean.device)
    wanted = entry(units_and_logits(classifier), columns)
    return Term(wanted, classifier.preprocess.size[0])


def own_units(nets: Nets, batch: Sequence[Request]) -> list[Term]:
    """Each request raises the unit that it names."""
    return [neuron_term(nets[0], [one.columns[0] for one in batch])]


def draw_units(job: Drawing) -> tuple[list[dict[str, Any]], dict[str, Number]]:
    """All three arms of every unit: rows for the table, and numbers."""
    wrong = [n for n in job.units if not 0 <= n < job.width + len(job.classifier.classes)]
    if wrong:
        raise InputError(f"no unit {wrong[0]}: {job.classifier.name} has 0 … {job.width - 1}.")
    scanned = scan(job.classifier, job.data, job.log) if job.data is not None else None
    if job.similar:
        own = [unit for unit in job.units if unit < job.width]
        alike = groups(job.classifier, scanned, own, job.similar)
        job.run.write_table("similar_units", alike)
        every = dict.fromkeys(
            n for u in job.units for n in (u, *(r["other"] for r in alike if r["unit"] == u))
        )
        job = replace(job, units=tuple(every))
    real = _real(job, scanned) if scanned else {}
    words = _words(job, real)
    rows = [row for best in real.values() for row in best[:1]]
    requests = []
    for unit in job.units:
        word, images, values = words[unit]
        best = int(values.argmax())
        stem = key_part(job.name(unit)).replace("_", "-")
        name = save(job.run, f"{stem}-prompt.png", images[best])
        rows.append({**_row(job, unit, PROMPT, name, values[best].item(), values.mean().item()),
                     "word": word})  # fmt: skip
        requests += [
            Request(f"{stem}-{i:02d}", captions.prompt(word), seed_of("unit", job.seed, i),
                 (unit,))
            for i in range(job.count)
        ]  # fmt: skip

    generation = Generation(
        job.run, job.model, (job.classifier,), own_units, job.settings, job.memory, job.log,
        job.workers, job.graphs,
    )  # fmt: skip
    generated = optimise(generation, requests)
    x = reread(job.run, [one.image for one in generated])
    begin = reread(job.run, [one.start for one in generated])
    after, before = unit_values(job.classifier, x), unit_values(job.classifier, begin)
    for i, one in enumerate(generated):
        unit = one.request.columns[0]
        row = _row(job, unit, OPTIMISED, one.image, after[i, unit].item(), before[i, unit].item())
        rows.append({**row, "word": words[unit][0], "original": one.start})
    _figure(job, rows)
    return rows, _numbers(job, rows, after)


def _real(job: Drawing, scanned: Scan) -> dict[int, list[dict[str, Any]]]:
    """The images of the data that drive each unit most."""
    images, rows = scanned.images, {}
    for unit in job.units:
        stem = key_part(job.name(unit)).replace("_", "-")
        pairs = list(
            zip(scanned.values[:, unit].tolist(), scanned.rows[:, unit].tolist(), strict=True)
        )
        rows[unit] = [
            {
                **_row(job, unit, REAL,
                       save(job.run, f"{stem}-real-{k}.png",
                            pixels(job.classifier, images, [i])[0]),
                       value, pairs[-1][0]),
                "word": captions.word(images.classes[images.labels[i]])
                if images.labels[i] >= 0 else "",
                "id": str(images.ids[i]), "n": len(images),
                **({"caption": job.captioner([images.read(i)])[0]} if job.captioner else {}),
            }
            for k, (value, i) in enumerate(pairs)
        ]  # fmt: skip
    return rows


def _words(
    job: Drawing, real: dict[int, list[dict[str, Any]]]
) -> dict[int, tuple[str, Images, Tensor]]:
    """For each unit the word whose images drive it most, those images and their activations."""
    wanted: dict[int, list[str]] = {}
    for unit in job.units:
        votes = torch.topk(job.weights(unit), min(3, len(job.classifier.classes))).indices.tolist()
        known = [row.get(key) for row in real.get(unit, ()) for key in ("word", "caption")]
        voted = [captions.word(job.classifier.classes[k]) for k in votes]
        wanted[unit] = [*filter(None, known), *voted, *job.words]
    pictures: dict[str, Images] = {}
    for word in dict.fromkeys(word for words in wanted.values() for word in words):
        seeds = torch.tensor([seed_of("draw", job.seed, word, i) for i in range(DRAWS)])
        pictures[word] = draw_prompts(
            job.model, [captions.prompt(word)] * DRAWS, seeds,
            guidance=job.settings.guidance, steps=job.settings.steps,
        ).cpu()  # fmt: skip
    job.log(f"{len(pictures)} candidate words, {DRAWS} images each")
    values = {word: unit_values(job.classifier, x) for word, x in pictures.items()}
    chosen = {}
    for unit, words in wanted.items():
        best = max(words, key=lambda word: values[word][:, unit].mean().item())
        chosen[unit] = (best, pictures[best], values[best][:, unit])
    return chosen


def _row(
    job: Drawing, unit: int, how: str, image: str, value: float, start: float
) -> dict[str, Any]:
    most = min(3, len(job.classifier.classes)) if unit < job.width else 1
    votes = torch.topk(job.weights(unit), most)
    pairs = zip(votes.indices.tolist(), votes.values.tolist(), strict=True)
    return {
        "kind": "unit" if unit < job.width else "logit", "unit": unit, "name": job.name(unit),
        "how": how, "image": image,
        "activation": value, "start": start,
        "votes": [{"class": job.classifier.classes[k], "weight": round(w, 4)} for k, w in pairs],
    }  # fmt: skip


def _numbers(job: Drawing, rows: Sequence[dict[str, Any]], after: Tensor) -> dict[str, Number]:
    """How many units the optimised images drive further than any real one, and how purely."""
    drawn = {u: [r["activation"] for r in rows if r["how"] == OPTIMISED and r["unit"] == u]
            for u in job.units}  # fmt: skip
    own = after.view(len(job.units), job.count, -1).mean(1)
    numbers = cross(job.run, {unit: job.name(unit) for unit in job.units}, own)
    for other in (REAL, PROMPT):
        top = {r["unit"]: r["activation"] for r in rows if r["how"] == other}
        if not top:
            continue
        hits = sum(sum(drawn[u]) / job.count > top[u] for u in job.units)
        low, high = wilson(hits, len(job.units))
        protocol = f"units whose optimised images, mean of {job.count}, exceed the {other}"
        key = "neurons.beats_real" if other == REAL else "neurons.beats_prompt"
        numbers[key] = Number(hits / len(job.units), len(job.units), low, high, protocol)
    return numbers


def _figure(job: Drawing, rows: Sequence[dict[str, Any]]) -> None:
    """The three arms side by side, a row per unit."""
    grid, sides = [], []
    for unit in job.units:
        part = [row for row in rows if row["unit"] == unit]
        chosen = [row for row in part if row["how"] != OPTIMISED]
        chosen += [row for row in part if row["how"] == OPTIMISED][:4]
        x = [reread(job.run, [row["image"]])[0] for row in chosen]
        grid.append(
            [
                Panel(one, f"{row['how']}\n{row['activation']:.2f}")
                for one, row in zip(x, chosen, strict=True)
            ]
        )
        sides.append(f"{job.name(unit)}\n{part[-1]['word']}")
    title = f"{job.classifier.name}: units by a generator"
    save_figure(job.run, "figure-000", grid, sides=sides, title=title)
