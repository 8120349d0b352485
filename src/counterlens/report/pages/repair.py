"""A repair: the verdict, what changed, what was tried and what placebos did."""

from counterlens.report.kit.blocks import Badge, Block, Section, Text, Tone
from counterlens.report.kit.parts import plain_table
from counterlens.runs import Run

TABLES = ("verdict", "receipt", "tried", "placebos", "sizes")
_TONES: dict[str, Tone] = {"better": "good", "not shown": "warn", "worse": "bad"}


def sections(run: Run) -> list[Section]:
    """Verdict and receipt first, then how the remedy was picked."""
    made: list[Section] = []
    for row in run.table("verdict"):
        blocks: list[Block] = [Text(str(row["why"])), Text(str(row["placebo"]))]
        blocks += plain_table("Before and after on the check images", run.table("receipt"))
        made.append(Section("receipt", f"Receipt: {row['verdict']}", blocks))
    for name, title, lead in (
        ("tried", "Remedies tried", "On the images that choose, which fitted nothing."),
        ("placebos", "Placebos", "On the check images, beside the picked remedy."),
        ("sizes", "Groups", "Class and value of the column, images of each split."),
    ):
        rows = run.table(name)
        if rows:
            made.append(Section(name, title, plain_table(title, rows), lead))
    return made


def badge(run: Run) -> Badge | None:
    """The verdict for the head of the page."""
    for row in run.table("verdict"):
        return Badge(str(row["verdict"]), _TONES.get(str(row["verdict"]), ""))
    return None
