"""Audits inside a test suite: `assert_audit`, and a plugin for pytest.

    from counterlens.testing import assert_audit

    def test_the_model_may_be_released():
        assert_audit("model.py:make", "photos/", require=["accuracy.top1.low>=0.9"])

With counterlens installed, pytest also has the fixture `audit_gate`: the same function, which keeps
its runs below --counterlens-runs and writes the measured numbers into pytest's JUnit file.
"""

from typing import Any

from counterlens.errors import InputError
from counterlens.runs.junit import gate_message
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.result import Result


def assert_audit(model: object, data: object, *, require: Any, **options: Any) -> Result:
    """Audit a model and raise AssertionError unless every gate passes.

    >>> result = assert_audit(
    ...     "zoo:cifar10-plain-small", "sample:cifar10", require="accuracy.top1>=0.5",
    ...     limit=40, quiet=True,
    ... )
    >>> result.numbers["accuracy.top1"].n
    40

    Args:
        model: as `counterlens.audit` takes it, also several.
        data: as `counterlens.audit` takes it.
        require: gates, one or several: "accuracy.top1.low>=0.9".
        options: of `counterlens.audit`: attack, ood, limit, out, …

    Returns:
        The result of the audit, for further assertions.
    """
    from counterlens.workflows.audit.run import audit

    gates = texts(require)
    if not gates:
        raise InputError(
            'assert_audit got no gate, so it could not fail: require=["accuracy.top1.low>=0.9"].'
        )
    result = audit(model, data, require=gates, **options)
    failed = [
        f"{gate_message(row, part.numbers)} (report: {part.report})"
        for part in result.parts or (result,)
        for row in part.table("gates")
        if not row["passed"]
    ]
    if failed:  # no assert statement: python -O would drop it
        raise AssertionError("\n".join([f"{len(failed)} release gates failed:", *failed]))
    return result
