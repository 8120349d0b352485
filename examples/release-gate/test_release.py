"""The same gate as a test: pytest --counterlens-runs reports --junitxml tests.xml."""

from model import make


def test_the_model_may_be_released(audit_gate):
    result = audit_gate(
        make(),
        "sample:cifar10",
        require=["accuracy.top1.low>=0.8", "calibration.ece<=0.15"],
        limit=100,
        quiet=True,
    )
    assert result.table("per_class")
