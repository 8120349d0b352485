"""Audits in the middle of a training: nothing of the network changes; Lightning calls the hook."""

from pathlib import Path

import pytest
import torch
from torch import nn

import counterlens as cl
from counterlens.errors import InputError
from counterlens.hooks import audit_every, lightning_callback

NAMES = cl.open_set("sample:cifar10").classes


def network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(4, 10)).train()


def test_every_second_epoch_is_audited_and_the_training_goes_on_as_without(tmp_path: Path) -> None:
    def train(hook) -> tuple[list[object], torch.Tensor]:  # type: ignore[no-untyped-def]
        net = network()
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        results = []
        for epoch in range(4):
            loss = net(torch.rand(8, 3, 32, 32)).logsumexp(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            results.append(hook(net)(epoch))
            assert net.training
            assert all(p.requires_grad for p in net.parameters())
        return results, torch.cat([v.flatten().float() for v in net.state_dict().values()])

    data = cl.open_set("sample:cifar10", limit=30)
    seen, after = train(
        lambda net: audit_every(2, net, data, classes=NAMES, size=32, out=tmp_path, anyway=True)
    )
    _, without = train(lambda net: lambda epoch: None)
    assert [one is not None for one in seen] == [False, True, False, True]
    assert seen[3].numbers["accuracy.top1"].n == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0001", "epoch-0003"]
    assert torch.equal(after, without)
    hashes = {one.manifest["weights_hash"] for one in seen if one}
    assert len(hashes) == 2  # each epoch's own weights
    with pytest.raises(InputError, match="epochs is 0"):
        audit_every(0, network(), data)


@pytest.mark.filterwarnings("ignore")
def test_lightning_calls_the_hook_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.net(batch[0]).logsumexp(1).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Module()
    data = cl.open_set("sample:cifar10", limit=20)
    hook = audit_every(
        2, module.net, data, classes=NAMES, size=32, out=tmp_path / "runs", anyway=True
    )
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.rand(8, 3, 32, 32)), batch_size=4
    )
    logger = lightning.loggers.CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        max_epochs=2, logger=logger, callbacks=[lightning_callback(hook)], accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, loader)
    logger.save()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["epoch-0001"]
    (table,) = tmp_path.rglob("metrics.csv")
    assert "audit/accuracy.top1" in table.read_text().splitlines()[0]
