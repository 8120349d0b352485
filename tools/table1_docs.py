"""Write the tables of docs/papers/ratio2020.md from the cards and the pairs that are stored.

    python tools/table1_docs.py [--write]

Each table stands between `<!-- table1 NAME -->` and `<!-- end -->`. Without `--write` the exit code
is 1 where the page differs from what is stored.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterlens import zoo
from counterlens.runs import Number, key_part
from counterlens.runs.keys import verdict
from counterlens.workflows.reproduce.cards import NOISE, SEEN, UNSEEN
from counterlens.workflows.reproduce.table1 import ROWS, ours
from counterlens.workflows.reproduce.table1_pairs import OPEN, REVERSED, counts
from counterlens.workflows.reproduce.table1_paper import printed_sets

PAGE = Path(__file__).parents[1] / "docs" / "papers" / "ratio2020.md"
TRAINED = {row: recipe for row, (_, recipe) in ROWS.items() if recipe}
WORDS = {REVERSED: "reversed", OPEN: "open"}


def share(number: Number | None, *, n: bool = False) -> str:
    """A number in per cent with its interval; ? marks an attack that is not trusted."""
    if number is None or number.value is None:
        return "–"
    mark = "?" if verdict(number) not in (None, "", "trusted") else ""
    ends = ""
    if number.low is not None and number.high is not None:
        ends = f" [{100 * number.low:.1f}, {100 * number.high:.1f}]"
    return f"{100 * number.value:.1f}{mark}{ends}" + (f", n = {number.n:,}" if n else "")


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def models(cards: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per model of ours: its cost and the columns of Table 1."""
    rows = []
    for row, recipe in TRAINED.items():
        if recipe not in cards:
            continue
        card = cards[recipe]
        epochs, seconds = zoo.cost(card)
        cost = "–" if epochs is None else f"{epochs}, {(seconds or 0) / 60:.1f}"
        cells = [share(ours(card, column)) for column in ("clean", "l2 1.0", "l∞ 8/255")]
        cells.insert(1, share(ours(card, "l2 0.5"), n=True))
        aucs = [ours(card, column) for column in ("AUC", "WC-AUC")]
        rows.append([ROWS[row][0], cost, *cells, *(share(number) for number in aucs)])
    head = ["", "epochs, minutes", "clean", "l2 0.5", "l2 1.0", "l∞ 8/255", "AUC", "WC-AUC"]
    return lines(head, rows)


def sets(cards: Mapping[str, Mapping[str, Any]]) -> str:
    """AUC / worst-case AUC per set: the paper's sets, then ours; both where both measured one."""
    paper = printed_sets()
    rows = [row for row in TRAINED if row in paper]
    kinds: dict[str, str] = {}
    for row in rows:
        kinds |= cards.get(TRAINED[row], {}).get("audit", {}).get("ood", {})
    names = list(dict.fromkeys([*next(iter(paper.values())), *kinds]))
    table = []
    for name in names:
        for side in ("paper", "ours"):
            cells = [_both(side, row, name, cards, paper) for row in rows]
            if any(cell != "–" for cell in cells):
                kind = {SEEN: ", seen", NOISE: ", noise", UNSEEN: ""}.get(kinds.get(name, ""), "")
                table.append([name + kind, side, *cells])
    return lines(["set", "", *(ROWS[row][0] for row in rows)], table)


def _both(
    side: str,
    row: str,
    name: str,
    cards: Mapping[str, Mapping[str, Any]],
    paper: Mapping[str, Mapping[str, tuple[float, float]]],
) -> str:
    if side == "paper":
        cells = paper[row].get(name)
        return "–" if cells is None else f"{cells[0]:.1f} / {cells[1]:.1f}"
    stored = cards.get(TRAINED[row], {}).get("numbers", {})
    values = [stored.get(f"ood.{key_part(name)}.{m}") for m in ("auroc", "worst_auroc")]
    if all(value is None for value in values):
        return "–"
    return " / ".join("–" if v is None else f"{100 * v['value']:.1f}" for v in values)


def counted(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Pairs by column and verdict."""
    found = counts(pairs)
    head = ["column", *next(iter(found.values()))]
    return lines(head, [[column, *map(str, row.values())] for column, row in found.items()])


def against(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Every pair that is reversed or open."""
    rows = []
    for row in pairs:
        if row["verdict"] not in WORDS:
            continue
        value, low, high = (100 * row[key] for key in ("value", "low", "high"))
        said = row["verdict"] + (" beyond chance" if row["beyond_chance"] else "")
        attack = ", ".join(filter(None, (row["attack"], row["trust"]))) or "–"
        rows.append([
            f"{row['column']}: {row['higher']}, {row['lower']}", f"{100 * row['paper']:+.2f}",
            f"{value:+.1f} [{low:+.1f}, {high:+.1f}]", f"{row['n']:,}", said, attack,
        ])  # fmt: skip
    head = ["pair, the paper's higher first", "paper", "ours, 95 % interval", "images", "verdict"]
    return lines([*head, "attacks"], rows)


def page(text: str) -> str:
    """The page with its tables made anew."""
    cards, pairs = zoo.audited(), zoo.pairs_of_table1()
    tables = {
        "models": models(cards), "sets": sets(cards), "counts": counted(pairs),
        "against": against(pairs),
    }  # fmt: skip
    for name, table in tables.items():
        start, end = f"<!-- table1 {name} -->", "<!-- end -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> int:
    """Write the page, or say whether it is what is stored."""
    text = PAGE.read_text()
    made = page(text)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made)
        return 0
    if made != text:
        print("docs/papers/ratio2020.md differs: python tools/table1_docs.py --write")
    return int(made != text)


if __name__ == "__main__":
    sys.exit(main())
