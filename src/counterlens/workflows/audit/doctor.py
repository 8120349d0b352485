"""Examine one classifier and write the findings."""

from collections import Counter

from counterlens.data import open_set
from counterlens.doctor import examine
from counterlens.models import load
from counterlens.models.weights import weights_hash
from counterlens.report import render
from counterlens.runs import Number, Run, new_folder
from counterlens.workflows._shared.options import settings_of, takes
from counterlens.workflows.audit.options import DoctorOptions


@takes(DoctorOptions)
def doctor(model: str, data: str | None = None, *, options: DoctorOptions) -> Run:
    """Is this classifier wrapped right? Writes a run with the table `doctor`.

    Args:
        model: spec of the classifier.
        data: spec of images it should know, labelled at best. Default: shipped photographs.
    """
    seed, trust = options.seed, options.trust_remote_code
    classifier = load(model, device=options.device, trust_remote_code=trust)
    images = open_set(data, seed=seed) if data is not None else None
    findings = examine(classifier, images, seed=seed)

    settings = settings_of(options, model=model, data=data)
    run = Run.create(options.out or new_folder("doctor", classifier.name), "doctor", settings)
    run.write_table("doctor", [finding.row() for finding in findings])
    counts = Counter(finding.status for finding in findings)
    protocol = f"checks of the doctor on {data or 'shipped photographs'}"
    run.add_numbers(
        {
            f"doctor.{status}": Number(n, len(findings), n, n, protocol)
            for status, n in ((status, counts[status]) for status in ("fail", "warn"))
        }
    )
    run.note(
        model=model,
        data=images.name if images is not None else None,
        classes=len(classifier.classes),
        weights_hash=weights_hash(classifier),
        data_fingerprint=images.fingerprint if images is not None else None,
        seed=seed,
        device=str(classifier.mean.device),
    )
    render(run)
    run.finish()
    return run
