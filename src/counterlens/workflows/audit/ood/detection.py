"""How far an unknown set is distinguished by confidence alone."""

from counterlens import metrics
from counterlens.images import ImageSet
from counterlens.runs import key_part, store_logits
from counterlens.workflows.audit import gallery
from counterlens.workflows.audit.outputs import Outputs
from counterlens.workflows.audit.protocol import Inside


def detection(outputs_of: Outputs, other: ImageSet, inside: Inside) -> None:
    """How far an unknown set is distinguished by confidence alone."""
    view = inside.against(other, outputs_of.classifier)
    logits = view.protocol.logits(outputs_of(other, "ood"))
    run = outputs_of.run
    numbers = metrics.ood_numbers(
        view.logits,
        logits,
        name=other.name,
        temperature=view.temperature,
        protocol=view.protocol.text,
        seed=outputs_of.settings.seed,
    )
    run.add_numbers(numbers)
    answers = metrics.answers(logits, temperature=view.temperature)
    histograms = [row for row in run.table("confidence_hist") if row["set"] != other.name]
    rows = metrics.confidence_hist(answers.confidence, name=other.name)
    run.write_table("confidence_hist", [*histograms, *rows])
    store_logits(
        run,
        key_part(other.name),
        logits.numpy(),
        labels=[-1] * len(logits),
        ids=list(other.ids),
        role="ood",
        temperature=view.temperature,
    )
    gallery.surest(run, other, answers, view.protocol.classes)
