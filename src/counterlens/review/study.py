"""A study of counterfactuals with people: pairs in random order and on random sides, and results.

Paper: Augustin, Neuhaus, Hein 2024 (digin2024), section 5 and Appendix E: three questions about
    each counterfactual and which of the two is better. Sixt et al. 2022 (sixt2022): a control arm
    in which people see images sorted by logit in the place of an explanation.
Differs: intervals are added; raters and pairs are both resampled (owen2007), since answers of one
    rater, and on one pair, are alike.
"""

import hashlib
import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from counterlens.errors import InputError
from counterlens.review.store import same_person
from counterlens.runs import Number

QUESTIONS = {
    "realistic": "The counterfactual image is realistic",
    "features": "The counterfactual image shows meaningful features of the target class",
    "object": "The counterfactual image changes mainly the class object",
}
"""Q1 to Q3 of digin2024, section 5."""
BETTER = ("A", "B", "equal")
CONTROL = "sorted by logit"
"""Name of the control in place of a method."""
ARMS = ("methods", "control")
_REPLICATES = 2000
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY AUTOINCREMENT, "
    "mark TEXT NOT NULL UNIQUE, rater TEXT NOT NULL, pair TEXT NOT NULL, arm TEXT NOT NULL, "
    "a TEXT NOT NULL, b TEXT NOT NULL, questions TEXT NOT NULL, better TEXT NOT NULL, "
    "at TEXT NOT NULL)"
)


@dataclass(frozen=True)
class Pair:
    """Two counterfactuals of one image towards one target.

    Args:
        name: of the pair.
        images: path of the counterfactual by method.
    """

    name: str
    target: str
    original: str
    images: dict[str, str]


@dataclass(frozen=True)
class Trial:
    """One pair as one rater sees it: which method stands at A and which at B."""

    pair: Pair
    a: str
    b: str


@dataclass(frozen=True)
class Answer:
    """What one rater says of one trial.

    Args:
        questions: by question, of A and of B: yes or no.
        better: A, B or equal.
        mark: a name for this very answer: the same one taken twice is kept once.
    """

    rater: str
    pair: str
    a: str
    b: str
    questions: dict[str, dict[str, bool]]
    better: str
    mark: str
    arm: str = ARMS[0]

    def __post_init__(self) -> None:
        if self.better not in BETTER or self.arm not in ARMS or self.a == self.b:
            raise InputError("an answer does not say by a known word which is better.")
        if not self.rater.strip() or not 16 <= len(self.mark) <= 64:
            raise InputError("an answer has no rater or no identifier of its own.")
        wanted = set(QUESTIONS) if self.arm == ARMS[0] else set()
        sides = all(set(texts) == {"A", "B"} for texts in self.questions.values())
        if set(self.questions) != wanted or not sides:
            raise InputError("an answer lacks one of the questions.")


def trials(pairs: Sequence[Pair], rater: str, *, seed: int = 0) -> list[Trial]:
    """All pairs in the order and on the sides of one rater, always the same for the same rater."""
    words = f"{seed} {same_person(rater)}".encode()
    draw = random.Random(int.from_bytes(hashlib.sha256(words).digest()[:8], "big"))
    order = list(pairs)
    draw.shuffle(order)
    out = []
    for pair in order:
        sides = sorted(pair.images)
        draw.shuffle(sides)
        out.append(Trial(pair, sides[0], sides[1]))
    return out


def arm_of(rater: str, *, control: bool) -> str:
    """The arm of a rater: where there is a control, half of them are it, by a hash of the name."""
    digest = hashlib.sha256(same_person(rater).encode()).digest()
    return ARMS[digest[0] % 2] if control else ARMS[0]


