"""Checks on what comes out: count, finiteness, kind, repeatability, independence, saturation."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from counterlens.diagnosis.finding import Finding
from counterlens.types import Images, Logits

OutputKind = Literal["logits", "probabilities", "independent probabilities", "log-probabilities"]

NOISE_FAIL, NOISE_WARN = 1e-3, 1e-4
"""Change between equal passes, as a share of the logits' spread."""
BATCH_FAIL, BATCH_WARN = 1e-2, 2e-3
"""Change of an image's logits with its neighbours; kernels differ with the batch size."""
SATURATED_ROWS, SATURATED_MARGIN = 0.5, 50.0
UNCHANGED = 0.02
"""Standard deviation over images below which no label of a multi-label model moves."""
ENOUGH = 8
"""Fewer images say nothing about a model."""
_NOISY = ("batchnorm", "dropout", "droppath", "dropblock", "stochasticdepth", "rrelu", "gumbel")


def mode(net: nn.Module) -> Finding:
    """Is any part still in training mode?"""
    training = [(name, part) for name, part in net.named_modules() if part.training]
    acting = [
        f"{name} ({type(part).__name__})"
        for name, part in training
        if any(word in type(part).__name__.lower().replace("_", "") for word in _NOISY)
        and getattr(part, "p", 1.0) != 0.0  # a dropout of rate 0 does nothing
    ]
    fix = "Call model.eval() before wrapping or returning the model."
    if acting:
        message = f"{len(acting)} layers act as in training: {', '.join(acting[:2])}"
        return Finding(
            "training mode", "fail", message + ("…." if acting[2:] else "."), "high", fix
        )
    if training:
        message = f"{len(training)} parts are in training mode, none of a kind known to act on it."
        return Finding("training mode", "warn", message, "medium", fix)
    return Finding("training mode", "ok", "every part is in evaluation mode.")


def class_count(outputs: int, classes: Sequence[str], unmatched: Sequence[str]) -> Finding:
    """Does each output have a name, and does the model know the data's classes?"""
    name = "class count"
    if outputs != len(classes):
        fix = f"Give {outputs} names: Classifier(net, classes=[…])."
        if outputs == len(classes) + 1:
            fix = (
                "Drop the extra output (a background class often comes first: net(x)[:, 1:]), "
                f"or give {outputs} names."
            )
        message = f"the network has {outputs} outputs, the class list {len(classes)} names."
        return Finding(name, "fail", message, "high", fix)
    doubles = len(classes) - len(set(classes))
    if doubles:
        message = f"{doubles} of the {len(classes)} class names occur twice."
        return Finding(name, "warn", message, "high", "Give every class its own name.")
    if unmatched:
        message = (
            f"{len(unmatched)} classes of the data are not among the model's: {_some(unmatched)}."
        )
        fix = "Rename the data's classes after the model's, or examine the model they belong to."
        return Finding(name, "warn", message, "high", fix)
    return Finding(name, "ok", f"{outputs} outputs, {len(classes)} names.")


def finite(z: Logits) -> Finding:
    """Are all outputs numbers?"""
    bad = int((~torch.isfinite(z)).any(1).sum())
    if not bad:
        return Finding("finite outputs", "ok", f"finite on all {len(z)} images.")
    message = f"NaN or infinite outputs on {bad} of {len(z)} images."
    fix = (
        "Look for a division by zero, a logarithm of 0 or half precision: run the network in "
        "float32, and check that its weights are finite."
    )
    return Finding("finite outputs", "fail", message, "high", fix)


def kind_of(z: Logits) -> OutputKind:
    """What rows of outputs are, by their sums.

    >>> kind_of(torch.tensor([[0.2, 0.8], [0.5, 0.5]])), kind_of(torch.tensor([[2.0, -1.0]]))
    ('probabilities', 'logits')
    """
    z = z.double()
    sums = z.sum(1)
    alike = (sums - sums.mean()).abs().max() <= 1e-3 * sums.mean().abs()
    one_or_percent = min(abs(sums.mean().item() - 1), abs(sums.mean().item() / 100 - 1)) < 1e-3
    if z.min() >= -1e-6 and alike and one_or_percent:
        return "probabilities"
    if z.logsumexp(1).abs().max() < 1e-3:
        return "log-probabilities"
    if z.min() >= 0 and z.max() <= 1:
        return "independent probabilities"
    return "logits"


def logits(z: Logits, stretched: Logits) -> Finding:
    """Are the outputs logits?

    Args:
        z: outputs on images.
        stretched: outputs on the same images with their contrast raised far out of range; an
            untrained network's small logits may all lie in [0, 1], but then not these.
    """
    kind = kind_of(z)
    low, high = z.min().item(), z.max().item()
    if kind == "probabilities":
        message = f"rows are ≥ 0 and sum to {z.double().sum(1).mean().item():.4g}: probabilities."
        fix = "Remove the softmax: return the logits before it."
        return Finding("logits", "fail", message, "high", fix)
    if kind == "independent probabilities":
        squashed = bool(stretched.min() >= 0 and stretched.max() <= 1)
        message = f"all outputs lie in [{low:.3g}, {high:.3g}] and rows do not sum to 1: a sigmoid?"
        fix = "Remove the sigmoid: return the logits before it."
        certain = squashed and z.shape[1] >= 4
        status: Literal["fail", "warn", "ok"] = "fail" if certain else "warn" if squashed else "ok"
        if status == "ok":
            message = f"outputs span [{low:.3g}, {high:.3g}], and leave [0, 1] on harder images."
        return Finding(
            "logits", status, message, "high" if certain else "low", fix if squashed else ""
        )
    if kind == "log-probabilities":
        message = (
            "rows are log-probabilities; softmax of them gives the same probabilities. Harmless."
        )
        return Finding("logits", "ok", message)
    return Finding(
        "logits", "ok", f"outputs span [{low:.3g}, {high:.3g}] and are no probabilities."
    )


