"""Human verdicts on images: where they are kept, how far people agree, what follows from them.

Nothing in here knows torch.
"""

from counterlens.review.agreement import Decision, agreement, cohen, decisions, fleiss
from counterlens.review.store import TAGS, VERDICTS, Store, Verdict, same_person, store_path
from counterlens.review.work import (
    Task,
    counts,
    gold,
    gold_numbers,
    places,
    set_gold,
    share_out,
    shares,
    spelled,
    tasks,
)

__all__ = [
    "TAGS",
    "VERDICTS",
    "Decision",
    "Store",
    "Task",
    "Verdict",
    "agreement",
    "cohen",
    "counts",
    "decisions",
    "fleiss",
    "gold",
    "gold_numbers",
    "places",
    "same_person",
    "set_gold",
    "share_out",
    "shares",
    "spelled",
    "store_path",
    "tasks",
]
