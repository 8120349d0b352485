"""A page on which a shortlist is reviewed in a browser, offline; it saves verdicts as lines."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from counterlens.report.html import environment
from counterlens.review import TAGS
from counterlens.runs import Run, write_text

_KINDS = {
    "adversarial": "Is this a fair picture of its label?",
    "ood": "Is this none of the known classes?",
}


def write_sheet(
    path: Path,
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    pictures: Sequence[bytes],
    *,
    reviewer: str = "",
    role: str = "reviewer",
    others: Sequence[Sequence[str]] = (),
) -> None:
    """Write the page; the pictures, JPEG each, are inside it.

    A browser keeps verdicts under the run, the role and the name typed on the page, so that
    several people at one browser never see each other's.

    Args:
        reviewer: whose page it is; empty for a page on which people type their name.
        role: reviewer, or adjudicator.
        others: for an adjudicator, what reviewers said of each image.
    """
    cards = []
    for row, data, verdicts in zip(rows, pictures, others or [()] * len(rows), strict=True):
        cards.append(
            {
                "id": row["id"],
                "label": row["label"],
                "answer": row["answer"],
                "confidence": f"{row['confidence']:.0%}",
                "source": f"data:image/jpeg;base64,{base64.b64encode(data).decode()}",
                "small": max(row["width"], row["height"]) <= 112,
                "suggested": list(row.get("suggested", ())),
                "others": list(verdicts),
            }
        )
    kind = str(run.manifest.get("kind", "adversarial"))
    text = (
        environment()
        .get_template("sheet.html")
        .render(
            title=run.folder.name,
            question=_KINDS[kind],
            cards=cards,
            tags=TAGS,
            reviewer=reviewer,
            role=Markup(_script_text(role)),
            adjudicates=role == "adjudicator",
            key=Markup(
                _script_text(f"counterlens-review {run.manifest['started']} {run.folder.name}")
            ),
        )
    )
    write_text(path, text)


def _script_text(text: str) -> str:
    """A text as a JavaScript literal that cannot end its script."""
    return json.dumps(text).replace("<", "\\u003c").replace("&", "\\u0026")
