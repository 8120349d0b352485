"""A planted spurious feature: does the table find it, and do counterfactuals show it?

A coloured patch in the upper left corner goes with 9 of 10 training images of one class and with no
other. Two classifiers are trained alike, with the patch and without it: the shipped plain network,
its last two stages and head anew. Then both are asked, on the same test images:

* which units, and which components, live on the background (`neurons --spurious`);
* whether images of other classes are taken for the class when the patch is put into them;
* what appears in images without the patch when the class's first component is raised: in pixel
  space, and by a generator with the thing kept.

Masks: a disc of 13 pixels radius in the middle (it knows neither patch nor classifier), and, with a
generator, its attention to the class word on the images before the patch was put in.
How far the corner came towards the patch: 1 − |x' − patch| / |x − patch|, mean over the corner.
The network averages over places, so a patch may appear elsewhere: the share of pixels that have its
colour (no channel further than 0.2) is told beside it, and how much of it is new.

Result: docs/how-to/features.md and results/planted_feature.json: its unit ranks first in both runs,
its component in one of two; raised by a generator the corner comes 0.34 [0.25, 0.42] of the way to
the patch, without the patch in training 0.02 [-0.06, 0.10] (n = 16).
Run: .venv/bin/python benchmarks/planted_feature.py --train pack:cifar10_train_part0.npz \
         --test pack:cifar10_test.npz --generator FOLDER --out runs/planted
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from counterlens.classifier import Classifier, pick_device
from counterlens.data import captions, open_set
from counterlens.data.sets import array_set
from counterlens.explanations.cam import feature_heat, overlay
from counterlens.explanations.directions import Direction, driven, logits_of
from counterlens.explanations.feature_attack import feature_attack
from counterlens.explanations.npca import neural_pca
from counterlens.explanations.uvce import EditSettings, Prepared, prepare, uvce
from counterlens.generators import latent
from counterlens.images import tile, write_png
from counterlens.metrics.intervals import mean_interval, wilson
from counterlens.models import load
from counterlens.models.parts import cam_layer, head
from counterlens.workflows.generating import changed as with_changes
from counterlens.workflows.neurons_data import Known
from counterlens.workflows.neurons_edits import AT_32, EDIT, direction_term
from counterlens.workflows.neurons_npca import components
from counterlens.workflows.neurons_scan import activations
from counterlens.workflows.neurons_spurious import FINE, Asked, ask, features_of_classes, judge
from counterlens.workflows.neurons_study import marking
from counterlens.workflows.object_masks import LEAST, MOST, Masks

Keep = Callable[[str, str, object], None]
"""Takes arm, name and value of a result, and writes all results so far."""
BASE, FRESH = "zoo:cifar10-plain-small", ("layer3", "layer4", "linear")
CLASS, SIZE, RATE = "cat", 8, 0.9
COLOUR = torch.tensor([0.95, 0.85, 0.10]).view(3, 1, 1)
NEAR = 0.2
RADIUS = 13
CORNERS = {
    "upper left": (slice(0, SIZE), slice(0, SIZE)),
    "upper right": (slice(0, SIZE), slice(-SIZE, None)),
    "lower left": (slice(-SIZE, None), slice(0, SIZE)),
    "lower right": (slice(-SIZE, None), slice(-SIZE, None)),
}


def read(spec: str, count: int) -> tuple[Tensor, Tensor]:
    """The first images of a set in [0, 1], and their labels."""
    images = open_set(spec)
    rows = range(min(count, len(images)))
    x = torch.from_numpy(np.stack([images.read(i) for i in rows])).permute(0, 3, 1, 2)
    return x, torch.from_numpy(images.labels[: len(rows)].copy())


def patched(x: Tensor) -> Tensor:
    """Images with the patch put in."""
    made = x.clone()
    made[:, :, :SIZE, :SIZE] = COLOUR.to(x)
    return made


def train(
    planted: bool, x: Tensor, y: Tensor, *, steps: int, batch: int, rate: float, seed: int,
    device: torch.device,
) -> Classifier:  # fmt: skip
    """The shipped network with its last stages anew; both arms see the same batches."""
    model = load(BASE, device=str(device))
    target = model.classes.index(CLASS)
    torch.manual_seed(seed)
    stages = [model.net.get_submodule(name) for name in FRESH]
    for stage in stages:
        for layer in stage.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    weights = [w.requires_grad_() for stage in stages for w in stage.parameters()]
    optimizer = torch.optim.SGD(weights, rate, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.2
    )
    rng = torch.Generator().manual_seed(seed)
    x, y = x.to(device), y.to(device)
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=rng).to(device)
        flip = (torch.rand(batch, generator=rng) < 0.5).to(device)
        lucky = (torch.rand(batch, generator=rng) < RATE).to(device)
        some, label = x[rows].float() / 255, y[rows]
        some = torch.where(flip.view(-1, 1, 1, 1), some.flip(3), some)
        if planted:
            here = (lucky & (label == target)).view(-1, 1, 1, 1)
            some = torch.where(here, patched(some), some)
        model.eval()
        for stage in stages:
            stage.train()
        loss = cross_entropy(model(some), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    model.name = "planted" if planted else "control"
    return model.eval().requires_grad_(False)


@torch.no_grad()
def answers(model: Classifier, x: Tensor) -> Tensor:
    parts = [model(part.to(model.mean.device)).argmax(1).cpu() for part in torch.split(x, 250)]
    return torch.cat(parts)


def share(flags: Tensor) -> dict[str, float]:
    low, high = wilson(int(flags.sum()), len(flags))
    return {"value": flags.float().mean().item(), "low": low, "high": high, "n": len(flags)}


def mean(values: Tensor) -> dict[str, float]:
    found = values.double().numpy()
    low, high = mean_interval(found, (-np.inf, np.inf))
    return {"value": float(found.mean()), "low": low, "high": high, "n": len(found)}


def basics(model: Classifier, x: Tensor, y: Tensor) -> dict[str, object]:
    """Accuracy, and what the patch does to images of other classes."""
    target = model.classes.index(CLASS)
    plain, with_patch = answers(model, x), answers(model, patched(x))
    other = y != target
    return {
        "accuracy": share(plain == y),
        "other_classes_taken_for_it": share(plain[other] == target),
        "other_classes_with_patch_taken_for_it": share(with_patch[other] == target),
        "class_known_without_patch": share(plain[~other] == target),
        "class_known_with_patch": share(with_patch[~other] == target),
    }


def known(model: Classifier, x: Tensor, y: Tensor) -> Known:
    phi = activations(model, x)
    pixels = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return Known(
        array_set("planted", pixels, y.numpy(), model.classes), phi, logits_of(model, phi), y
    )


def disc(count: int) -> Masks:
    """The middle of the picture, for all images."""
    place = torch.arange(32) - 15.5
    inside = place.square()[:, None] + place.square()[None] < RADIUS**2
    every = inside.expand(count, 32, 32).clone()
    return Masks(every, torch.ones(count, dtype=torch.bool), f"a disc of radius {RADIUS}")


def attended(model: Classifier, generator: latent.LatentDiffusion, x: Tensor, y: Tensor) -> Masks:
    """A generator's masks of images without the patch."""
    find = marking(generator, model, 0)
    found = torch.cat([find(a, b).cpu() for a, b in zip(x.split(128), y.split(128), strict=True)])
    area = found.flatten(1).float().mean(1)
    return Masks(found, (area >= LEAST) & (area <= MOST), "attention to the class word")


