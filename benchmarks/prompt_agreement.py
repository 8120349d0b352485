"""Does the shipped generator draw what the prompt says? Asked of a judge that had no part in it.

Claim to be tested: at guidance 3 and 25 steps at least 97 % of 1,000 samples, none rejected, show
the prompt's class to a classifier that is right on at least 95 % of all 10,000 CIFAR-10 test images
and was used neither in making nor in selecting the generator.

The judge: linear heads on the features of ImageNet networks, whose images are enlarged, fitted on
CIFAR-10 training images; and a plain CIFAR-10 network. Each is asked about the picture and its
mirror image; their log-probabilities are added with weights. Weight decay and weights are chosen by
likelihood on the last 2,000 training images, which none of them was trained on; the test images
choose nothing.

Result: docs/papers/digin2024.md, "Numbers", and results/prompt_agreement.json: 98.9 %
[98.0, 99.4] of 1,000 samples, by a judge that is right on 95.04 % [94.6, 95.4] of the test images;
the head alone (87.1 % right) says 97.1 % [95.9, 98.0]. The plain network's answers on the finished
generator were known when it was shipped, though they chose no update; the head's were not.
Run: python benchmarks/prompt_agreement.py samples accuracy agreement --plain FOLDER \
         --imagenet timm:tf_efficientnet_lite0@FILE.pth --train pack:A.npz+B.npz \
         --test pack:TEST.npz --fit 20000 --out OUT [--earlier SPEC SPEC]
Stages may be run one by one, and repeated: what OUT holds is not computed again. OUT/parted.png
shows the samples on which judge and prompt part, OUT/agreement.json all numbers.
"""

import argparse
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from counterlens.ball import mix
from counterlens.data import open_set
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion.optimise import draw
from counterlens.images import tile, write_png
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.models import load
from counterlens.models.parts import features
from counterlens.runs import atomic, read_json, write_json
from counterlens.types import Images, Labels, Preprocess
from counterlens.workflows._shared.generation.generator import open_generator
from counterlens.workflows.train.datasets import decoded
from counterlens.workflows.train.diffusion_quality import GUIDANCE, STEPS

Bytes = UInt8[Tensor, "n 3 h w"]
LogProbs = Float[Tensor, "n k"]
HELD, PART, DRAWN = 2000, 1000, 25
DECAYS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(frozen=True)
class Labelled:
    """Images and what they show."""

    x: Bytes
    y: Labels

    def part(self, rows: slice) -> "Labelled":
        return Labelled(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Head:
    """Multinomial logistic regression on standardised features."""

    mean: Float[Tensor, "d"]
    std: Float[Tensor, "d"]
    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, "k"]

    def __call__(self, x: Float[Tensor, "n d"]) -> LogProbs:
        return ((x - self.mean) / self.std @ self.weight.T + self.bias).log_softmax(1)


def opened(spec: str) -> tuple[Labelled, tuple[str, ...]]:
    """All images of a set as bytes of 32 pixels, and its classes."""
    images = open_set(spec)
    x = decoded(images, Preprocess((32, 32)), cache=None)
    return Labelled(x, torch.from_numpy(images.labels)), tuple(images.classes)


def save(file: Path, values: Tensor) -> None:
    """The values as a file that is whole or absent."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic(file) as unfinished, unfinished.open("wb") as out:
        np.save(out, values.numpy())


@torch.no_grad()
def kept(
    folder: Path, name: str, x: Bytes, ask: Callable[[Images], Tensor], *, mirrored: bool = False
) -> Float[Tensor, "n d"]:
    """What `ask` says of the images; every part is kept under its content and asked once."""
    answers = []
    for part in torch.split(x, PART):
        seen = part.flip(-1) if mirrored else part
        content = hashlib.blake2b(seen.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        file = folder / f"{name}-{content}.npy"
        if not file.is_file():
            said = torch.cat([ask(some.float() / 255) for some in torch.split(seen, 50)])
            save(file, said)
            print(f"{name}: {len(said)} images", flush=True)
        answers.append(torch.from_numpy(np.load(file)).float())
    return torch.cat(answers)


def network(spec: str, side: int | None) -> Callable[[Images], Tensor]:
    """A network's features of enlarged images, or, where no side is given, its log-probabilities.

    It is loaded when it is first asked.
    """
    loaded: list[Any] = []

    def ask(x: Images) -> Tensor:
        if not loaded:
            loaded.append(load(spec, device="cpu"))
            nn.Module.to(loaded[0], memory_format=torch.channels_last)
        if side is None:
            answer: Tensor = loaded[0](x)
            return answer.log_softmax(1)
        large = interpolate(x, (side, side), mode="bicubic", align_corners=False).clamp(0, 1)
        return features(loaded[0], large.contiguous(memory_format=torch.channels_last)).half()

    return ask


def short(spec: str, side: int | None) -> str:
    """A network's name in results and file names."""
    if side is None:
        return Path(spec.removeprefix("zoo:")).name
    return f"{spec.split('@')[0].rpartition(':')[2]}-{side}"


