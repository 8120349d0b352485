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
) -> None:
    """Write the page; the pictures, JPEG each, are inside it."""
    cards = []
    for row, data in zip(rows, pictures, strict=True):
        cards.append(
            {
                "id": row["id"],
                "label": row["label"],
                "answer": row["answer"],
                "confidence": f"{row['confidence']:.0%}",
                "source": f"data:image/jpeg;base64,{base64.b64encode(data).decode()}",
                "small": max(row["width"], row["height"]) <= 112,
                "suggested": list(row.get("suggested", ())),
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
            key=Markup(
                _script_text(f"counterlens-review {run.manifest['started']} {run.folder.name}")
            ),
        )
    )
    write_text(path, text)


def _script_text(text: str) -> str:
    """A text as a JavaScript literal that cannot end its script."""
    return json.dumps(text).replace("<", "\\u003c").replace("&", "\\u0026")
