"""Numbers, tables and pictures of the labelled set: accuracy, calibration, confusions, cues."""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from counterlens import metrics
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.images import ImageSet
from counterlens.runs import Number, Run, key_part, store_logits
from counterlens.workflows.audit import gallery
from counterlens.workflows.audit.outputs import Outputs
from counterlens.workflows.audit.protocol import Inside, Protocol, choose
from counterlens.workflows.audit.temperature import fit_temperature, set_apart


def labelled_numbers(
    outputs_of: Outputs, images: ImageSet, protocol: Protocol, held: ImageSet | None
) -> tuple[Inside, Int64[np.ndarray, "n"]]:
    """Numbers and tables on the labelled set, without the share the temperature is fitted on.

    Returns the view on the images reported on, and which rows of the set they are.
    """
    run, seed = outputs_of.run, outputs_of.settings.seed
    outputs = outputs_of(images, "in")
    labels = torch.from_numpy(protocol.labels)
    known = protocol.known
    if held is not None:
        theirs = choose(outputs_of.classifier, held)
        some = torch.from_numpy(np.flatnonzero(theirs.known))
        fit_logits = theirs.logits(outputs_of(held, "calibrate"))[some]
        fit_labels = torch.from_numpy(theirs.labels)[some]
        source = f"{len(some)} images of {held.name}"
        reported = torch.from_numpy(np.flatnonzero(known))
    else:
        apart = set_apart(images.ids, known)
        some = torch.from_numpy(np.flatnonzero(apart))
        reported = torch.from_numpy(np.flatnonzero(known & ~apart))
        fit_logits, fit_labels = protocol.logits(outputs[some]), labels[some]
        source = f"{len(some)} images of {images.name} set apart by id and not reported on"
    if not len(reported):
        raise InputError(
            f"{images.name} leaves no image to report on: {len(images)} images in all. "
            "Give more images, or calibrate on others: calibrate=SPEC."
        )
    logits, true = protocol.logits(outputs[reported]), labels[reported]
    fitted, numbers = fit_temperature(fit_logits, fit_labels, source, seed)
    temperature = fitted or 1.0

    numbers |= metrics.classification_numbers(
        logits, true, temperature=fitted, protocol=protocol.text, seed=seed
    )
    over_all = protocol.right_over_all(outputs[reported], true)
    numbers["accuracy.top1_all"] = metrics.share(
        over_all, f"arg-max over all {outputs.shape[1]} classes of the model"
    )
    numbers |= _cues(images, protocol, outputs, reported)
    run.add_numbers(numbers)

    after = metrics.judge(logits, true, temperature=temperature)
    _tables(run, logits, true, protocol, after if fitted else None)
    run.write_table("confidence_hist", metrics.confidence_hist(after.confidence, name=images.name))
    ids = [images.ids[i] for i in reported.tolist()]
    store_logits(
        run, key_part(images.name), logits.numpy(), labels=true.tolist(), ids=ids,
        temperature=temperature,
    )  # fmt: skip
    gallery.mistakes(run, images, reported, after, true, protocol.classes)
    return Inside(protocol, outputs[reported], true, temperature), reported.numpy()


def _tables(
    run: Run, logits: Tensor, true: Tensor, protocol: Protocol, after: metrics.Judged | None
) -> None:
    """Tables by class, confusion, confidence and coverage; `after` a fitted temperature."""
    before = metrics.judge(logits, true)
    stages = {"before": before} | ({"after": after} if after else {})
    k = logits.shape[1]
    run.write_table("per_class", metrics.per_class(before, true, protocol.classes))
    run.write_table("confusions", metrics.confusions(before.answer, true, protocol.classes))
    run.write_table(
        "reliability",
        [
            row
            for when, one in stages.items()
            for row in metrics.reliability(one.confidence, one.right, classes=k, when=when)
        ],
    )
    run.write_table("response_rate", metrics.response_rate(before.score, before.right))


def _cues(
    images: ImageSet, protocol: Protocol, outputs: Tensor, reported: Tensor
) -> dict[str, Number]:
    """Shape and texture bias, where the pictures carry two cues."""
    votes = cue_votes(images, protocol, outputs[reported], reported)
    if votes is None:
        return {}
    return {
        "bias.shape": metrics.shape_number(votes, protocol=protocol.text),
        "bias.texture": metrics.texture_number(votes, protocol=protocol.text),
    }


def cue_votes(
    images: ImageSet, protocol: Protocol, logits: Tensor, rows: Tensor
) -> metrics.CueVotes | None:
    """Which cue the outputs of some rows go with; None where pictures do not carry two cues."""
    textures = images.extra.get("texture_labels")
    if textures is None or protocol.matching.map.rule != "mean":
        return None
    texture = torch.from_numpy(protocol.matching.relabel(np.asarray(textures, dtype=np.int64)))
    shape = torch.from_numpy(protocol.labels)
    return metrics.cue_votes(logits, shape[rows], texture[rows], protocol.matching.map.groups)


def background_gap(outputs_of: Outputs, images: ImageSet) -> dict[str, Number]:
    """The background gap, where the data is the background challenge."""
    if images.space != "imagenet-9":
        return {}
    root = outputs_of.settings.data.partition("@")[2]
    right, ids = [], []
    for variant in ("mixed_same", "mixed_rand"):
        try:
            part = open_set(
                f"known:imagenet-9/{variant}@{root}",
                limit=outputs_of.settings.limit,
                seed=outputs_of.settings.seed,
            )
        except InputError as error:
            return {"bias.background_gap": Number.missing(str(error), "ImageNet-9")}
        theirs = choose(outputs_of.classifier, part)
        outputs = outputs_of(part, "background")
        right.append(theirs.right_over_all(outputs, torch.from_numpy(theirs.labels)))
        ids.append(list(part.ids))
    return {"bias.background_gap": metrics.background_number(*right, ids=(ids[0], ids[1]))}