def fitted(x: Float[Tensor, "n d"], y: Labels, decay: float, *, steps: int = 150) -> Head:
    """The head of least cross-entropy plus decay / 2 · ‖weight‖², by L-BFGS."""
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    z, classes = (x - mean) / std, int(y.max()) + 1
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=steps, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        loss = cross_entropy(z @ weight.T + bias, y) + decay / 2 * weight.square().sum()
        grads = torch.autograd.grad(loss, [weight, bias])
        weight.grad, bias.grad = grads
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return Head(mean, std, weight.detach(), bias.detach())


def weighed(members: Sequence[LogProbs], y: Labels) -> Float[Tensor, "m"]:
    """Weights of the members' log-probabilities, none negative, by likelihood of the labels."""
    stacked = torch.stack(list(members))
    raw = torch.zeros(len(members), requires_grad=True)  # logarithms
    optimiser = torch.optim.LBFGS([raw], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        loss = cross_entropy(torch.einsum("m,mnk->nk", raw.exp(), stacked), y)
        (raw.grad,) = torch.autograd.grad(loss, [raw])
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return raw.detach().exp()


def share(hits: Tensor) -> dict[str, Any]:
    """A share with its interval."""
    low, high = wilson(int(hits.sum()), len(hits))
    return {"value": hits.float().mean().item(), "n": len(hits), "low": low, "high": high}


def right(said: LogProbs, y: Labels) -> dict[str, Any]:
    """How many of the labels are answered."""
    return share(said.argmax(1) == y)


class Judge:
    """The members, each asked about a picture and its mirror image, and their weights."""

    def __init__(self, given: argparse.Namespace, train: Labelled):
        self.folder: Path = given.out / "answers"
        self.plain: str = given.plain
        self.sides = {short(spec, given.side): spec for spec in given.imagenet}
        self.side: int = given.side
        self.tried: dict[str, Any] = {}
        self.heads: dict[str, Head] = {}
        fit, held = train.part(slice(0, given.fit)), train.part(slice(-HELD, None))
        assert len(fit.x) <= len(train.x) - HELD
        for name in self.sides:
            self.heads[name] = self._chosen(name, fit, held)
        answers = self.members(held.x)
        self.weights = dict(
            zip(answers, weighed(list(answers.values()), held.y).tolist(), strict=True)
        )

    def _chosen(self, name: str, fit: Labelled, held: Labelled) -> Head:
        """The head whose decay gives the held-out images the highest likelihood."""
        x, seen = self._features(name, fit.x), self._features(name, held.x)
        heads, rows = [], []
        for decay in DECAYS:
            heads.append(fitted(x, fit.y, decay))
            said = heads[-1](seen)
            loss = cross_entropy(said, held.y).item()
            rows.append({"decay": decay, "held_out_loss": loss, **right(said, held.y)})
            print(f"{name}: {rows[-1]}", flush=True)
        self.tried[name] = rows
        return min(zip(rows, heads, strict=True), key=lambda pair: pair[0]["held_out_loss"])[1]

    def _features(self, name: str, x: Bytes, *, mirrored: bool = False) -> Tensor:
        ask = network(self.sides[name], self.side)
        return kept(self.folder, name, x, ask, mirrored=mirrored)

    def members(self, x: Bytes) -> dict[str, LogProbs]:
        """What each member says: the mean over the picture and its mirror image."""
        said = {
            name: (head(self._features(name, x)) + head(self._features(name, x, mirrored=True))) / 2
            for name, head in self.heads.items()
        }
        return {**said, "plain": both_ways(self.folder, self.plain, x)}

    def __call__(self, members: Mapping[str, LogProbs]) -> LogProbs:
        total = sum(self.weights[name] * said for name, said in members.items())
        assert isinstance(total, Tensor)
        return total.log_softmax(1)


def both_ways(folder: Path, spec: str, x: Bytes) -> LogProbs:
    """A CIFAR-10 network's answers, the mean over the picture and its mirror image."""
    ask, name = network(spec, None), short(spec, None)
    return (kept(folder, name, x, ask) + kept(folder, name, x, ask, mirrored=True)) / 2


def draw_samples(given: argparse.Namespace, classes: Sequence[str]) -> None:
    """Draw what is not there yet, some of every class before more of any.

    The same as `diffusion_quality.samples` draws: image i depends on i and the seed alone.
    """
    each = given.count // len(classes)
    prompts = [captions.prompt(name) for name in classes for _ in range(each)]
    starts = [k * each + a for a in range(0, each, DRAWN) for k in range(len(classes))]
    missing = [a for a in starts if not sample_file(given, a).is_file()]
    if not missing:
        return
    model = open_generator(given.generator, torch.device("cpu"), half=False)
    nn.Module.to(model.unet, memory_format=torch.channels_last)  # 1.4 times as fast
    for a in missing:
        rows = range(a, min(a + DRAWN, (a // each + 1) * each))
        seeds = mix(torch.tensor(rows), given.seed)
        with torch.no_grad():
            some = [prompts[i] for i in rows]
            made = draw(model, some, seeds, guidance=GUIDANCE, steps=STEPS)
        save(sample_file(given, a), (made * 255).round().byte())
        print(f"drawn: samples {rows.start} to {rows.stop - 1}", flush=True)


def sample_file(given: argparse.Namespace, start: int) -> Path:
    """Where the samples from this one on are kept."""
    out: Path = given.out
    return out / f"samples-{given.count}-{given.seed}" / f"{start:05d}.npy"


def drawn_samples(given: argparse.Namespace, classes: Sequence[str]) -> tuple[Labelled, list[int]]:
    """The samples that are there, with the class each was asked for, and their numbers."""
    each = given.count // len(classes)
    files = {a: sample_file(given, a) for a in range(each * len(classes))}
    parts = {a: torch.from_numpy(np.load(file)) for a, file in files.items() if file.is_file()}
    if not parts:
        raise InputError(f"{given.out} holds no samples: run the stage samples first.")
    numbers = [a + i for a, part in parts.items() for i in range(len(part))]
    return Labelled(torch.cat(list(parts.values())), torch.tensor(numbers) // each), numbers


def earlier(given: argparse.Namespace, x: Bytes) -> LogProbs | None:
    """The mean answer of the networks to compare with, where some are named."""
    if not given.earlier:
        return None
    said = [both_ways(given.out / "answers", spec, x) for spec in given.earlier]
    return torch.stack(said).mean(0)


def accuracy(given: argparse.Namespace, judge: Judge, test: Labelled) -> dict[str, Any]:
    """How good the judge and its members are on the test images."""
    members = judge.members(test.x)
    found = {name: right(said, test.y) for name, said in members.items()}
    found["judge"] = right(judge(members), test.y)
    other = earlier(given, test.x)
    if other is not None:
        found["earlier"] = right(other, test.y)
    return found


def agreement(given: argparse.Namespace, judge: Judge, classes: Sequence[str]) -> dict[str, Any]:
    """How often judge and members see the prompt's class; a sheet of where the judge does not."""
    made, numbers = drawn_samples(given, classes)
    members = judge.members(made.x)
    answers = {**members, "judge": judge(members)}
    other = earlier(given, made.x)
    if other is not None:
        answers["earlier"] = other
    found: dict[str, Any] = {name: right(said, made.y) for name, said in answers.items()}
    for name, said in answers.items():
        hits = said.argmax(1) == made.y
        found[name]["per_class"] = {
            word: int(hits[made.y == k].sum()) for k, word in enumerate(classes)
        }
    parted = (answers["judge"].argmax(1) != made.y).nonzero()[:, 0].tolist()
    rows = [
        {
            "sample": numbers[i],
            "prompt": classes[int(made.y[i])],
            "judge_of_the_prompt": answers["judge"][i, made.y[i]].exp().item(),
            **{name: classes[int(said[i].argmax())] for name, said in answers.items()},
        }
        for i in parted
    ]
    if parted:
        enlarged = (made.x[parted] / 255).repeat_interleave(4, 2).repeat_interleave(4, 3)
        write_png(given.out / "parted.png", tile(list(enlarged), columns=8, gap=6))
    return {"shares": found, "parted": rows}


def main() -> None:
    """Run the stages and leave what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="+", choices=("samples", "accuracy", "agreement"))
    parser.add_argument("--plain", required=True, help="a CIFAR-10 network that held out the last")
    parser.add_argument("--imagenet", action="append", required=True, metavar="SPEC")
    parser.add_argument("--side", type=int, default=128, help="pixels the ImageNet networks see")
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--fit", type=int, default=48000, help="training images for the heads")
    parser.add_argument("--generator", help="default: the shipped one")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--earlier", nargs="+", default=[], help="networks to compare with")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    test, classes = opened(given.test)
    if "samples" in given.stages:
        draw_samples(given, classes)
    if given.stages == ["samples"]:
        return
    file = given.out / "agreement.json"
    found = read_json(file) if file.is_file() else {}
    judge = Judge(given, opened(given.train)[0])
    found |= {"fit_on": given.fit, "heads": judge.tried, "weights": judge.weights}
    found |= {"guidance": GUIDANCE, "steps": STEPS, "seed": given.seed, "torch": torch.__version__}
    if "accuracy" in given.stages:
        found["accuracy"] = accuracy(given, judge, test)
        print(found["accuracy"])
    if "agreement" in given.stages:
        found |= agreement(given, judge, classes)
        print(found["shares"])
    write_json(file, found)


if __name__ == "__main__":
    main()
