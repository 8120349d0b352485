"""What a repaired network is measured by: groups, attacks, images from outside.

    groups.worst, accuracy.top1     every image
    robust.BALL.accuracy            some of them under attack: 20 steps of PGD to choose, the attack
                                    version of the options to prove
    ood.NAME.auroc                  confidence on these images against an out-distribution set

The out-distribution sets are halved by content, one half for each split.

Paper: DeLong et al. 1988 (delong1988), the difference of two AUROCs on the same images.
Differs: nothing.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import softmax

from counterlens.classifier import Classifier
from counterlens.data.sets import sample_rows, subset
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.losses import Attack
from counterlens.metrics.intervals.closed_form import Z, delong_parts, holding
from counterlens.models.sources.repaired import put_state
from counterlens.progress import doing
from counterlens.runs import Number, key_part
from counterlens.search import AttackSettings, robust
from counterlens.types import Images, Labels
from counterlens.workflows.audit.attacks.search import pixels
from counterlens.workflows.audit.attacks.spec import parse_attack
from counterlens.workflows.repair import features
from counterlens.workflows.repair.candidates import Candidate
from counterlens.workflows.repair.groups import content_hashes
from counterlens.workflows.repair.heads import Examples, Right, Vector
from counterlens.workflows.repair.options import RepairOptions
from counterlens.workflows.repair.receipt import KEYS, change, paired


def keys_of(options: RepairOptions, names: Sequence[str]) -> tuple[str, ...]:
    """Every key that a receipt with these options has.

    Args:
        names: of the out-distribution sets.
    """
    attacked = [attack_key(text) for text in options.attack]
    return (*KEYS, *attacked, *(ood_key(name) for name in names))


def attack_key(text: str) -> str:
    """The key of robust accuracy in a ball.

    >>> attack_key("linf:8/255")
    'robust.linf-8_255.accuracy'
    """
    return f"robust.{key_part(text)}.accuracy"


def ood_key(name: str) -> str:
    """The key of the AUROC against a set."""
    return f"ood.{key_part(name)}.auroc"


def halves(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """An out-distribution set in two halves by the hash of its pictures."""
    second = np.array([int(one[:2], 16) % 2 == 1 for one in content_hashes(images)])
    parts = [np.flatnonzero(~second), np.flatnonzero(second)]
    if not all(len(part) for part in parts):
        raise InputError(
            f"{images.name} has {len(images)} images: too few for two halves of ood=SPEC."
        )
    return subset(images, parts[0]), subset(images, parts[1])


QUICK = 20


@dataclass
class Split:
    """One split, on which candidates are measured; what was measured is stored.

    Args:
        classifier: the model, unchanged.
        images: the pictures of the split.
        examples: their features as a candidate sees them.
        outside: its halves of the out-distribution sets, by name.
        store: features of the unchanged network.
        options: of the command.
        proves: whether attacks are those of the proof; else a quick one.
    """

    classifier: Classifier
    images: ImageSet
    examples: Callable[[Candidate], Examples]
    outside: Mapping[str, ImageSet]
    store: features.FeatureStore
    options: RepairOptions
    proves: bool
    attacked: dict[tuple[str, str], Right] = field(default_factory=dict)
    confident: dict[tuple[str, str], tuple[Vector, Vector]] = field(default_factory=dict)
    trust: dict[tuple[str, str], Mapping[str, object]] = field(default_factory=dict)

    def right(self, one: Candidate) -> Right:
        """Which answers of a candidate are right."""
        assert one.head is not None
        return self.examples(one).right(one.head)

    def value(self, one: Candidate, key: str) -> float:
        """A key of one candidate."""
        examples = self.examples(one)
        assert one.head is not None
        if key == "groups.worst":
            return examples.worst(one.head)
        if key == "accuracy.top1":
            return examples.accuracy(one.head)
        if key.startswith("robust."):
            return float(self.held(one, key).mean())
        inside, outside = self.confidences(one, key)
        return float(delong_parts(inside, outside)[0].mean())

    def gap(self, key: str, before: Candidate, after: Candidate) -> Number:
        """The change of a key from one candidate to another on the same images."""
        if key in KEYS:
            groups = self.examples(before).by.groups
            return change(key, self.right(before), self.right(after), groups)
        if key.startswith("robust."):
            return self._robust_gap(key, before, after)
        return auroc_gap(self.confidences(before, key), self.confidences(after, key))

    def _robust_gap(self, key: str, before: Candidate, after: Candidate) -> Number:
        row = paired(self.held(before, key), self.held(after, key))
        version = self.options.attack_version
        protocol = (
            f"accuracy under attack after − before on the same images (version {version}, an upper "
            "bound of each); Newcombe's paired interval"
        )
        trust = worst_trust([self.trust[one.name, key] for one in (before, after)])
        return Number(row["change"], row["n"], row["low"], row["high"], protocol, trust=trust)

    def held(self, one: Candidate, key: str) -> Right:
        """Which attacked images stay right."""
        if (one.name, key) not in self.attacked:
            text = next(text for text in self.options.attack if attack_key(text) == key)
            labels = self.examples(one).by.labels
            rows = sample_rows(
                len(labels), min(len(labels), self.options.attack_points), self.options.seed
            )
            network = network_of(self.classifier, one)
            doing(f"{one.name}: attack {text}")
            x = pixels(self.images, rows, network).to(network.mean.device)
            y = torch.from_numpy(labels[rows]).to(network.mean.device)
            self.attacked[one.name, key] = self._attacked(one, key, (network, x, y), text)
        return self.attacked[one.name, key]

    def _attacked(
        self, one: Candidate, key: str, seen: tuple[Classifier, Images, Labels], text: str
    ) -> Right:
        (network, x, y), ball = seen, parse_attack(text)
        if not self.proves:
            points = Attack(ball, ((0, QUICK),), step_size=None).near(network, x, y, 0)
            with torch.no_grad():
                right: Right = (network(x).argmax(1) == y).cpu().numpy()
                right &= (network(points).argmax(1) == y).cpu().numpy()
            return right
        result = robust(
            network, x, y, ball,
            version=self.options.attack_version,  # type: ignore[arg-type]
            settings=AttackSettings(seed=self.options.seed, trust=one.kind != "placebo"),
        )  # fmt: skip
        self.trust[one.name, key] = result.trust.to_json()
        robust_points: Right = result.robust.cpu().numpy()
        return robust_points

    def confidences(self, one: Candidate, key: str) -> tuple[Vector, Vector]:
        """Confidence on the images of the split and on those from outside."""
        if (one.name, key) not in self.confident:
            assert one.head is not None
            name = next(name for name in self.outside if ood_key(name) == key)
            network, store = self.classifier, self.store
            if one.tuned is not None:
                network, store = one.tuned.network, features.FeatureStore(None, {})
            x = features.compute(network, self.outside[name], store, name=f"features of {name}")
            sets = (self.examples(one).x, x.astype(np.float64))
            both = [softmax(one.head.logits(part), axis=1).max(1) for part in sets]
            self.confident[one.name, key] = (both[0], both[1])
        return self.confident[one.name, key]


def network_of(classifier: Classifier, one: Candidate) -> Classifier:
    """A candidate as a whole network."""
    if one.tuned is not None:
        return one.tuned.network
    assert one.head is not None
    net = copy.deepcopy(classifier)
    put_state(net, one.head.state())
    return net.eval()


def auroc_gap(before: tuple[Vector, Vector], after: tuple[Vector, Vector]) -> Number:
    """Change of an AUROC on the same images, with DeLong's interval of the difference.

    Equation: delong1988 (6)   var = var(V₁₀ − V₁₀')/m + var(V₀₁ − V₀₁')/n

    Args:
        before, after: scores of the images of the split and of those from outside, in one order.
    """
    old, new = delong_parts(*before), delong_parts(*after)
    gaps = [b - a for a, b in zip(old, new, strict=True)]
    value = float(gaps[0].mean())
    spread = sum(float(gap.var(ddof=1)) / len(gap) for gap in gaps if len(gap) > 1)
    half = Z * float(np.sqrt(spread))
    low, high = holding(value, value - half, value + half, (-1.0, 1.0))
    protocol = "AUROC of confidence, after − before on the same images; DeLong's paired interval"
    return Number(value, min(map(len, gaps)), low, high, protocol)


def worst_trust(verdicts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The verdict of the less trusted of several attack results."""
    order = ("do not quote", "weak", "trusted")
    return dict(min(verdicts, key=lambda one: order.index(str(one["verdict"]))))
