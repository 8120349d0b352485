"""Heads of shape, texture and background on composed photographs: the study at CPU size.

    python benchmarks/cgn_things.py --data DIR --u2net u2netp.onnx --out THINGS
    python benchmarks/cgn_heads.py --things THINGS --data DIR \\
        --start torchvision:mobilenet_v2@mobilenet_v2-b0353104.pth --out OUT

Seven of the cue-conflict set's sixteen categories, 128 px, the trunk of an ImageNet MobileNetV2.
Counterfactuals of the training photographs (cgn compose, classes independent) are what the heads
learn from; all that is measured is composed of test photographs. Arms: originals, counterfactuals,
both; frozen trunk with three seeds, trained trunk where --trunk trained is given. Measured:

- accuracy on real, composed, background-swapped and cue-conflict images (label: shape);
- the share of answers that change when one factor of a composed image is exchanged, per head;
- shape bias per head on cue conflicts of these classes, less that of the plain classifier (arm
  originals, its ensemble), bootstrap over images;
- background gap per head: accuracy with a background of the same class less one of another class;
- Grad-CAM of the answered class per head against true masks of pets (the border of the trimaps
  counts as neither), beside maps that know nothing of the image.

Results: results/cgn_heads.json, docs/papers/cgn2021.md: the frozen trunk with three seeds, without
the trained trunk, which wants a GPU.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import counterlens as cl
from counterlens.explanations.cam import class_cam
from counterlens.images import decode
from counterlens.metrics import background_number, cue_votes, shape_number, share
from counterlens.metrics.intervals.closed_form import newcombe_paired
from counterlens.metrics.numbers import pair_counts
from counterlens.metrics.saliency import iou, mean_iou, trivial_maps
from counterlens.models import load
from counterlens.models.nets.heads import FACTORS, one_head
from counterlens.runs import atomic
from counterlens.workflows.cgn.compose import Composer, Picks, backgrounds, plan
from counterlens.workflows.cgn.photographs import Sources, open_masked, open_sources

RESULTS = Path(__file__).parent / "results" / "cgn_heads.json"
ARMS = ("originals", "counterfactuals", "both")
HEADS = (*FACTORS, "ensemble")
SIDE, COUNT, DRAWS = 128, 1001, 2000
SETS = "base, shape, texture, background, same, swapped"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("things", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--trunk", default="frozen", choices=("frozen", "trained"))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--prepare", help="compose this one set of images and stop: " + SETS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.trunk == "frozen":
        share_features(args.out)
    counterfactuals = composed(args)
    test = sources_of(args)
    questions = Questions(args, test)
    if args.prepare:
        print(args.prepare, len(questions.x(args.prepare)))
        return
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    arms = args.arms.split(",")
    seeds = range(args.seeds)
    models = {(arm, seed): trained(args, counterfactuals, arm, seed)
              for arm in arms for seed in seeds}  # fmt: skip
    if args.seeds == 0:
        return
    rows = {
        f"{arm}-{seed}": questions.answer(model, cam=seed == 0)
        for (arm, seed), model in models.items()
    }
    compared = {}
    if {"originals", "both"} <= set(arms):
        for seed in seeds:
            pair = models["originals", seed], models["both", seed]
            compared[str(seed)] = questions.bias_gain(*pair)
    result[args.trunk] = {
        "start": args.start.partition("@")[0],
        "classes": list(test.classes),
        "test_photographs": len(test.ids),
        "arms": rows,
        "shape_bias_less_plain": compared,
    }
    result["trivial_maps"] = questions.trivial()
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def share_features(out: Path) -> None:
    """The features of a frozen trunk are computed once for all arms and seeds."""
    from counterlens.workflows.train import heads

    compute = heads._features

    def shared(model: cl.Classifier, x: Tensor) -> Tensor:
        key = hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16]
        return stored(out / f"features-{key}.npy", lambda: compute(model, x))

    heads._features = shared


def stored(path: Path, make) -> Tensor:
    """A tensor that is computed once and then read from the file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part, part.open("wb") as file:
            np.save(file, make().numpy())
    return torch.from_numpy(np.load(path))


def composed(args: argparse.Namespace) -> Path:
    folder = args.out / "counterfactuals"
    if not (folder / "DONE").exists():
        cl.cgn.compose(
            str(args.things / "train"), mask=str(args.things / "masks"), count=1400, sheets=1,
            out=folder, resume=folder.exists(),
        )  # fmt: skip
    return folder / "counterfactuals.jsonl"


def trained(args: argparse.Namespace, manifest: Path, arm: str, seed: int) -> cl.Classifier:
    folder = args.out / f"{args.trunk}-{arm}-{seed}"
    if not (folder / "DONE").exists():
        cl.cgn.train_heads(
            str(args.things / "train"), args.start, counterfactuals=str(manifest), arm=arm,
            trunk=args.trunk, seed=seed, held_out=0.05, out=folder, resume=folder.exists(),
            device="cpu", epochs=args.epochs,
        )  # fmt: skip
    return load(str(folder), device="cpu")


