"""Write the numbers of an audit into the card of the audited model, and its temperature.

    .venv/bin/python tools/card_numbers.py RUN FOLDER [--seen SET]... [--also FILE] [--record NAME]

RUN is a finished audit, FOLDER the checkpoint it audited (e.g. a folder of zoo/weights, or
RUN/model of a training). `--seen` names sets that share the distribution which models of the
comparison were trained against; their numbers are reported apart, for every model. `--also` adds
numbers that the audit lacks from a file like benchmarks/results/cards_h200.json, by the card's
name. With `--record` the card is stored, without weights, as zoo/audits/NAME.json: for models of
the comparison whose weights are not shipped.
"""

import argparse
import sys
from pathlib import Path

from counterlens import zoo
from counterlens.errors import CounterlensError
from counterlens.models.sources.checkpoint import read_card
from counterlens.runs import Run, read_json, write_json
from counterlens.workflows.reproduce.cards import check_weights, with_audit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seen", action="append", default=[])
    parser.add_argument("--also", type=Path)
    parser.add_argument("--record", metavar="NAME")
    asked = parser.parse_args()
    try:
        run = Run.open(asked.run)
        check_weights(run, asked.folder)
        card = read_card(asked.folder)
        also = read_json(asked.also).get(card["name"]) if asked.also else None
        card = with_audit(card, run, seen=asked.seen, also=also)
        path = asked.folder / "card.json"
        if asked.record:
            path = zoo.records() / f"{asked.record}.json"
            card = {**card, "name": asked.record, "weights": "not kept"}
        write_json(path, card)
    except CounterlensError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{path}: {len(card['numbers'])} numbers, temperature {card['temperature']:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
