"""What a comparison can be asked to do."""

from counterlens.workflows._shared.options import Output, Pipeline, option, record


@record
class CompareOptions(Output, Pipeline):
    """Options of compare."""

    about: tuple[str, ...] = option(
        (),
        help='What a card does not say: "NAME: family=…, attention=…, training=…".',
        unit="FACTS",
        group="Models and data",
        scope="run",
    )
    require: tuple[str, ...] = option(
        (),
        help='Release gate, old run first, e.g. "flips.negative.high<=0.02".',
        unit="RULE",
        group="Gates",
    )


@record
class RatchetOptions(Output):
    """Options of ratchet."""

    add: str | None = option(
        None,
        help="Collect images of RUN: wrong (all it gets wrong), or a file of reviewed ids.",
        unit="wrong|FILE",
        group="Suite",
    )
    require: tuple[str, ...] = option(
        (), help='Release gate, e.g. "ratchet.open<=20".', unit="RULE", group="Gates"
    )
