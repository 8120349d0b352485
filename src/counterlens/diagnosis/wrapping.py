"""Is the network fed as it was trained? Normalisation, pixel range and channel order.

Every way a network is usually fed is tried in place of the present one. Evidence for another way:
the statistics stored in the batch norms fit it better (needs photographs, no labels), or the labels
become likelier (needs labelled data; the only evidence where there are no batch norms). Stored
statistics alone warn: a right model of unusual images looks the same. A failure needs labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from counterlens.classifier import Classifier, unwrap
from counterlens.diagnosis import statistics
from counterlens.diagnosis.finding import Finding, Sure
from counterlens.diagnosis.outputs import ENOUGH, OutputKind, information, log_probs
from counterlens.diagnosis.probes import Probes
from counterlens.types import Images, Labels, Logits

FEW, SCREEN = 1 / 6, 16
"""On which all ways are compared: share of the images by stored statistics, images by answers."""
LEAST_LABELS = 24
BAD_FIT, GOOD_FIT, RATIO = 0.25, 0.12, 4.0
"""Stored statistics speak clearly where the present way is at least so far off, another at most."""
POOR_FIT, POOR_RATIO = 0.12, 2.5
LIKELIER, SIGMAS, MORE_MET, MOST_MET = 0.1, 4.0, 0.03, 0.5
"""Labels speak clearly where they become likelier by so many nats, so many standard errors, so
large a share more of them is met, and so large a share in all: on pictures chosen because a model
errs, any other way meets a few more."""
UNLABELLED = "needs labels to be sure; a right model of unusual images looks the same"
COLOUR_CLEAR, COLOUR_SOME = 4.0, 2.5
"""Standard deviations by which stored statistics and labels together must prefer blue first."""

_Rows = Int[Tensor, "n"]
Speech = Literal["clear", "some", "none", "against"]


@dataclass(frozen=True)
class Way:
    """One way to feed a network: (x − mean) / std of RGB in [0, 1], perhaps turned to BGR.

    `turn` says when: "before" the normalisation, as where OpenCV read the images, or "after", as
    where a network of BGR inputs brings its own order of means.
    """

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    turn: Literal["", "before", "after"] = ""

    def feed(self, x: Images) -> Images:
        """The network's input."""
        shape = (1, -1, 1, 1)
        x = x.flip(1) if self.turn == "before" else x
        u = (x - x.new_tensor(self.mean).view(shape)) / x.new_tensor(self.std).view(shape)
        return u.flip(1) if self.turn == "after" else u

    @property
    def plain(self) -> bool:
        """Whether pixels are passed on as they are."""
        return set(self.mean) == {0.0} and set(self.std) == {1.0}

    @property
    def scale(self) -> int:
        """Size class of what the network gets: 1 about one, 2 hundreds, 0 hundredths."""
        return 2 if max(self.std) < 0.02 else 0 if min(self.std) > 20 else 1

    def near(self, other: "Way") -> bool:
        """Whether the difference is too small to matter, as between ImageNet's and CIFAR's."""
        means = max(abs(a - b) for a, b in zip(self.mean, other.mean, strict=True))
        ratios = [max(a / b, b / a) for a, b in zip(self.std, other.std, strict=True)]
        return means < 0.08 * max(1, *self.std) and max(ratios) < 1.25

    def __str__(self) -> str:
        mean, std = (tuple(round(v, 4) for v in values) for values in (self.mean, self.std))
        return f"mean={mean}, std={std}"


def _inverse(way: Way, name: str) -> Way:
    std = tuple(1 / s for s in way.std)
    return Way(name, tuple(-m / s for m, s in zip(way.mean, way.std, strict=True)), std)


