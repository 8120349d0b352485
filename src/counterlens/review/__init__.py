"""Human verdicts on images: where they are kept, how far people agree, what follows from them.

Nothing in here knows torch.
"""

from counterlens.review.agreement import Decision, agreement, cohen, decisions, fleiss
from counterlens.review.store import TAGS, VERDICTS, Store, Verdict, same_person, store_path

__all__ = [
    "TAGS",
    "VERDICTS",
    "Decision",
    "Store",
    "Verdict",
    "agreement",
    "cohen",
    "decisions",
    "fleiss",
    "same_person",
    "store_path",
]
