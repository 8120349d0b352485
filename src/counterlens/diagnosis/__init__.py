"""The doctor: is this classifier wrapped right? Asked before any number is quoted.

Each check says what it found, how sure it is, and what to type. Thresholds stand at the top of each
file; how they do on twelve faults and on healthy models is in docs/doctor.md.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from counterlens.classifier import Classifier
from counterlens.diagnosis import labels, outputs, statistics, wrapping
from counterlens.diagnosis.finding import Finding, refuse_if_failed
from counterlens.diagnosis.gradients import gradients
from counterlens.diagnosis.pixels import pixels
from counterlens.diagnosis.probes import Probes, gather, patchwork, rows_for
from counterlens.diagnosis.uses import uses
from counterlens.images import ImageSet
from counterlens.progress import within
from counterlens.types import Images, Logits

CHECKS = (
    *("training mode", "forward", "class count", "finite outputs", "logits", "randomness"),
    *("batch independence", "saturation", "answers", "gradients", "data pixels", "normalisation"),
    *("pixel range", "channel order", "class order", "accuracy", "uses"),
)
BATCH, SMALL = 32, 4


def examine(
    classifier: Classifier, images: ImageSet | None = None, *, seed: int = 0
) -> list[Finding]:
    """Examine a classifier; it is left as it was.

    Args:
        classifier: what is to be audited.
        images: pictures it should know, labelled at best. Without them shipped photographs serve.
        seed: draws the pictures that are looked at.

    Returns:
        One finding per check, in the order of `CHECKS`.
    """
    first = outputs.mode(classifier)
    with (
        within("doctor: checking how the model is wrapped"),
        _untouched(classifier),
        torch.no_grad(),
    ):
        findings = [first, *_run(classifier, images, seed)]
    done = {finding.check for finding in findings}
    missing = [c for c in CHECKS if c not in done]
    skipped = [Finding(c, "skipped", "an earlier check has to pass first.", "low") for c in missing]
    return sorted([*findings, *skipped], key=lambda finding: CHECKS.index(finding.check))


def _run(classifier: Classifier, images: ImageSet | None, seed: int) -> list[Finding]:
    probes = gather(classifier, images, seed=seed)
    try:
        z = _in_batches(classifier, probes.x)
    except Exception as error:  # whatever a user's network raises is the finding
        return [_no_forward(classifier, error)]
    if z.ndim != 2 or len(z) != len(probes.x) or z.shape[1] < 2:
        return [_no_forward(classifier, ValueError(f"outputs have shape {tuple(z.shape)}"))]
    findings = [
        Finding("forward", "ok", f"{len(z)} images of {classifier.preprocess.size} go through."),
        outputs.class_count(z.shape[1], classifier.classes, probes.unmatched),
        outputs.finite(z),
    ]
    if findings[-1].status == "fail":
        return [*findings, pixels(probes.raw)]
    if classifier.multilabel:
        return [*findings, *_outputs(classifier, probes, z), *_independent_labels()]
    return [*findings, *_outputs(classifier, probes, z), *_meaning(classifier, probes, z, seed)]


def _outputs(classifier: Classifier, probes: Probes, z: Logits) -> list[Finding]:
    kind, x = outputs.kind_of(z), probes.x[:SMALL]
    repeatable = outputs.repeatable(classifier, x)
    followed = gradients(classifier, x, steady=repeatable.status == "ok")
    return [
        outputs.logits(z, classifier(40 * (x - 0.5))),
        repeatable,
        outputs.independent(classifier, x),
        outputs.saturation(z),
        _answers(classifier, z, kind),
        followed,
        pixels(probes.raw),
        uses(classifier, x, gradients=followed.status == "ok"),
    ]


def _answers(classifier: Classifier, z: Logits, kind: outputs.OutputKind) -> Finding:
    if classifier.multilabel:
        return outputs.label_answers(z, fresh_norms=statistics.fresh(classifier.net))
    return outputs.answers(outputs.log_probs(z, kind), fresh_norms=statistics.fresh(classifier.net))


def _independent_labels() -> list[Finding]:
    """The checks that compare answers by softmax, which such a model does not give."""
    why = "the model gives several labels per image; this check compares single answers."
    names = ("normalisation", "pixel range", "channel order", "class order", "accuracy")
    return [Finding(name, "skipped", why, "low") for name in names]


def _meaning(classifier: Classifier, probes: Probes, z: Logits, seed: int) -> list[Finding]:
    """The checks that need to know what the outputs mean."""
    patches = probes.x
    if probes.source != "patchwork":
        patches = patchwork(classifier, rows_for(classifier.preprocess.size), seed=seed)
    now, kind = wrapping.present(classifier), outputs.kind_of(z)
    case = wrapping._Evidence(classifier.net, now, probes, patches, z, kind, seed)
    rows = (probes.labels >= 0).cpu().numpy()
    logits = outputs.log_probs(z, outputs.kind_of(z)).double().cpu().numpy()
    answers, known = logits.argmax(1)[rows], probes.labels.cpu().numpy()[rows]
    if z.shape[1] != len(classifier.classes):
        answers, known = answers[:0], known[:0]  # names and outputs do not belong together yet
    return [
        *wrapping.judge(case),
        labels.class_order(answers, known, classifier.classes, logits),
        labels.accuracy(answers, known, len(classifier.classes), mined=probes.mined),
    ]


def _in_batches(forward: Callable[[Images], Logits], x: Images) -> Logits:
    return torch.cat([forward(x[i : i + BATCH]) for i in range(0, len(x), BATCH)])


def _no_forward(classifier: Classifier, error: Exception) -> Finding:
    line = (str(error).splitlines() or [type(error).__name__])[0][:160]
    size = (classifier.channels, *classifier.preprocess.size)
    message = f"images of {size} do not go through: {line}."
    fix = (
        "Check Preprocess(size=…), the number of channels, and that forward returns logits (b, k)."
    )
    return Finding("forward", "fail", message, "high", fix)


@contextmanager
def _untouched(net: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; training flags and buffers as before outside."""
    flags = {part: part.training for part in net.modules()}
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    try:
        net.eval()
        yield
    finally:
        for part, flag in flags.items():
            part.training = flag
        with torch.no_grad():
            for name, buffer in net.named_buffers():
                if name in buffers and not torch.equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


__all__ = ["CHECKS", "Finding", "examine", "refuse_if_failed"]