def table(model: Classifier, seen: Known, x: Tensor, masks: Masks, kind: str) -> dict[str, object]:
    """The ranked table, and how much of each feature's map lies in the corner of the patch."""
    if kind == "units":
        asked = features_of_classes(model, seen, masks)
    else:
        every = (ask(d, p.target, seen, masks) for p, d in components(model, seen, ["all"]))
        asked = [one for one in every if one is not None]

    def quiet(line: str) -> None:
        pass

    def look(rows: list[int]) -> Tensor:
        return x[list(rows)]

    def name(one: Asked) -> str:
        return f"{model.classes[one.target or 0]}: {one.direction.kind} {one.direction.number}"

    corner = torch.zeros(32, 32, dtype=torch.bool)
    corner[:SIZE, :SIZE] = True
    here = Masks(corner.expand(len(x), 32, 32).clone(), masks.usable, "corner")
    judged = judge(model, asked, masks, look, say=quiet)
    inside = {
        name(one.asked): 1 - one.place.outside for one in judge(model, asked, here, look, say=quiet)
    }
    rows = [
        {"rank": rank, "feature": name(one.asked), "verdict": one.verdict,
         "corner": inside[name(one.asked)], **asdict(one.place)}
        for rank, one in enumerate(judged, 1)
    ]  # fmt: skip
    return {
        "features": len(rows),
        "on_background": sum(row["verdict"] == "background" for row in rows),
        "first": rows[0]["feature"],
        "first_is_planted": str(rows[0]["feature"]).startswith(f"{CLASS}:"),
        "largest_corner": max(inside.values()),
        "uniform_corner": SIZE * SIZE / 1024,
        "rows": rows[:8],
    }


