"""Neurons: what drives units, components and logits of a classifier.

Each method is a function of the opened classifier and its options. It refuses what cannot work,
opens what it needs, and returns the work that is done once the run exists.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from counterlens.errors import InputError
from counterlens.runs import key_part
from counterlens.scale import check_place
from counterlens.workflows._shared.generation.edit_settings import edited
from counterlens.workflows._shared.objects import headline, load_all, model_given, words
from counterlens.workflows._shared.options import takes_by
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import facts, logger, running
from counterlens.workflows.neurons.diffusion import draw
from counterlens.workflows.neurons.edits import EDIT, counterfactual
from counterlens.workflows.neurons.job import NeuronJob, NeuronWork
from counterlens.workflows.neurons.npca import npca
from counterlens.workflows.neurons.options import METHODS, DrawOptions, NeuronOptions
from counterlens.workflows.neurons.pixel import show
from counterlens.workflows.neurons.spurious import spurious

NEURONS: Mapping[str, Callable[[NeuronJob, Any], NeuronWork]] = {
    "show": show,
    "diffusion": draw,
    "npca": npca,
    "spurious": spurious,
    "counterfactual": counterfactual,
}


@takes_by(METHODS, default="show")
def neurons(model: object, *, method: str, options: NeuronOptions) -> Result:
    """Show what units, components and logits of a model react to.

    show            pictures from nothing that drive a unit or logit; where a picture drives it
    diffusion       the same by a generator, beside the best real images and prompts
    npca            components of a class: what they contribute, images, the harm they do
    spurious        features ranked by how far they live on the background
    counterfactual  a picture with a feature raised and lowered by a generator, the object held

    Args:
        model: a spec, a Classifier or a torch module; see `as_classifier`.
        method: one of the above.

    >>> import counterlens as cl
    >>> model, data = "zoo:cifar10-plain-small", "sample:cifar10"
    >>> result = cl.neurons(model, method="npca", npca="cat:0", data=data, limit=100, quiet=True)
    >>> result.table("components")[0]["class"]
    'cat'
    """
    _check(method, options)
    given = model_given(model, options.device)
    (classifier,) = load_all(
        [given], device=options.device, trust_remote_code=options.trust_remote_code
    )
    work = NEURONS[method](NeuronJob(given, classifier, logger(options)), options)
    name = f"{key_part(classifier.name)}-{key_part(_named(method, options))}"
    inputs = {"model": words(given), "method": method}
    with running("neurons", _written(options), name=name, inputs=inputs) as run:
        run.note(**facts(classifier, seed=options.seed))
        run.note(model=headline(words(given), classifier))
        rows, numbers = work(run)
        if rows:
            run.write_table("neurons", rows)
        run.add_numbers(numbers)
    return Result(run)


def _check(method: str, options: Any) -> None:
    """Refuse what cannot work before anything is loaded."""
    named = [getattr(options, name, ()) for name in ("unit", "logit", "npca")]
    if method != "spurious" and not any(named):
        flags = {"unit": "--unit NUMBER", "logit": "--logit CLASS", "npca": "--npca CLASS:NUMBER"}
        able = [flag for name, flag in flags.items() if hasattr(options, name)]
        raise InputError(f"no feature given, expected {' or '.join(able)}.")
    for name in ("limit", "count", "steps"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}, expected 1 or more.")
    if method == "counterfactual" and not options.image:
        raise InputError("no image given, expected image=IMAGE, which is changed.")
    if getattr(options, "npca", ()) and not options.data:
        raise InputError("npca needs images of the classes: data=SPEC.")
    if hasattr(options, "changes"):
        edited(EDIT, options.changes)
    if isinstance(options, DrawOptions):
        check_place(options.on)
        if options.similar < 0:
            raise InputError(f"similar is {options.similar}, expected 0 or more.")
        if options.captioner and not options.data:
            raise InputError("captioner needs real images to describe: data=SPEC.")


def _named(method: str, options: Any) -> str:
    """What a run folder is called after: the method, or the features."""
    parts = [str(n) for name in ("unit", "logit", "npca") for n in getattr(options, name, ())]
    return "spurious" if method == "spurious" else "-".join(parts)


def _written(options: Any) -> Any:
    """The options as the manifest holds them: specs in place of objects."""
    changes: dict[str, Any] = {}
    if hasattr(options, "image"):
        changes["image"] = tuple(words(one) for one in options.image)
    if getattr(options, "data", None) is not None:
        changes["data"] = words(options.data)
    return replace(options, **changes)
