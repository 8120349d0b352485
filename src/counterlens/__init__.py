"""counterlens: the debugger for image classifiers.

    import counterlens as cl

    model = cl.Classifier(net, classes=names, mean=0.5, std=0.25, size=32)   # or "timm:resnet50"
    result = cl.audit(model, data, ood={"noise": "noise:uniform"})   # a DataLoader, a folder, …
    result.numbers["accuracy.top1"]                                  # value, low, high, n, protocol
    result.show()                                                    # the report: one page

Workflows. Each takes objects as well as specs and returns a Result:
    audit       measure accuracy, calibration, unknown images, robustness
    doctor      is the model wrapped right? Ask before quoting numbers
    compare     several audits side by side, paired
    ratchet     failures that were mended must not come back
    evidence    an audit as one document, for those who approve it
    export      a run as other programs read it: model card, Croissant, FiftyOne, Label Studio
    explain     what would have to change in an image, and where the model looks
    evaluate_counterfactuals   methods of `explain` side by side, measured
    disagree    images on which two models disagree
    neurons     what units of the last layer react to
    curate      find, review and freeze images that a model fails on
    outdata     clean out-of-distribution images of what shows the data's classes
    repair      refit the last layer and prove on other images what it changed
    train       train robust classifiers by recipe
    finetune    train a network further on a folder of images
    cgn         counterfactual generative networks
    reproduce   figures and tables of the papers
    zoo         what is shipped: models, generators, samples

Models and images:
    load, as_classifier, Classifier, Preprocess, bpda, one_label      open_set, as_image_set

Results:
    Result, open_result, Run, Number      CounterlensError, InputError

Parts, for programs of your own:
    pgd, apgd, robust, worst_confidence, Ball      examine      classification_numbers, ood_numbers

Importing counterlens loads no heavy library: a name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from counterlens.lazy import lazily
from counterlens.version import __version__ as __version__

if TYPE_CHECKING:
    from counterlens import cgn, curate, reproduce, zoo
    from counterlens.ball import Ball
    from counterlens.classifier import Classifier
    from counterlens.data import open_set
    from counterlens.data.sources.objects import as_image_set
    from counterlens.diagnosis import examine
    from counterlens.errors import CounterlensError, InputError
    from counterlens.metrics import classification_numbers, ood_numbers
    from counterlens.models import load
    from counterlens.models.sources.objects import as_classifier
    from counterlens.runs import Number, Run
    from counterlens.search import robust, worst_confidence
    from counterlens.search.apgd import apgd
    from counterlens.search.bpda import bpda
    from counterlens.search.pgd import pgd
    from counterlens.types import Preprocess
    from counterlens.workflows._shared.multilabel import one_label
    from counterlens.workflows._shared.result import Result, open_result
    from counterlens.workflows.audit.doctor import doctor
    from counterlens.workflows.audit.run import audit
    from counterlens.workflows.compare.ratchet import ratchet
    from counterlens.workflows.compare.run import compare
    from counterlens.workflows.curate.outdata import outdata
    from counterlens.workflows.disagree.run import disagree
    from counterlens.workflows.documents.evidence import evidence
    from counterlens.workflows.documents.export import export
    from counterlens.workflows.explain.run import explain
    from counterlens.workflows.neurons.run import neurons
    from counterlens.workflows.quality.run import evaluate as evaluate_counterfactuals
    from counterlens.workflows.repair.run import repair
    from counterlens.workflows.train.finetune import finetune
    from counterlens.workflows.train.run import train

_HOMES = {
    "Ball": "ball",
    "Classifier": "classifier",
    "CounterlensError": "errors",
    "InputError": "errors",
    "Number": "runs",
    "Preprocess": "types",
    "Result": "workflows._shared.result",
    "Run": "runs",
    "apgd": "search.apgd",
    "as_classifier": "models.sources.objects",
    "as_image_set": "data.sources.objects",
    "audit": "workflows.audit.run",
    "bpda": "search.bpda",
    "cgn": "cgn:",
    "classification_numbers": "metrics",
    "compare": "workflows.compare.run",
    "curate": "curate:",
    "disagree": "workflows.disagree.run",
    "doctor": "workflows.audit.doctor",
    "evidence": "workflows.documents.evidence",
    "evaluate_counterfactuals": "workflows.quality.run:evaluate",
    "examine": "diagnosis",
    "explain": "workflows.explain.run",
    "export": "workflows.documents.export",
    "finetune": "workflows.train.finetune",
    "load": "models",
    "neurons": "workflows.neurons.run",
    "one_label": "workflows._shared.multilabel",
    "ood_numbers": "metrics",
    "open_result": "workflows._shared.result",
    "open_set": "data",
    "outdata": "workflows.curate.outdata",
    "pgd": "search.pgd",
    "ratchet": "workflows.compare.ratchet",
    "repair": "workflows.repair.run",
    "reproduce": "reproduce:",
    "robust": "search",
    "train": "workflows.train.run",
    "worst_confidence": "search",
    "zoo": "zoo:",
}
__all__ = [
    "Ball",
    "Classifier",
    "CounterlensError",
    "InputError",
    "Number",
    "Preprocess",
    "Result",
    "Run",
    "apgd",
    "as_classifier",
    "as_image_set",
    "audit",
    "bpda",
    "cgn",
    "classification_numbers",
    "compare",
    "curate",
    "disagree",
    "doctor",
    "evaluate_counterfactuals",
    "evidence",
    "examine",
    "explain",
    "export",
    "finetune",
    "load",
    "neurons",
    "one_label",
    "ood_numbers",
    "open_result",
    "open_set",
    "outdata",
    "pgd",
    "ratchet",
    "repair",
    "reproduce",
    "robust",
    "train",
    "worst_confidence",
    "zoo",
]
__getattr__, __dir__ = lazily("counterlens", _HOMES)
