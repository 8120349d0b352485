"""Defaults of records are those of the parts that they set. Oracle: the parts' own constants."""

from dataclasses import fields

from counterlens.ball import NORMS
from counterlens.explanations.counterfactuals import dvce
from counterlens.explanations.counterfactuals.pixel import STEPS
from counterlens.explanations.counterfactuals.uvce import UVCE
from counterlens.generators.diffusion.optimise import DISAGREEMENT, ChainSettings
from counterlens.workflows._shared.generation.search_options import NORMS as SEARCH_NORMS
from counterlens.workflows.disagree.options import DisagreeOptions
from counterlens.workflows.explain import options as explain
from counterlens.workflows.explain.run import EXPLAIN
from counterlens.workflows.neurons.options import METHODS
from counterlens.workflows.neurons.run import NEURONS
from counterlens.workflows.quality.options import EvaluateOptions


def test_defaults_are_those_of_the_search() -> None:
    def of(given: DisagreeOptions, settings: ChainSettings) -> bool:
        own = (settings.updates, settings.steps, settings.guidance)
        return (given.updates, given.sampling_steps, given.guidance) == own

    edit = explain.DiffusionOptions()
    assert edit.updates == UVCE.chain.updates and edit.sampling_steps is edit.guidance is None
    helps = {one.name: one.metadata["help"] for one in fields(edit)}
    assert f"Default: {UVCE.chain.steps}, or" in helps["sampling_steps"]
    assert f"Default: {UVCE.chain.guidance:g}, or" in helps["guidance"]
    assert of(DisagreeOptions(), DISAGREEMENT)
    assert explain.DvceOptions().sampling_steps == dvce.PAPER.steps
    assert EvaluateOptions().steps == STEPS
    assert EvaluateOptions().updates == UVCE.chain.updates
    assert set(SEARCH_NORMS) == set(NORMS)


def test_every_method_has_a_record() -> None:
    assert list(explain.METHODS) == list(EXPLAIN)
    assert list(METHODS) == list(NEURONS)
