"""Audits in the middle of a training: a hook for loops of one's own, and a callback of Lightning.

    after_epoch = audit_every(5, net, val_set, classes=names, size=32, out="runs/training")
    for epoch in range(100):
        train_one_epoch(net)
        result = after_epoch(epoch)      # a Result after epochs 4, 9, 14, …, else None

    trainer = Trainer(callbacks=[lightning_callback(after_epoch)])

The network is measured as a frozen copy in eval mode that shares its weights: modes, gradients and
the state of random generators are as before.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterlens.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from counterlens.workflows._shared.result import Result

Hook = Callable[[int], "Result | None"]


def audit_every(
    epochs: int,
    model: Any,
    data: object,
    *,
    classes: Sequence[str] | int | None = None,
    size: int | tuple[int, int] | None = None,
    out: str | Path = "runs/training",
    **options: Any,
) -> Hook:
    """A function to call after each epoch; it audits after every `epochs`-th.

    Args:
        epochs: after how many epochs an audit follows.
        model: a torch module, or a Classifier, which says classes, size and normalisation itself.
        data: as `counterlens.audit` takes it.
        classes, size: of a module that does not say them.
        out: folder of the runs, one per audit: OUT/epoch-0004.
        options: of `counterlens.audit`.
    """
    if epochs < 1:
        raise InputError(f"epochs is {epochs}, expected 1 or more.")

    def after_epoch(epoch: int) -> "Result | None":
        if (epoch + 1) % epochs:
            return None
        import torch

        from counterlens.models.sources.objects import as_classifier
        from counterlens.workflows.audit.run import audit

        with torch.random.fork_rng(devices=[]):
            place = next((str(p.device) for p in model.parameters()), "cpu")
            classifier = as_classifier(model, classes=classes, size=size, device=place)
            folder = Path(out) / f"epoch-{epoch:04d}"
            return audit(classifier, data, out=folder, **{"quiet": True, **options})

    return after_epoch


def lightning_callback(after_epoch: Hook) -> Any:
    """A callback of Lightning that calls the hook at the end of each training epoch.

    The values of accuracy and calibration are logged as audit/KEY to the trainer's logger.
    """
    callback = _callback_class()

    class AuditCallback(callback):  # type: ignore[misc, valid-type]
        """Audits every so many epochs, on the process of rank 0."""

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            if not trainer.is_global_zero:
                return
            result = after_epoch(trainer.current_epoch)
            if result is None or trainer.logger is None:
                return
            values = {
                f"audit/{key}": number.value
                for key, number in result.numbers.items()
                if number.value is not None
            }
            trainer.logger.log_metrics(values, step=trainer.global_step)

    return AuditCallback()


def _callback_class() -> Any:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise MissingExtra(
                "lightning_callback needs Lightning: pip install lightning."
            ) from None
    return Callback