PAIR = ("normalisation", "pixel range")
PLAIN = Way("pixels as they are", (0.0,) * 3, (1.0,) * 3)
IMAGENET = Way("ImageNet's mean and std", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = Way("CIFAR-10's mean and std", (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
HALF = Way("pixels in −1 … 1", (0.5,) * 3, (0.5,) * 3)
BYTES = Way("pixels in 0 … 255", (0.0,) * 3, (1 / 255,) * 3)
CAFFE = Way("pixels in 0 … 255 less their mean", (0.485, 0.4579, 0.4076), (1 / 255,) * 3)
WAYS = (
    *(PLAIN, IMAGENET, CIFAR, HALF, BYTES, CAFFE),
    _inverse(IMAGENET, "ImageNet's normalisation undone once"),
    _inverse(HALF, "−1 … 1 undone once"),
    Way("pixels divided by 255 once more", (0.0,) * 3, (255.0,) * 3),
)


@dataclass(frozen=True)
class Heard:
    """What the labels say of another way, in a word, in words, and in standard errors."""

    speech: Speech
    words: str
    sigmas: float


@dataclass(frozen=True)
class _Evidence:
    """All that is known when the wrapping is judged."""

    net: nn.Module
    now: Way
    probes: Probes
    patches: Images
    outputs: Logits
    kind: OutputKind
    seed: int

    @property
    def grey(self) -> bool:
        """Whether the network sees one channel."""
        return len(self.now.mean) == 1

    @property
    def images(self) -> Images:
        """What to take statistics of: the probes, or photographs where those are too few."""
        return self.probes.x if len(self.probes.x) >= ENOUGH else self.patches

    def log_p(self, way: Way, rows: _Rows) -> Logits:
        """Log-probabilities of some of the probes, fed in some way."""
        if way == self.now:
            return log_probs(self.outputs[rows], self.kind)
        with torch.no_grad():
            out = self.net(way.feed(self.probes.x[rows]))
            return log_probs(out if isinstance(out, Tensor) else unwrap(out), self.kind)

    def layers(self, way: Way, x: Images) -> list[statistics.Layer]:
        """The first batch norms on images fed in some way; none where they were never trained."""
        return [] if statistics.fresh(self.net) else statistics.first_layers(self.net, way.feed(x))


def present(classifier: Classifier) -> Way:
    """The way the classifier feeds its network."""
    mean, std = (tuple(t.flatten().tolist()) for t in (classifier.mean, classifier.std))
    return Way("the present wrapping", mean, std)


def judge(case: _Evidence) -> list[Finding]:
    """Findings on normalisation, pixel range and channel order."""
    grey = [replace(w, mean=(sum(w.mean) / 3,), std=(sum(w.std) / 3,)) for w in WAYS]
    others = [w for w in (grey if case.grey else WAYS) if not w.near(case.now)]
    best, verdicts = _normalisation(case, others)
    return [*verdicts, _channel_order(case, best)]


def _normalisation(case: _Evidence, others: Sequence[Way]) -> tuple[Way, list[Finding]]:
    """The way to believe in, and the findings on normalisation and pixel range."""
    if case.grey and case.probes.source == "patchwork":
        why = "cannot tell without data: the shipped photographs are in colour."
        return case.now, [Finding(check, "skipped", why, "low") for check in PAIR]
    few = _few(case.images)
    layers = {way: case.layers(way, few) for way in (case.now, *others)}
    if not layers[case.now]:
        return _by_answers(case, others)
    fits = {way: statistics.gap(inputs) for way, inputs in layers.items()}
    best = min(others, key=fits.__getitem__)
    message = f"stored statistics are {fits[case.now]:.2f} off"
    speech = _fit_speech(fits[case.now], fits[best])
    if speech == "none":
        strange = fits[case.now] > BAD_FIT
        note = (
            ", and no usual way fits better; other images than it was trained on?"
            if strange
            else ""
        )
        return case.now, _fine(f"{message}{note}.", "low" if strange else "high")
    message += f", {fits[best]:.2f} with {best.name}"
    return _weigh(case, best, speech, message)


def _few(x: Images) -> Images:
    return x[: max(8, int(FEW * len(x)))]


def _fit_speech(now: float, best: float) -> Speech:
    if now >= BAD_FIT and best <= GOOD_FIT and now >= RATIO * best:
        return "clear"
    return "some" if now >= POOR_FIT and now >= POOR_RATIO * best else "none"


def _weigh(case: _Evidence, best: Way, speech: Speech, message: str) -> tuple[Way, list[Finding]]:
    """Stored statistics speak for another way; hear the labels too."""
    labels = _labels_speech(case, case.now, best, skip=0)
    message += f"; {labels.words}" if labels.words else ""
    if labels.speech == "against":
        return case.now, _fine(f"{message}.", "medium")
    if labels.speech == "clear":
        return best, _wrong(case.now, best, "fail", f"{message}.", "high")
    if labels.speech == "none" and labels.words:  # there are labels, and they do not care
        sure: Sure = "medium" if speech == "clear" else "low"
        return case.now, _wrong(case.now, best, "warn", f"{message}.", sure)
    if labels.speech == "some" and speech == "clear":
        return best, _wrong(case.now, best, "fail", f"{message}.", "medium")
    if not _photographs_agree(case, best):
        message += "; shipped photographs say no: look at the pictures"
    elif speech == "clear":
        return best, _wrong(case.now, best, "warn", f"{message}; {UNLABELLED}.", "medium")
    return case.now, _wrong(case.now, best, "warn", f"{message}.", "low")


def _photographs_agree(case: _Evidence, best: Way) -> bool:
    """Whether shipped photographs say the same as the user's unlabelled images."""
    if case.probes.source != "data":
        return True
    fits = [statistics.gap(case.layers(way, _few(case.patches))) for way in (case.now, best)]
    return fits[0] > fits[1]


def _by_answers(case: _Evidence, others: Sequence[Way]) -> tuple[Way, list[Finding]]:
    """No stored statistics: compare the answers, with labels where there are some."""
    if case.probes.labelled >= SCREEN + LEAST_LABELS:
        rows = (case.probes.labels >= 0).nonzero().flatten()[:SCREEN]
        y = case.probes.labels[rows]
        scores = {
            way: _likelihood(case.log_p(way, rows), y).mean().item() for way in (case.now, *others)
        }
        best = max(others, key=scores.__getitem__)
        if scores[best] <= scores[case.now]:
            return case.now, _fine("the labels are likeliest as it is wrapped.", "medium")
        labels = _labels_speech(case, case.now, best, skip=SCREEN)
        if labels.speech == "clear":
            return best, _wrong(case.now, best, "fail", f"{labels.words}.", "high")
        return case.now, _fine(f"{labels.words}: no clear gain.", "medium")
    if statistics.fresh(case.net):
        why = "cannot tell: the batch norms are untrained, and there are no labels."
        return case.now, [Finding(check, "skipped", why, "low") for check in PAIR]
    rows = torch.arange(min(2 * SCREEN, len(case.probes.x)))
    nats = {way: information(case.log_p(way, rows)) for way in (case.now, *others)}
    best = max(others, key=nats.__getitem__)
    facts = (
        f"mutual information of image and answer {nats[case.now]:.2f} nats, {nats[best]:.2f} "
        f"with {best.name}"
    )
    if nats[best] > 2 * nats[case.now] and nats[best] - nats[case.now] > 0.5:
        return case.now, _wrong(case.now, best, "warn", f"{facts}.", "low")
    why = f"cannot tell: no batch-norm statistics and no labels; {facts}."
    return case.now, [Finding(check, "skipped", why, "low") for check in PAIR]


def _likelihood(log_p: Logits, y: Labels) -> Tensor:
    return log_p.double().clamp_min(-20).gather(1, y[:, None]).squeeze(1)


def _labels_speech(case: _Evidence, base: Way, other: Way, *, skip: int) -> Heard:
    """What the labels say of a way other than `base`; no words where there are too few.

    Likelihood is the sharper measure, but labels in a wrong order are likelier under any way that
    makes the answers less certain; so more of them must be met as well.
    """
    rows = (case.probes.labels >= 0).nonzero().flatten()[skip:]
    if len(rows) < LEAST_LABELS:
        return Heard("none", "", 0.0)
    y = case.probes.labels[rows]
    now, then = case.log_p(base, rows), case.log_p(other, rows)
    gain = _likelihood(then, y) - _likelihood(now, y)
    mean = gain.mean().item()
    sigmas = mean / max(gain.std().item() / len(gain) ** 0.5, 1e-9)
    met, would = (int((p.argmax(1) == y).sum()) for p in (now, then))
    words = (
        f"with {other.name} {would} of {len(y)} images are classified right instead of {met} "
        f"(log-likelihood {mean:+.2f}, {sigmas:+.1f} σ)"
    )
    if (would - met) * sigmas <= 0:
        return Heard("none", words, 0.0)
    if sigmas < 0:
        return Heard("against" if sigmas <= -2 else "none", words, sigmas)
    if would < MOST_MET * len(y):
        return Heard("none", words, sigmas)
    clear = sigmas >= SIGMAS and mean >= LIKELIER and would - met >= MORE_MET * len(y)
    return Heard("clear" if clear else "some" if sigmas >= 2 else "none", words, sigmas)


def _fine(message: str, sure: Sure) -> list[Finding]:
    return [Finding(name, "ok", message, sure) for name in PAIR]


def _wrong(
    now: Way, best: Way, status: Literal["warn", "fail"], message: str, sure: Sure
) -> list[Finding]:
    """One finding speaks, the other points at it."""
    if now.scale != best.scale:
        check, what = "pixel range", f"the network seems to expect {best.name}"
    elif best.plain or best.name.endswith("once"):
        check, what = (
            "normalisation",
            "double normalisation: the network seems to normalise by itself",
        )
    elif now.plain:
        check, what = "normalisation", f"normalisation is missing: {best.name} fit"
    else:
        check, what = "normalisation", f"wrong mean and std: {best.name} fit"
    fix = f"Wrap it as Classifier(net, classes, {best}, …), or remove the second normalisation."
    if now.plain:
        fix = f"Wrap it as Classifier(net, classes, {best}, …)."
    spoken = Finding(check, status, f"{what} ({message.rstrip('.')}).", sure, fix)
    other = "pixel range" if check == "normalisation" else "normalisation"
    silent = Finding(other, "ok", f"see {check}.", "low")
    return [spoken, silent] if check == "normalisation" else [silent, spoken]


def _channel_order(case: _Evidence, way: Way) -> Finding:
    """Red first, or blue first? By stored statistics on photographs, and by labels."""
    name = "channel order"
    if case.grey:
        return Finding(name, "ok", "one channel.")
    turned = _best_turn(case, way)
    labels = _labels_speech(case, way, turned, skip=0)
    photos = _colour_sigmas(case, way, turned, case.patches)
    if photos is None and not labels.words:
        why = "cannot tell: no batch-norm statistics and no labels."
        return Finding(name, "skipped", why, "low")
    if photos is None:
        return _colour_verdict(labels, None, labels.words)
    sigmas, fit = photos
    message = f"stored statistics prefer BGR by {sigmas:+.1f} σ on photographs"
    own = None
    if case.probes.source == "data" and case.images is case.probes.x:
        own = _colour_sigmas(case, way, turned, case.images)
    if own is not None:
        message += f", {own[0]:+.1f} σ on the data"
        fit = max(fit, own[1])
        agree = sigmas * own[0] > 0
        sigmas = (sigmas + own[0]) / 2**0.5 if agree else min(sigmas, own[0], key=abs)
    message += f"; {labels.words}" if labels.words else ""
    if fit > GOOD_FIT:  # other images than it was trained on: a hint at most
        sigmas = min(sigmas, COLOUR_SOME)
    return _colour_verdict(labels, sigmas, message)


def _best_turn(case: _Evidence, way: Way) -> Way:
    """Blue first before the normalisation or after it, whichever the stored statistics prefer."""
    before = replace(way, name="blue first", turn="before")
    after = replace(before, turn="after")
    if len(set(way.mean)) == len(set(way.std)) == 1:  # the same
        return before
    fits = {turned: case.layers(turned, case.patches) for turned in (before, after)}
    if not fits[before]:
        return before
    return min(fits, key=lambda turned: statistics.gap(fits[turned]))


def _colour_sigmas(case: _Evidence, way: Way, turned: Way, x: Images) -> tuple[float, float] | None:
    """By how many deviations the stored statistics fit BGR better, and how far BGR is off."""
    straight, swapped = case.layers(way, x), case.layers(turned, x)
    if not straight:
        return None
    sigmas = statistics.gap_difference(straight, swapped, seed=case.seed)
    return sigmas, statistics.gap(swapped)


def _colour_verdict(labels: Heard, stored: float | None, facts: str) -> Finding:
    """Independent voices, each a standard normal where the order does not matter, are added."""
    name = "channel order"
    fix = "Feed RGB: remove the turn to BGR (OpenCV's order), or turn it back: x[:, [2, 1, 0]]."
    voices = [v for v in (stored, labels.sigmas if labels.words else None) if v is not None]
    total = sum(voices) / len(voices) ** 0.5
    agreed = len(voices) == 2 and min(voices) >= 2
    if labels.speech == "clear" or (labels.speech == "some" and total >= COLOUR_CLEAR):
        message = f"blue comes first: {facts}."
        return Finding(name, "fail", message, "high" if agreed else "medium", fix)
    if total >= COLOUR_CLEAR and not labels.words:
        return Finding(name, "warn", f"blue may come first: {facts}; {UNLABELLED}.", "medium", fix)
    if total >= COLOUR_SOME:
        return Finding(name, "warn", f"blue may come first: {facts}.", "low", fix)
    return Finding(name, "ok", f"{facts}.", "high" if total <= -COLOUR_SOME else "medium")
