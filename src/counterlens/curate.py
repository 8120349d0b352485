"""Find images that a classifier fails on, review them, and freeze them as a test set.

adversarial   natural images that a model gets wrong, from a pool with labels
ood           images of no known class that a model is sure about
classes       which classes of a pool suit a model
labels        likely label errors of one's own training images, by folds, for review
relabel       the corrected labels after the review, as a manifest
triage        labels of a set that are likely wrong
review        a page on which people accept or reject a shortlist
freeze        the accepted images as a folder with a card, measured on held-out models

>>> import counterlens as cl
>>> sorted(cl.curate.__all__)
['adversarial', 'classes', 'freeze', 'labels', 'ood', 'relabel', 'review', 'triage']
"""

from typing import TYPE_CHECKING

from counterlens.lazy import lazily

if TYPE_CHECKING:
    from counterlens.workflows.curate.classes import choose_classes as classes
    from counterlens.workflows.curate.freeze import freeze
    from counterlens.workflows.curate.labels import labels, relabel
    from counterlens.workflows.curate.review import review
    from counterlens.workflows.curate.run import adversarial, ood
    from counterlens.workflows.curate.triage import triage

__all__ = [
    "adversarial",
    "classes",
    "freeze",
    "labels",
    "ood",
    "relabel",
    "review",
    "triage",
]

__getattr__, __dir__ = lazily(
    "counterlens.curate",
    {
        "adversarial": "workflows.curate.run",
        "classes": "workflows.curate.classes:choose_classes",
        "freeze": "workflows.curate.freeze",
        "labels": "workflows.curate.labels",
        "ood": "workflows.curate.run",
        "relabel": "workflows.curate.labels",
        "review": "workflows.curate.review",
        "triage": "workflows.curate.triage",
    },
)
