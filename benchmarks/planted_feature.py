"""A planted spurious feature: does the table find it, and do counterfactuals show it?

A coloured patch in the upper left corner goes with 9 of 10 training images of one class and with no
other. Two classifiers are trained alike, with the patch and without it: the shipped plain network,
its last two stages and head anew. Then both are asked, on the same test images:

* which units, and which components, live on the background (`neurons --spurious`);
* whether images of other classes are taken for the class when the patch is put into them;
* what appears in images without the patch when the class's first component is raised: in pixel
  space, and by a generator with a penalty on changes of the object.

Masks: a disc of 13 pixels radius in the middle (it knows neither patch nor classifier), and, with a
generator, its attention to the class word on the images before the patch was put in.
How far the corner came towards the patch: 1 − |x' − patch| / |x − patch|, mean over the corner.
The network averages over places, so a patch may appear elsewhere: the share of pixels that have its
colour (no channel further than 0.2) is told beside it, and how much of it is new.

Result: docs/how-to/features.md and results/planted_feature.json: its unit ranks first in both runs,
its component in one of two; raised by a generator the corner comes 0.34 [0.25, 0.42] of the way to
the patch, without the patch in training 0.02 [-0.06, 0.10] (n = 16). The object is not shown to
stay: afterwards 14 and 16 of the 16, none of them a cat, are answered cat.
Run: .venv/bin/python benchmarks/planted_feature.py --train pack:cifar10_train_part0.npz \
         --test pack:cifar10_test.npz --generator FOLDER --out runs/planted
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from counterlens.classifier import Classifier, pick_device
from counterlens.data.synthetic import captions
from counterlens.explanations.cam import feature_saliency, overlay
from counterlens.explanations.counterfactuals.uvce import (
    Change,
    EditSettings,
    Prepared,
    prepare,
    uvce,
)
from counterlens.explanations.features.directions import Direction
from counterlens.explanations.features.feature_attack import feature_attack
from counterlens.generators.diffusion import model as latent
from counterlens.images import tile, write_png
from counterlens.models.parts import cam_layer
from counterlens.workflows._shared.generation.generate import changed as with_changes
from counterlens.workflows.neurons.data import KnownFeatures
from counterlens.workflows.neurons.edits import AT_32, EDIT, direction_term
from counterlens.workflows.neurons.scan import activations
from counterlens.workflows.neurons.spurious import FINE
from planted_networks import (
    CLASS,
    COLOUR,
    CORNERS,
    RATE,
    SIZE,
    answers,
    basics,
    coloured,
    mean,
    moved,
    patched,
    read,
    share,
    towards,
    trained,
)
from planted_tables import attended, disc, first_component, harm, known, table

Keep = Callable[[str, str, object], None]
"""Takes arm, name and value of a result, and writes all results so far."""


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
        models[arm] = trained(arm, x, y, options, device, file)
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
        generator, prepared, [direction_term(model, direction, sign, len(source))],
        [Change(text, (word, word)) for text, word in zip(source, words, strict=True)],
        settings=settings, seeds=torch.arange(len(source), device=generator.device),
    )  # fmt: skip
    return found.images.cpu()


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


def maps_figure(
    models: dict[str, Classifier], seen: dict[str, KnownFeatures], x: Tensor, y: Tensor, out: Path
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
            some, feature_saliency(model, some, direction.weight, layer=layer).cpu()
        )
    figure(columns, out / "planted-maps.png")


def figure(columns: dict[str, Tensor], path: Path, most: int = 8) -> None:
    """One row per kind of picture, in the order of `columns`, magnified."""
    rows = [image for images in columns.values() for image in images[:most]]
    large = torch.nn.functional.interpolate(torch.stack(rows), scale_factor=3)
    write_png(path, tile(list(large), columns=min(most, len(next(iter(columns.values()))))))


if __name__ == "__main__":
    sys.exit(main())
