"""The demo: a plain and a robust model, what they see, where they fail, in one page.

    make demo

Two audits of shipped models on shipped images, with noise and textures as unknown images and a
finished attack on 24 images; then four pictures changed towards a cat for both models;
then the comparison of all of it. About two minutes on two cores, no network.
"""

import argparse
from pathlib import Path

import counterlens as cl
from counterlens.runs import new_folder

MODELS = ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small")
DATA = "sample:cifar10"
PICTURES, TARGET, RADIUS = (12, 13, 4, 25), "cat", "3"
"""A dog, a horse, a frog and a bird of the sample, changed towards a cat."""


def demo(out: Path, *, points: int = 24, limit: int = 400, pictures: int = 4) -> Path:
    """Everything into one folder; the page that shows it.

    Args:
        out: a new folder.
        points: attacked images.
        limit: images of each set.
        pictures: how many pictures are changed for both models.
    """
    audits = cl.audit(
        list(MODELS),
        DATA,
        calibrate="sample:cifar10-calibration",
        ood=["noise:uniform", "noise:smooth", "sample:textures"],
        attack="l2:0.5",
        attack_version="fast",
        attack_points=points,
        limit=limit,
        out=out / "audits",
    )
    for model, audited in zip(MODELS, audits.parts, strict=True):
        images = [f"{DATA}#{row}" for row in PICTURES[:pictures]]
        cl.explain(model, images, target=TARGET, radius=RADIUS, out=audited.folder / "explained")
    return cl.compare(*audits.parts, out=out / "page").report


def main() -> None:
    """Run it and say where to look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder to create; default: under runs/")
    page = demo(parser.parse_args().out or new_folder("demo", "plain-and-robust"))
    print(f"Look at the page: {page}")


if __name__ == "__main__":
    main()
