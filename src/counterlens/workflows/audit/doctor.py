"""Examine one classifier and write the findings."""

from collections import Counter

from counterlens.diagnosis import examine
from counterlens.diagnosis.export import export
from counterlens.diagnosis.probes import pictures_of
from counterlens.images import fitting_size
from counterlens.runs import Number
from counterlens.workflows._shared.objects import Objects, headline
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, running
from counterlens.workflows.audit.options import DoctorOptions


@takes(DoctorOptions)
def doctor(model: object, data: object = None, *, options: DoctorOptions) -> Result:
    """Is this classifier wrapped right? The result has the table `doctor`.

    Args:
        model: a spec, a Classifier, or a torch module; see `as_classifier`.
        data: images it should know, labelled at best: a spec or an object, see `as_image_set`.
            Default: shipped photographs.

    >>> import counterlens as cl
    >>> result = cl.doctor("zoo:cifar10-plain-small", "photos/")    # doctest: +SKIP
    >>> result.numbers["doctor.fail"].value, result.table("doctor")    # doctest: +SKIP
    """
    objects = Objects(options.device, None, options.seed, options.trust_remote_code)
    spec = objects.model_spec(model)
    source = None if data is None else objects.set_spec(data)
    classifier = objects.load(spec)
    size, channels = fitting_size(classifier.preprocess), classifier.channels
    images = None if source is None else objects.open(source, size=size, channels=channels)
    findings = examine(classifier, images, seed=options.seed)
    if options.exported_from is not None:
        source_spec = objects.model_spec(options.exported_from)
        pictures = pictures_of(classifier, images, seed=options.seed)
        findings.append(export(classifier, objects.load(source_spec), pictures))
    inputs = {"model": spec, "data": source}
    with running("doctor", options, name=classifier.name, inputs=inputs) as run:
        run.note(**facts(classifier, images, seed=options.seed))
        run.note(model=headline(spec, classifier))
        run.write_table("doctor", [finding.row() for finding in findings])
        counts = Counter(finding.status for finding in findings)
        protocol = f"checks of the doctor on {source or 'shipped photographs'}"
        run.add_numbers(
            {
                f"doctor.{status}": Number(n, len(findings), n, n, protocol)
                for status, n in ((status, counts[status]) for status in ("fail", "warn"))
            }
        )
    return Result(run)
