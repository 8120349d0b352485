"""Propose the classes of a curated set; the list is a text file that a person edits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from counterlens.classifier import Classifier
from counterlens.data import name_of
from counterlens.errors import InputError
from counterlens.filters.class_choice import Choice, propose
from counterlens.models.parts import head
from counterlens.runs import Number, new_folder, write_text
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import logger, running
from counterlens.workflows.curate.options import ClassesOptions
from counterlens.workflows.curate.pool import (
    ClassFrame,
    PoolParts,
    choose_frame,
    filter_facts,
    labelled,
    load_models,
    matches,
)


@takes(ClassesOptions)
def choose_classes(pool: Sequence[str], options: ClassesOptions) -> Result:
    """Which classes of a pool a set should be made of; RUN/classes.txt is the list to edit.

    Args:
        pool: specs of labelled sets; no image is read.
    """
    _check(options)
    specs, model = texts(pool), options.model
    loaded = load_models(
        [model], device=options.device, trust_remote_code=options.trust_remote_code
    )
    parts = PoolParts.open(specs, alias=options.alias, limit=None, seed=0)
    parts.need_labels()
    frame = choose_frame(loaded, parts, "pool")
    choices = _propose(loaded[0], parts, frame, options)
    name = f"classes-{name_of(specs[0])}"
    folder = options.out or new_folder("curate", name)
    inputs = {"pool": specs}
    with running("curate classes", options, name=name, inputs=inputs, folder=folder) as run:
        run.note(
            model=model, data="+".join(p.name for p in parts.sets), kind="classes",
            filters=filter_facts([model], loaded),
        )  # fmt: skip
        run.write_table("matching", matches(parts, loaded[0]))
        run.write_table("proposal", [asdict(choice) for choice in choices])
        run.add_numbers(_numbers(choices))
        write_text(run.folder / "classes.txt", listing(choices))
    logger(options)(
        f"next: edit {run.folder / 'classes.txt'}, then counterlens curate adversarial "
        f"{' '.join(specs)} --filter {model} --classes {run.folder / 'classes.txt'}"
    )
    return Result(run)


def _check(options: ClassesOptions) -> None:
    per_group = options.per_group
    if (
        options.least < 1
        or not 0 < options.cosine <= 1
        or (per_group is not None and per_group < 1)
    ):
        raise InputError(
            "least takes 1 or more images, cosine a number in (0, 1], per_group 1 or more."
        )


def _propose(
    model: Classifier, parts: PoolParts, frame: ClassFrame, options: ClassesOptions
) -> list[Choice]:
    """The verdict on every class of the pool that the model knows."""
    labels = labelled(parts, frame, model).images.labels
    counts = np.bincount(labels[labels >= 0], minlength=len(frame.classes))
    rows = head(model).weight.detach().cpu().numpy()[list(frame.columns[0])]
    return propose(
        frame.classes,
        counts,
        rows,
        least=options.least,
        cosine=options.cosine,
        per_group=options.per_group,
    )


def listing(choices: Sequence[Choice]) -> str:
    """The list as people edit it: a class a line, dropped ones behind a #.

    >>> cat = Choice("cat", 9, True, "", "", 0.1, "")
    >>> listing([cat, Choice("dog", 1, False, "rare", "", 0, "")])
    'cat\\n# dog   (rare, 1 images)\\n'
    """
    lines = []
    for choice in choices:
        near = f" {choice.other}" if choice.other else ""
        dropped = f"# {choice.name}   ({choice.why}{near}, {choice.images} images)"
        lines.append(choice.name if choice.keep else dropped)
    return "\n".join(lines) + "\n"


def _numbers(choices: Sequence[Choice]) -> dict[str, Number]:
    counts = Counter(choice.why or "kept" for choice in choices)
    return {
        f"classes.{word}": Number(
            float(counts[word]),
            len(choices),
            None,
            None,
            "classes of the pool that the model knows",
        )
        for word in ("kept", "rare", "backdrop", "overlaps", "group")
    }