def log_probs(z: Logits, kind: OutputKind) -> Logits:
    """Log-probabilities of outputs of any kind, so that later checks can go on."""
    if kind in ("logits", "log-probabilities"):
        return z.log_softmax(1)
    p = z.clamp_min(1e-12)
    return (p / p.sum(1, keepdim=True)).log()


def repeatable(forward: Callable[[Images], Logits], x: Images) -> Finding:
    """Does the same image get the same answer, pass after pass?"""
    first = forward(x)
    change = max(_change(first, forward(x)) for _ in range(2))
    if change <= NOISE_WARN:
        return Finding("randomness", "ok", "three passes over the same images agree.")
    message = f"logits of the same images change between passes by {change:.2g} of their spread."
    fix = (
        "Switch random layers off (model.eval(), no dropout, noise or random resizing in forward); "
        "a defence that is random on purpose needs an attack that averages over it."
    )
    status: Literal["fail", "warn"] = "fail" if change > NOISE_FAIL else "warn"
    return Finding("randomness", status, message, "high", fix)


def independent(forward: Callable[[Images], Logits], x: Images) -> Finding:
    """Does an image's answer stay the same when its neighbours in the batch change?

    Randomness is the other check's business: what two equal passes change is taken off.
    """
    batched, again = forward(x), forward(x)
    alone = torch.cat([forward(x[i : i + 1]) for i in range(min(3, len(x)))])
    change = _change(batched[: len(alone)], alone) - 2 * _change(batched, again)
    if change <= BATCH_WARN:
        return Finding("batch independence", "ok", "images alone and in a batch get equal logits.")
    message = (
        f"an image's logits change by {change:.2g} of their spread when it is alone in a batch."
    )
    fix = "Let batch norm use its stored statistics: model.eval(), track_running_stats=True."
    if change > BATCH_FAIL:
        return Finding("batch independence", "fail", message, "high", fix)
    return Finding("batch independence", "warn", message, "medium", fix)


def saturation(z: Logits) -> Finding:
    """Do the logits leave room for confidence, and for gradients of the cross-entropy?"""
    top = z.double().topk(2, dim=1).values
    margin = top[:, 0] - top[:, 1]
    exact = (z.float().softmax(1).max(1).values >= 1).double().mean().item()
    middle = margin.median().item()
    if exact < SATURATED_ROWS and middle < SATURATED_MARGIN:
        return Finding("saturation", "ok", f"median margin of the logits {middle:.3g}.")
    message = (
        f"median margin of the logits {middle:.3g}; {exact:.0%} of the confidences are exactly 1 "
        "in float32, where the cross-entropy has no gradient."
    )
    fix = "Look for a forgotten scale or temperature on the logits, e.g. net(x) / 100."
    return Finding("saturation", "warn", message, "medium", fix)


def information(log_p: Logits) -> float:
    """How much the answer tells about the image: I(image; answer), nats.

    0 where every image gets the same answer, at most log(min(images, classes)).
    """
    p = log_p.double().exp()
    overall = p.mean(0).clamp_min(1e-300).log()
    return (p * (log_p.double().clamp_min(-690) - overall)).sum(1).mean().item()


def answers(log_p: Logits, *, fresh_norms: bool) -> Finding:
    """Do the answers depend on the image, as a trained network's do?"""
    if len(log_p) < ENOUGH:
        return Finding("answers", "skipped", f"{len(log_p)} images are too few to tell.", "low")
    mutual = information(log_p)
    confidence = log_p.exp().max(1).values.mean().item()
    kinds = len(set(log_p.argmax(1).tolist()))
    facts = (
        f"{kinds} different answers on {len(log_p)} images, mean confidence {confidence:.2f}, "
        f"mutual information of image and answer {mutual:.2g} nats"
    )
    if fresh_norms or mutual < 0.02:
        why = "; batch norms hold their initial statistics" if fresh_norms else ""
        fix = "Load the trained weights, and check that every key of the file was used."
        return Finding("answers", "warn", f"looks untrained: {facts}{why}.", "medium", fix)
    return Finding("answers", "ok", f"{facts}.")


def label_answers(z: Logits, *, fresh_norms: bool) -> Finding:
    """Do the labels depend on the image, where each has a logit of its own?"""
    if len(z) < ENOUGH:
        return Finding("answers", "skipped", f"{len(z)} images are too few to tell.", "low")
    p = z.double().sigmoid()
    spread = p.std(0).max().item()
    facts = (
        f"the probability of a label varies by up to {spread:.2g} (standard deviation over "
        f"{len(z)} images)"
    )
    if fresh_norms or spread < UNCHANGED:
        why = "; batch norms hold their initial statistics" if fresh_norms else ""
        fix = "Load the trained weights, and check that every key of the file was used."
        return Finding("answers", "warn", f"looks untrained: {facts}{why}.", "medium", fix)
    return Finding("answers", "ok", f"{facts}.")


def _change(a: Logits, b: Logits) -> float:
    spread = a.double().std().clamp_min(1e-30)
    change = (a.double() - b.double()).abs().max() / spread
    return float("inf") if change.isnan() else change.item()


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