def sources_of(args: argparse.Namespace) -> Sources:
    """The test photographs with masks."""
    images = cl.open_set(str(args.things / "test"))
    folder = args.out / f"test-{args.prepare or 'all'}"
    run = cl.Run.create(folder, "cgn compose", {}, resume=folder.exists())
    masked = open_masked(str(args.things / "masks"), "data", images, SIDE, "cpu")
    return open_sources(run, images, masked, SIDE)[0]


def number(one: cl.Number) -> dict[str, object]:
    return {"value": one.value, "low": one.low, "high": one.high, "n": one.n}


class Questions:
    """The images that every model is asked about, composed once."""

    def __init__(self, args: argparse.Namespace, test: Sources) -> None:
        self.test, self.data, self.out = test, args.data, args.out
        self.frozen = args.trunk == "frozen"
        self.giving = backgrounds(test, "swap")
        self.picks = plan(test.labels, self.giving, COUNT, seed=11)
        self.labels = torch.from_numpy(test.labels[self.picks.shape])
        same, other = (
            plan(test.labels, self.giving, COUNT, mix=mix, texture="own", seed=12)
            for mix in ("same", "other")
        )
        shapes = same.shape
        self.swapped_labels = torch.from_numpy(test.labels[shapes])
        self.pictures = {
            "base": self.picks,
            **{factor: self.other(factor) for factor in FACTORS},
            "same": Picks(shapes, shapes, same.background),
            "swapped": Picks(shapes, shapes, other.background),
        }
        images, *self.cues = cue_conflicts(args.data, test.classes)
        self.known = {"cues": images, "real": test.x}
        self.pets = pets(args.data)

    def x(self, name: str) -> Tensor:
        """Images of a set, as bytes."""
        if name in self.known:
            return self.known[name]
        texture = "own" if name in ("same", "swapped") else "patches"
        composer = Composer(self.test, texture=texture, seed=11)
        return stored(self.out / f"set-{name}.npy", lambda: pixels(composer, self.pictures[name]))

    def other(self, factor: str) -> Picks:
        """The same images with one factor from a photograph of another class."""
        labels = self.test.labels
        rows = {name: getattr(self.picks, name).copy() for name in FACTORS}
        pool = self.giving if factor == "background" else np.arange(len(labels))
        for i, row in enumerate(rows[factor]):
            rng = np.random.default_rng((13, i))
            classes = np.setdiff1d(np.unique(labels[pool]), labels[row])
            rows[factor][i] = rng.choice(pool[labels[pool] == rng.choice(classes)])
        return Picks(**rows)

    def answer(self, model: cl.Classifier, *, cam: bool) -> dict[str, object]:
        """All numbers of one model."""
        real, base, same, swapped, cues = (
            self.heads(model, name) for name in ("real", "base", "same", "swapped", "cues")
        )
        changed = {factor: self.heads(model, factor) for factor in FACTORS}
        truth = torch.from_numpy(self.test.labels)
        out: dict[str, object] = {}
        for head in HEADS:
            votes = self.votes(cues[head])
            sides = (
                same[head].argmax(1) == self.swapped_labels,
                swapped[head].argmax(1) == self.swapped_labels,
            )
            ids = [str(i) for i in range(COUNT)]
            flips = {f: base[head].argmax(1) != z[head].argmax(1) for f, z in changed.items()}
            out[head] = {
                "real": number(share(real[head].argmax(1) == truth, "")),
                "composed": number(share(base[head].argmax(1) == self.labels, "")),
                "background_swapped": number(share(sides[1], "")),
                "cue_conflict": number(share(cues[head].argmax(1) == self.cues[0], "")),
                "names_texture": number(share(
                    base[head].argmax(1) == torch.from_numpy(
                        self.test.labels[self.picks.texture]), "")),
                "names_background": number(share(
                    base[head].argmax(1) == torch.from_numpy(
                        self.test.labels[self.picks.background]), "")),
                "flips": {f: number(share(flag, "")) for f, flag in flips.items()},
                "own_less_others": own_less_others(head, flips),
                "shape_bias": number(shape_number(votes)),
                "background_gap": number(background_number(*sides, ids=(ids, ids))),
            }  # fmt: skip
            if head != "ensemble" and cam:
                out[head]["cam"] = self.cam(one_head(model, head))
        return out

    @torch.no_grad()
    def heads(self, model: cl.Classifier, name: str) -> dict[str, Tensor]:
        """Logits of every head and of the ensemble on a set; a frozen trunk's features are kept."""

        def compute() -> Tensor:
            parts = [
                (part.float() / 255 - model.mean) / model.std for part in self.x(name).split(64)
            ]
            return torch.cat([model.net.features(part) for part in parts])

        path = self.out / f"features-{name}.npy"
        features = stored(path, compute) if self.frozen else compute()
        every = model.net.on_features(features).unbind(0)
        return dict(zip(HEADS, (*every, sum(every) / 3), strict=True))

    def votes(self, logits: Tensor):
        groups = [[k] for k in range(len(self.test.classes))]
        return cue_votes(logits, *self.cues, groups)

    def cam(self, model: cl.Classifier) -> dict[str, object]:
        """IoU of Grad-CAM of the answered class and the animal, over pixels off the border."""
        model = model.eval().requires_grad_(False)
        scores = []
        for x, animal, known in zip(*self.pets, strict=True):
            shown = (x[None].float() / 255).requires_grad_(False)
            target = model(shown).argmax(1)
            heat = class_cam(model, shown, target).picture[0]
            scores.append(overlap(heat, animal, known))
        return summed(scores)

    def trivial(self) -> dict[str, object]:
        """What maps that know nothing score on the same masks."""
        maps = trivial_maps(SIDE, SIDE)
        return {
            name: summed([overlap(heat[0], animal, known)
                          for _, animal, known in zip(*self.pets, strict=True)])
            for name, heat in maps.items()
        }  # fmt: skip

    def bias_gain(self, plain: cl.Classifier, model: cl.Classifier) -> dict[str, object]:
        """Shape bias of each head less that of the plain ensemble, on the same resampled images."""
        before = decided(self.heads(plain, "cues")["ensemble"], self.cues)
        rng = np.random.default_rng(0)
        draws = rng.integers(len(before), size=(DRAWS, len(before)))
        out = {}
        for head, logits in self.heads(model, "cues").items():
            after = decided(logits, self.cues)
            gain = np.array([bias(after[d]) - bias(before[d]) for d in draws])
            low, high = np.nanpercentile(gain, [2.5, 97.5])
            out[head] = {"value": bias(after) - bias(before), "low": low, "high": high,
                         "n": len(before)}  # fmt: skip
        return out


