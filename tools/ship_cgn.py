"""Put a trained CGN into the zoo: seed 0, fixed in advance, with what was measured of it.

    .venv/bin/python tools/ship_cgn.py RUN TABLE

RUN is a finished `counterlens cgn train`, TABLE the `counterlens cgn evaluate` of its networks. The
network goes to zoo/cgns/SET-mnist-cgn; its card gets how many digits of its masks are intact and
the test accuracy of the classifier that learnt from its counterfactuals.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from counterlens import zoo
from counterlens.errors import CounterlensError
from counterlens.metrics.intervals.closed_form import wilson
from counterlens.runs import Number, Run, read_json, write_json

TITLES = {
    "coloured": "Coloured MNIST",
    "double-coloured": "Double-coloured MNIST",
    "wildlife": "Wildlife MNIST",
}
TEXTURES = "Describable Textures Dataset (ten classes of textures)"
DIGITS = 10


def filled(card: dict[str, Any], table: Run) -> dict[str, Any]:
    """The card with a summary, its data by name, and its numbers."""
    name = TITLES[card["set"]]
    rows = table.table("classifiers")
    row = next(row for row in rows if row["arm"] == "cgn" and row["seed"] == 0)
    n = table.numbers["cgn.cgn.test"].n
    intact, right = card["training"]["intact"], round(row["test"] * n)
    rule = "digits whose masks are intact: 85 % read right, area 5 to 60 %, centre above border"
    told = (
        f"test accuracy, {name}, of a classifier that learnt from {row['pictures']} counterfactuals"
    )
    numbers = {
        "cgn.masks.intact": Number(intact / DIGITS, DIGITS, *wilson(intact, DIGITS), rule),
        "cgn.cgn.test": Number(right / n, n, *wilson(right, n), f"{told}, last epoch"),
    }
    sources = ["MNIST"] + ([TEXTURES] if card["set"] == "wildlife" else [])
    return {
        **card,
        "summary": f"Shape, object and background of {name} apart, for counterlens cgn.",
        "data": {**card["data"], "sources": sources},
        "numbers": {key: number.to_json() for key, number in numbers.items()},
    }


def main() -> int:
    """Copy the weights, write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("table", type=Path)
    asked = parser.parse_args()
    source = asked.run / "seed-0"
    try:
        card = filled(read_json(source / "card.json"), Run.open(asked.table))
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    target = Path(zoo.__file__).parent / "cgns" / card["name"]
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "model.safetensors", target / "model.safetensors")
    write_json(target / "card.json", card)
    print(f"{target}: {card['numbers']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