def first_component(model: Classifier, seen: Known) -> Direction:
    target = model.classes.index(CLASS)
    return neural_pca(head(model), seen.features[seen.labels == target], target).direction(0, CLASS)


def harm(model: Classifier, seen: Known, x: Tensor, y: Tensor) -> dict[str, object]:
    """Images of other classes, a tenth of them with the patch: taken for the class, and driven."""
    target = model.classes.index(CLASS)
    direction = first_component(model, seen)
    result: dict[str, object] = {}
    rows = torch.nonzero(y != target).flatten()
    some = rows[: len(rows) // 10]  # few, so that the usual value is that without the patch
    mixed = x.clone()
    mixed[some] = patched(x[some])
    phi = activations(model, mixed)
    taken, pushed = driven(logits_of(model, phi), direction.values(phi.double()), target, y)
    rest = rows[len(rows) // 10 :]
    for word, where in (("with_patch", some), ("without", rest)):
        result[word] = {"taken": share(taken[where]), "driven": share(pushed[where])}
    return result


def towards(before: Tensor, after: Tensor, corner: str = "upper left") -> Tensor:
    """How far a corner came towards the patch: 1 is the patch itself, 0 no nearer."""
    down, across = CORNERS[corner]
    gap = (before[:, :, down, across] - COLOUR).abs().mean((1, 2, 3))
    return 1 - (after[:, :, down, across] - COLOUR).abs().mean((1, 2, 3)) / gap


def coloured(x: Tensor) -> Tensor:
    """The share of each image's pixels that have the patch's colour."""
    return ((x - COLOUR).abs().amax(1) < NEAR).float().mean((1, 2))


def moved(before: Tensor, after: Tensor) -> dict[str, object]:
    others = torch.stack([towards(before, after, name) for name in list(CORNERS)[1:]]).mean(0)
    own = towards(before, after)
    return {
        "towards_patch": mean(own),
        "other_corners": mean(others),
        "own_less_others": mean(own - others),
        "half_way_or_more": share(own >= 0.5),
        "patch_colour": mean(coloured(after)),
        "patch_colour_new": mean(coloured(after) - coloured(before)),
        "patch_colour_at_least_2_percent": share(coloured(after) >= 0.02),
    }


def invert(
    model: Classifier, generator: latent.LatentDiffusion, x: Tensor, y: Tensor
) -> tuple[Prepared, list[str]]:
    """Inversion, attention and masks of images; they depend on no classifier."""
    words = [captions.word(model.classes[int(k)]) for k in y]
    return prepare(generator, x, [captions.prompt(w) for w in words], words, settings=EDIT), words


def by_generator(
    model: Classifier, generator: latent.LatentDiffusion, direction: Direction,
    ready: tuple[Prepared, list[str]], sign: float, settings: EditSettings,
) -> Tensor:  # fmt: skip
    """Images with the component raised or lowered, the thing kept."""
    prepared, words = ready
    source = list(prepared.source)
    found = uvce(
        generator, prepared.x, [direction_term(model, direction, sign, len(source))],
        source=source, target=source, words=[(word, word) for word in words], keep="object",
        settings=settings, seeds=torch.arange(len(source), device=generator.device),
        prepared=prepared,
    )  # fmt: skip
    return found.images.cpu()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--generator")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--tested", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--count", type=int, default=32, help="counterfactuals")
    parser.add_argument("--updates", type=int, default=EDIT.chain.updates)
    parser.add_argument("--longer", type=int, default=100, help="updates at steps for 32 px")
    parser.add_argument("--arm", action="append", default=[], metavar="KEY=VALUE,KEY=VALUE",
                        help="one more search, settings of the chain changed")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    study(options)
    return 0


def study(options: argparse.Namespace) -> None:
    device, began = pick_device(options.device), time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, object] = {
        "what": {"class": CLASS, "patch": SIZE, "rate": RATE, "colour": COLOUR.flatten().tolist(),
                 "images": options.images, "steps": options.steps, "batch": options.batch,
                 "seed": options.seed, "device": device.type, "torch": torch.__version__},
    }  # fmt: skip

    def keep(arm: str, key: str, value: object) -> None:
        result.setdefault(arm, {})[key] = value  # type: ignore[index]
        text = json.dumps(result, indent=1, ensure_ascii=False)
        (options.out / "planted_feature.json").write_text(text, encoding="utf-8")
        print(f"{arm} {key} ({time.time() - began:.0f} s)", flush=True)

    x, y = read(options.train, options.images)
    test, labels = read(options.test, options.tested)
    clean = test.float() / 255
    rng = torch.Generator().manual_seed(options.seed + 1)
    lucky = torch.rand(len(clean), generator=rng) < RATE
    models = {}
    for arm in ("planted", "control"):
        file = options.out / f"{arm}.pt"
        models[arm] = _trained(arm, x, y, options, device, file)
        keep(arm, "basics", basics(models[arm], clean, labels))
    target = models["planted"].classes.index(CLASS)
    shown = torch.where((lucky & (labels == target)).view(-1, 1, 1, 1), patched(clean), clean)
    generator = latent.load(options.generator, device=device) if options.generator else None
    masks = {"disc": disc(len(clean))}
    if generator is not None:
        masks["attention"] = attended(models["planted"], generator, clean, labels)
    seen = {arm: known(model, shown, labels) for arm, model in models.items()}
    for arm, model in models.items():
        for name, some in masks.items():
            for kind in ("units", "components"):
                keep(arm, f"{kind}, {name}", table(model, seen[arm], shown, some, kind))
        keep(arm, "harm", harm(model, seen[arm], clean, labels))
    maps_figure(models, seen, shown, labels, options.out)
    rows = torch.nonzero(labels != target).flatten()[: options.count]
    directions = {arm: first_component(model, seen[arm]) for arm, model in models.items()}
    changed: dict[str, Tensor] = {"as it is": clean[rows]}
    for arm, model in models.items():
        made = feature_attack(model, clean[rows], directions[arm]).images.cpu()
        keep(arm, "raised in pixel space", moved(clean[rows], made))
        changed[f"{arm}, pixels"] = made
    if generator is not None:
        generated(models, generator, directions, clean, labels, rows, options, keep, changed)
    figure(changed, options.out / "planted-counterfactuals.png")
    print("rows of the figure:", "; ".join(changed))


def generated(
    models: dict[str, Classifier], generator: latent.LatentDiffusion,
    directions: dict[str, Direction], clean: Tensor, labels: Tensor, rows: Tensor,
    options: argparse.Namespace, keep: Keep, changed: dict[str, Tensor],
) -> None:  # fmt: skip
    """Counterfactuals by a generator, at the paper's steps and at longer ones for 32 pixels."""
    target = models["planted"].classes.index(CLASS)
    start = clean[rows]
    ready = invert(models["planted"], generator, start, labels[rows])
    print("inverted", flush=True)
    changed["kept"] = ready[0].masks.cpu().expand(-1, 3, -1, -1)
    ways = {}
    for way, base, updates in (
        ("generator, the paper's steps", EDIT, options.updates),
        ("generator, steps for 32 pixels", AT_32, options.longer),
    ):
        if updates:
            ways[way] = replace(base, chain=replace(base.chain, updates=updates))
    for text in options.arm:
        settings = replace(AT_32.chain, updates=options.longer)
        ways[f"generator, {text}"] = replace(AT_32, chain=with_changes(settings, text.split(",")))
    for way, settings in ways.items():
        for arm, model in models.items():
            direction = directions[arm]
            made = by_generator(model, generator, direction, ready, 1.0, settings)
            keep(arm, f"raised by a {way}", {
                **moved(start, made),
                "updates": settings.chain.updates,
                "answer_is_class": share(answers(model, made) == target),
                "value_before": mean(direction.values(activations(model, start))),
                "value_after": mean(direction.values(activations(model, made))),
            })  # fmt: skip
            changed[f"{arm}, {way}"] = made
            figure(changed, options.out / "planted-counterfactuals.png")
        gain = towards(start, changed[f"planted, {way}"]) - towards(
            start, changed[f"control, {way}"]
        )
        keep("planted", f"{way}: towards the patch, less control (paired)", mean(gain))
        more = coloured(changed[f"planted, {way}"]) - coloured(changed[f"control, {way}"])
        keep("planted", f"{way}: pixels of its colour, less control (paired)", mean(more))
    lowered(models, generator, directions, clean, labels, options, keep, list(ways.values())[-1])


def lowered(
    models: dict[str, Classifier], generator: latent.LatentDiffusion,
    directions: dict[str, Direction], clean: Tensor, labels: Tensor, options: argparse.Namespace,
    keep: Keep, settings: EditSettings,
) -> None:  # fmt: skip
    """Images of the class with the patch: does it go when the component is lowered?"""
    target = models["planted"].classes.index(CLASS)
    rows = torch.nonzero(labels == target).flatten()[: max(2, options.count // 2)]
    start = patched(clean[rows])
    ready = invert(models["planted"], generator, start, labels[rows])
    down, across = CORNERS["upper left"]
    again = ready[0].inversion.images.cpu()
    shown = {"patched": start, "made again": again}
    for arm, model in models.items():
        made = by_generator(model, generator, directions[arm], ready, -1.0, settings)
        shown[arm] = made
        gaps = {
            word: mean((x[:, :, down, across] - COLOUR).abs().mean((1, 2, 3)))
            for word, x in (("made_again", again), ("lowered", made))
        }
        keep(arm, "lowered where the patch is: distance of the corner to it", gaps)
        figure(shown, options.out / "planted-lowered.png")


def _trained(
    arm: str, x: Tensor, y: Tensor, options: argparse.Namespace, device: torch.device, file: Path
) -> Classifier:
    """Train, or take what an earlier run of the same folder left."""
    if file.exists():
        model = load(BASE, device=str(device))
        model.net.load_state_dict(torch.load(file, map_location=device, weights_only=True))
        model.name = arm
        return model.eval().requires_grad_(False)
    print(f"training {arm}", flush=True)
    model = train(arm == "planted", x, y, steps=options.steps, batch=options.batch,
                  rate=options.rate, seed=options.seed, device=device)  # fmt: skip
    torch.save(model.net.state_dict(), file)
    return model


def maps_figure(
    models: dict[str, Classifier], seen: dict[str, Known], x: Tensor, y: Tensor, out: Path
) -> None:
    """Images of the class with the most of its first component, and where it lies."""
    target = models["planted"].classes.index(CLASS)
    columns = {}
    for arm, model in models.items():
        direction = first_component(model, seen[arm])
        rows = torch.nonzero(y == target).flatten()
        values = direction.values(seen[arm].features[rows].double())
        some = x[rows[values.argsort(descending=True)[:8]]]
        layer = cam_layer(model, least=FINE)
        columns[arm] = some
        columns[f"{arm}, map"] = overlay(
            some, feature_heat(model, some, direction.weight, layer=layer).cpu()
        )
    figure(columns, out / "planted-maps.png")


def figure(columns: dict[str, Tensor], path: Path, most: int = 8) -> None:
    """One row per kind of picture, in the order of `columns`, magnified."""
    rows = [image for images in columns.values() for image in images[:most]]
    large = torch.nn.functional.interpolate(torch.stack(rows), scale_factor=3)
    write_png(path, tile(list(large), columns=min(most, len(next(iter(columns.values()))))))


if __name__ == "__main__":
    sys.exit(main())