def decided(logits: Tensor, cues: list[Tensor]) -> np.ndarray:
    """1 where the answer is the shape's class, 0 the texture's, NaN neither."""
    answer = logits.argmax(1)
    out = torch.full((len(answer),), float("nan"))
    out[answer == cues[0]] = 1
    out[answer == cues[1]] = 0
    return out.numpy()


def bias(values: np.ndarray) -> float:
    return float(np.nanmean(values))


def own_less_others(head: str, flips: dict[str, Tensor]) -> dict[str, object]:
    """Paired: flips by the head's own factor less those by each other factor."""
    if head not in FACTORS:
        return {}
    out = {}
    for factor in FACTORS:
        if factor == head:
            continue
        both, first, second, neither = pair_counts(flips[head], flips[factor])
        low, high = newcombe_paired(both, first, second, neither)
        n = len(flips[head])
        out[factor] = {"value": (first - second) / n, "low": low, "high": high, "n": n}
    return out


def overlap(heat: Tensor, animal: Tensor, known: Tensor) -> tuple[float, float]:
    """Object IoU and mean IoU over the pixels that are not border."""
    heat, animal = heat[known][None, None], animal[known][None, None]
    return float(iou(heat, animal)), float(mean_iou(heat, animal))


def summed(scores: list[tuple[float, float]]) -> dict[str, object]:
    values = np.array(scores)
    half = 1.96 * values.std(0, ddof=1) / len(values) ** 0.5
    return {
        name: {"value": m, "low": m - h, "high": m + h, "n": len(values)}
        for name, m, h in zip(("object_iou", "mean_iou"), values.mean(0), half, strict=True)
    }


def pixels(composer: Composer, picks: Picks) -> Tensor:
    """Composed images as bytes."""
    parts = []
    for start in range(0, len(picks.shape), 50):
        part = Picks(*(one[start : start + 50]
                       for one in (picks.shape, picks.texture, picks.background)))  # fmt: skip
        parts.append((composer(part, start)[0].clamp(0, 1) * 255).round().byte())
    return torch.cat(parts)


def cue_conflicts(data: Path, classes: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Cue conflicts whose shape and texture are two different ones of these classes."""
    pack = np.load(data / "cue_conflict.npz")
    names = [str(one) for one in pack["classes"]]
    place = np.array([classes.index(one) if one in classes else -1 for one in names])
    shape, texture = place[pack["labels"]], place[pack["texture_labels"]]
    rows = np.flatnonzero((shape >= 0) & (texture >= 0) & (shape != texture))
    x = torch.stack([picture(pack, "encoded", "offsets", i) for i in rows])
    return x, torch.from_numpy(shape[rows]), torch.from_numpy(texture[rows])


def pets(data: Path, count: int = 120) -> tuple[Tensor, Tensor, Tensor]:
    """Test photographs of pets, where the animal is, and which pixels are no border."""
    pack = np.load(data / "photos_pets_test.npz")
    rows = np.random.default_rng(1).permutation(len(pack["labels"]))[:count]
    x = torch.stack([picture(pack, "encoded", "offsets", i) for i in rows])
    masks = torch.stack([picture(pack, "mask_png", "mask_offsets", i, "nearest")[0] for i in rows])
    return x, masks == 255, masks != 128


def picture(pack, encoded: str, offsets: str, i: int, how: str = "bicubic") -> Tensor:
    from counterlens.images import prepare

    found = decode(pack[encoded][pack[offsets][i] : pack[offsets][i + 1]].tobytes())
    return torch.from_numpy(prepare(found, cl.Preprocess((SIDE, SIDE), 1.0, how)))


if __name__ == "__main__":
    main()
