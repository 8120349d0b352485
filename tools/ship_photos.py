"""Put the trained generator of photographs into the zoo, with what was measured of it.

    .venv/bin/python tools/ship_photos.py OUT NUMBERS

OUT is the folder of tools/make_photos.py with its finished autoencoder and UNet, NUMBERS what
benchmarks/photos_generator.py wrote. The folder goes to zoo/generators/photos-diffusion.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from counterlens import zoo
from counterlens.errors import CounterlensError, InputError
from counterlens.runs import Number, read_json, read_object, write_json

NAME = "photos-diffusion"
SUMMARY = "A generator: text to photographs of 128 pixels, for explain, disagree and neurons."
SOURCES = (
    "of which Imagenette, ten classes, and Imagewoof, ten breeds: ImageNet's terms for research",
    "of which the Oxford-IIIT Pets, 37 breeds: CC BY-SA 4.0",
)
LICENCE = (
    "Apache-2.0 (weights); trained on photographs under ImageNet's terms for research and on the "
    "Oxford-IIIT Pets, CC BY-SA 4.0"
)


def share(key: str, facts: dict[str, Any], protocol: str) -> dict[str, Number]:
    """A share with its interval as a number of the card."""
    return {key: Number(facts["share"], facts["n"], *facts["interval"], protocol)}


def numbers(facts: dict[str, Any]) -> dict[str, Number]:
    """What was measured, as the card's numbers."""
    exact, alike = facts["exactness"], facts["realism"]
    n, how = exact["n"], "guidance 3, 25 steps, none rejected"
    out = {
        "generator.psnr": Number(
            exact["psnr_over_all_pixels"], n, None, None,
            f"PSNR of the autoencoder over all pixels of {n} test photographs, in dB",
        ),
        "generator.psnr_image": Number(
            *exact["psnr_mean_of_images"][:1], n, *exact["psnr_mean_of_images"][1:],
            f"PSNR of the autoencoder, mean over {n} test photographs, in dB",
        ),
        "generator.lpips": Number(
            exact["lpips"][0], n, *exact["lpips"][1:],
            f"LPIPS (AlexNet) of the autoencoder, mean over {n} test photographs",
        ),
    }  # fmt: skip
    for (judge, one), key in zip(facts["agreement"].items(), ("imagenet", "pets"), strict=True):
        real = one["test"]
        protocol = (
            f"{judge}, {100 * real['share']:.1f} % right on {real['n']} test photographs, answers "
            f"the prompt's class; {one['samples']['n']} samples, {how}"
        )
        out |= share(f"generator.{key}.agreement", one["samples"], protocol)
    for key, one in alike.items():
        of = "" if key == "samples" else "training_photographs."
        n, real = one["n"]
        against = f"features of EfficientNet-Lite2, against {real} test photographs"
        kid, low, high = one["kid"]
        out[f"generator.{of}kid"] = Number(kid, n, low, high, f"unbiased KID, {against}")
        out[f"generator.{of}recall"] = Number(
            one["recall"], n, None, None, f"recall, k = 3, {against}"
        )
    for key, one in facts["copies"].items():
        protocol = (
            f"share nearer to a training photograph (or its mirror image) in {key} than 99 % of "
            "test photographs are"
        )
        out |= share(f"generator.{key}.copies", one, protocol)
    return out


def filled(out: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """The card of the UNet's run with the autoencoder's training, the data's names and numbers."""
    card, first = (
        read_object(out / stage / "model" / "card.json") for stage in ("unet", "autoencoder")
    )
    recipe = {key: value for key, value in card["recipe"].items() if key != "start"}
    recipe["vae"] = {**first["recipe"]["vae"], "lpips": "AlexNet, version 0.1"}
    sets = [{**one, "share": 1.0} for one in card["data"]["sets"]]  # the only set
    runs = {"vae": first["training"], "unet": card["training"]}
    return {
        **card,
        "summary": SUMMARY,
        "recipe": recipe,
        "data": {**card["data"], "sets": sets, "sources": SOURCES},
        "training": {
            "seed": card["training"]["seed"],
            "device": card["training"]["device"],
            "finished": all(run["finished"] for run in runs.values()),
            "updates": {stage: run["updates"][stage] for stage, run in runs.items()},
            "seconds": sum(run["seconds"][stage] for stage, run in runs.items()),
            "stages": {stage: run["seconds"][stage] for stage, run in runs.items()},
        },
        "made_by": "tools/make_photos.py",
        "numbers": {key: number.to_json() for key, number in numbers(measured).items()},
        "licence": LICENCE,
    }


def main() -> int:
    """Copy the folder, write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("numbers", type=Path)
    asked = parser.parse_args()
    try:
        for stage in ("autoencoder", "unet"):
            if not (asked.out / stage / "DONE").exists():
                raise InputError(f"{asked.out / stage} is not a finished training.")
        card = filled(asked.out, read_json(asked.numbers))
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    target = Path(zoo.__file__).parent / "generators" / NAME
    shutil.copytree(asked.out / "unet" / "model", target, dirs_exist_ok=True)
    write_json(target / "card.json", card)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
