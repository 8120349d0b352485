"""Human verdicts on images: where they are kept, how far people agree, what follows from them.

Nothing in here knows torch.
"""

from counterlens.review.agreement import agreement, cohen, decisions, fleiss
from counterlens.review.store import TAGS, VERDICTS, Store, Verdict, store_path

__all__ = [
    "TAGS",
    "VERDICTS",
    "Store",
    "Verdict",
    "agreement",
    "cohen",
    "decisions",
    "fleiss",
    "store_path",
]
