"""The part of an audit on backgrounds: accuracy on each variant, quality of the masks, pictures."""

from counterlens.report.kit import plots
from counterlens.report.kit.blocks import Block, Cell, Column, Protocols, Section, Table
from counterlens.report.kit.parts import galleries, number_list, plain_table
from counterlens.runs import Run
from counterlens.runs.keys import show

TABLES = ("backgrounds", "mask_flags")
PREFIX = "background:"
WORDS = {
    "original": "The picture as it is",
    "mixed_same": "Mixed-Same: on a background of its own class",
    "mixed_rand": "Mixed-Rand: on a background of another class",
    "only_fg": "Only-FG: the object on black",
    "no_fg": "No-FG: its shape in black",
    "only_bg_t": "Only-BG-T: its box filled from beside it",
}
_LEAD = (
    "The same pictures with other backgrounds. A classifier that looks at the object alone has no "
    "gap between Mixed-Same and Mixed-Rand, and fails on the backgrounds alone."
)


def section(run: Run) -> Section | None:
    """Table, gap and pictures of the variants."""
    rows = run.table("backgrounds")
    if not rows:
        return None
    gaps = {k: n for k, n in run.numbers.items() if k.startswith("bias.background_gap")}
    body = [
        [
            Cell(WORDS[str(row["variant"])]),
            Cell(f"{row['n']:,}", sort=row["n"]),
            Cell(
                show(row["accuracy"], "share"),
                sub=f"[{show(row['low'], 'share')}, {show(row['high'], 'share')}]",
                sort=row["accuracy"],
                bar=plots.interval_bar(row["accuracy"], row["low"], row["high"]),
            ),
        ]
        for row in rows
    ]
    columns = [Column("Variant"), Column("n", numeric=True), Column("Accuracy", numeric=True)]
    blocks: list[Block] = [
        number_list(gaps, caption="Background gap"),
        Table("Accuracy on other backgrounds", columns, body),
        *plain_table("Masks", run.table("mask_flags")),
    ]
    groups = [f"{PREFIX}{row['variant']}" for row in rows]
    titles = {f"{PREFIX}{name}": text for name, text in WORDS.items()}
    blocks += galleries(run, groups, titles)
    texts = dict.fromkeys(n.protocol for n in gaps.values())
    blocks.append(Protocols([("Background gap", text) for text in texts]))
    return Section("backgrounds", "Backgrounds", blocks, _LEAD)
