"""Propose the classes of a curated set; the list is a text file that a person edits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.filters.class_choice import COSINE, Choice, propose
from counterlens.models.parts import head
from counterlens.report import render
from counterlens.runs import Number, Run, new_folder, write_text
from counterlens.workflows._shared.session import teller
from counterlens.workflows.curate.pool import (
    Parts,
    choose_frame,
    filter_facts,
    labelled,
    load_models,
    matches,
)


def choose_classes(
    pool: Sequence[str],
    *,
    model: str,
    least: int = 5,
    cosine: float = COSINE,
    per_group: int | None = None,
    alias: Sequence[str] = (),
    out: Path | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Run:
    """Which classes of a pool a set should be made of; RUN/classes.txt is the list to edit.

    Args:
        pool: specs of labelled sets; no picture is read.
        model: whose classes and last layer are used.
        least: images that a class must have.
        cosine: classes whose rows of the last layer are this near or nearer overlap.
        per_group: most classes of one WordNet group, those with the most images; None for all.
    """
    if least < 1 or not 0 < cosine <= 1 or (per_group is not None and per_group < 1):
        raise InputError(
            "--least takes 1 or more images, --cosine a number in (0, 1], --per-group 1 or more."
        )
    loaded = load_models([model], device=device, trust_remote_code=trust_remote_code)
    parts = Parts.open(pool, alias=alias, limit=None, seed=0)
    parts.need_labels()
    frame = choose_frame(loaded, parts, "pool")
    labels = labelled(parts, frame, loaded[0]).images.labels
    counts = np.bincount(labels[labels >= 0], minlength=len(frame.classes))
    rows = head(loaded[0]).weight.detach().cpu().numpy()[list(frame.columns[0])]
    made = propose(frame.classes, counts, rows, least=least, cosine=cosine, per_group=per_group)
    settings = {
        "pool": list(pool), "model": model, "least": least, "cosine": cosine,
        "per_group": per_group,
    }  # fmt: skip
    folder = out or new_folder("curate", f"classes-{name_of(pool[0])}")
    run = Run.create(folder, "curate classes", settings)
    run.note(
        model=model, data="+".join(p.name for p in parts.sets), kind="classes",
        filters=filter_facts([model], loaded),
    )  # fmt: skip
    run.write_table("matching", matches(parts, loaded[0]))
    run.write_table("proposal", [asdict(choice) for choice in made])
    run.add_numbers(_numbers(made))
    write_text(run.folder / "classes.txt", listing(made))
    render(run)
    run.finish()
    names = " ".join(pool)
    teller(quiet)(
        f"next: edit {run.folder / 'classes.txt'}, then counterlens curate adversarial {names} "
        f"--filter {model} --classes {run.folder / 'classes.txt'}"
    )
    return run


def listing(made: Sequence[Choice]) -> str:
    """The list as people edit it: a class a line, dropped ones behind a #.

    >>> cat = Choice("cat", 9, True, "", "", 0.1, "")
    >>> listing([cat, Choice("dog", 1, False, "rare", "", 0, "")])
    'cat\\n# dog   (rare, 1 images)\\n'
    """
    lines = []
    for choice in made:
        near = f" {choice.other}" if choice.other else ""
        told = f"# {choice.name}   ({choice.why}{near}, {choice.images} images)"
        lines.append(choice.name if choice.keep else told)
    return "\n".join(lines) + "\n"


def _numbers(made: Sequence[Choice]) -> dict[str, Number]:
    counts = Counter(choice.why or "kept" for choice in made)
    return {
        f"classes.{word}": Number(
            float(counts[word]), len(made), None, None, "classes of the pool that the model knows"
        )
        for word in ("kept", "rare", "backdrop", "overlaps", "group")
    }