@dataclass(frozen=True)
class StudyAnswers:
    """The answers on the pairs of one run, in SQLite."""

    path: Path

    def add(self, answer: Answer) -> None:
        """Keep an answer; a later one of the same rater on the same pair counts instead."""
        row = asdict(answer)
        row["questions"] = json.dumps(answer.questions)
        row["at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._base() as base:
            base.execute(
                "INSERT OR IGNORE INTO answers (mark, rater, pair, arm, a, b, questions, better, "
                "at) VALUES (:mark, :rater, :pair, :arm, :a, :b, :questions, :better, :at)",
                row,
            )

    def latest(self) -> list[Answer]:
        """The last answer of each rater on each pair."""
        if not self.path.is_file():
            return []
        with self._base() as base:
            rows = base.execute(
                "SELECT rater, pair, a, b, questions, better, mark, arm FROM answers "
                "ORDER BY number"
            ).fetchall()
        last: dict[tuple[str, str], Answer] = {}
        for rater, pair, a, b, questions, better, mark, arm in rows:
            answers = json.loads(questions)
            last[rater, pair] = Answer(rater, pair, a, b, answers, better, mark, arm)
        return list(last.values())

    @contextmanager
    def _base(self) -> Iterator[sqlite3.Connection]:
        base = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            base.execute(_SCHEMA)
            yield base
        except sqlite3.DatabaseError as error:
            raise InputError(f"{self.path} holds no answers of a study: {error}.") from None
        finally:
            base.close()


def answers_path(folder: Path) -> Path:
    """Where the answers on a run lie: beside its folder."""
    folder = Path(folder).resolve()
    return folder.with_name(f"{folder.name}.study.sqlite")


def results(answers: Sequence[Answer], *, seed: int = 0) -> dict[str, Number]:
    """Share of yes for each question and method, and how often each method is better."""
    out: dict[str, Number] = {}
    methods = sorted({m for one in answers for m in (one.a, one.b)} - {CONTROL})
    plain = [one for one in answers if one.arm == ARMS[0]]
    for method in methods:
        sides = [
            (one, "A" if one.a == method else "B") for one in plain if method in (one.a, one.b)
        ]
        for name, text in QUESTIONS.items():
            cells = [(one.rater, one.pair, one.questions[name][side]) for one, side in sides]
            out[f"study.{method}.{name}"] = share(cells, f"yes to: {text}, {method}", seed)
    for arm in ARMS:
        own = [one for one in answers if one.arm == arm]
        words = "better than the other" if arm == ARMS[0] else f"better than images {CONTROL}"
        for method in [*methods, *([CONTROL] if arm != ARMS[0] else [])] if own else []:
            cells = [(o.rater, o.pair, _chosen(o) == method) for o in own if method in (o.a, o.b)]
            if cells:
                out[f"study.{method}.{arm}_better"] = share(cells, f"{method} is {words}", seed)
        if own:
            cells = [(one.rater, one.pair, one.better == "equal") for one in own]
            out[f"study.equal.{arm}_better"] = share(cells, f"both are equal, arm {arm}", seed)
    return out


def share(cells: Sequence[tuple[str, str, bool]], text: str, seed: int = 0) -> Number:
    """Share of yes with an interval over raters and pairs, by the pigeonhole bootstrap (owen2007).

    Each replicate draws raters and, apart from them, pairs: an answer counts as often as its rater
    was drawn times as often as its pair was.

    Args:
        cells: rater, pair and whether it was yes.

    >>> share([("ann", "1", True), ("bob", "1", False)], "two raters").value
    0.5
    """
    raters, pairs = (sorted({cell[k] for cell in cells}) for k in (0, 1))
    y = np.array([cell[2] for cell in cells], float)
    who = np.array([raters.index(cell[0]) for cell in cells])
    which = np.array([pairs.index(cell[1]) for cell in cells])
    value, n = float(y.mean()), len(cells)
    protocol = f"{text}; {n} answers of {len(raters)} raters on {len(pairs)} pairs"
    if n < 2 or value in (0.0, 1.0):
        return Number.share(int(y.sum()), n, protocol)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(_REPLICATES):
        w = _weights(rng, len(raters))[who] * _weights(rng, len(pairs))[which]
        if w.sum():
            drawn.append(float((w * y).sum() / w.sum()))
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    how = "percentile bootstrap over raters and pairs"
    return Number(value, n, min(low, value), max(high, value), f"{protocol}; {how}")


def _weights(rng: np.random.Generator, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """How often each is drawn; a single one always once."""
    return np.bincount(rng.integers(0, count, count), minlength=count)


def _chosen(answer: Answer) -> str:
    return {"A": answer.a, "B": answer.b}.get(answer.better, "")
