"""Weight files: a pickle that would act on being read must not; names are mapped by hand here."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.models.weights import fill, read_state, strip_prefixes, weights_hash
from counterlens.types import Preprocess


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, target) -> None:
        self.target = str(target)

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.fixture
def nets():
    """Two networks of one architecture and different weights."""
    return [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2)]


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    file, mark = tmp_path / "w.pth", tmp_path / "ran"
    torch.save({"state_dict": Bomb(mark)}, file, pickle_protocol=protocol)
    with pytest.raises(InputError, match="pickled Python objects") as refused:
        read_state(file)
    assert "trust_remote_code=True" in str(refused.value)
    assert not mark.exists()


def test_a_bare_malicious_pickle_is_refused_and_not_run(tmp_path):
    file, mark = tmp_path / "w.pt", tmp_path / "ran"
    file.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(InputError):
        read_state(file)
    assert not mark.exists()


def test_a_whole_pickled_module_needs_trust(tmp_path):
    file = tmp_path / "w.pth"
    net = nn.Linear(2, 2)
    torch.save(net, file)
    with pytest.raises(InputError, match="pickled Python objects"):
        read_state(file)
    state, _ = read_state(file, trust=True)
    assert torch.equal(state["weight"], net.weight)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "cannot be read as weights"), (b"hello world", "cannot be read as weights")],
)
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content, says):
    file = tmp_path / "w.pth"
    file.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_state(file)


def test_a_truncated_archive_is_refused(tmp_path):
    file = tmp_path / "w.pth"
    torch.save(nn.Linear(64, 64).state_dict(), file)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(InputError, match="cannot be read as weights"):
        read_state(file)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"nothing.pth does not exist"):
        read_state(tmp_path / "nothing.pth")


@pytest.mark.parametrize(
    ("wrap", "entry"),
    [
        (lambda s: {"state_dict": s, "epoch": 3}, "state_dict"),
        (lambda s: {"model": s, "optimizer": {"lr": 0.1}}, "model"),
        (lambda s: {"model": {f"module.{k}": v for k, v in s.items()}}, "model"),
    ],
)
def test_entries_of_a_training_checkpoint_are_found(tmp_path, nets, wrap, entry):
    net, copy = nets
    torch.save(wrap(dict(net.state_dict())), tmp_path / "w.pth")
    state, found = read_state(tmp_path / "w.pth")
    fill(copy, strip_prefixes(state, copy.state_dict()), "w")
    assert weights_hash(copy) == weights_hash(net)
    assert found == entry


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.", "module.model."])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_prefixes_of_wrappers_come_off(tmp_path, nets, prefix, suffix):
    net, copy = nets
    stored, file = {prefix + k: v for k, v in net.state_dict().items()}, tmp_path / f"w{suffix}"
    save_file(stored, file) if suffix == ".safetensors" else torch.save(stored, file)
    state, _ = read_state(file)
    fill(copy, strip_prefixes(state, copy.state_dict()), "w")
    assert weights_hash(copy) == weights_hash(net)


def test_averaged_weights_win_over_raw_ones(tmp_path):
    raw, mean = {"a": torch.zeros(2)}, {"a": torch.ones(2)}
    torch.save({"state_dict": raw, "state_dict_ema": mean}, tmp_path / "w.pth")
    state, entry = read_state(tmp_path / "w.pth")
    assert entry == "state_dict_ema"
    assert torch.equal(state["a"], torch.ones(2))


def test_a_dict_without_weights_is_refused_with_what_it_holds(tmp_path):
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="entries epoch, lr"):
        read_state(tmp_path / "w.pth")


def test_weights_that_do_not_fit_name_the_missing_and_the_unexpected():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    state = dict(net.state_dict())
    state["2.weight"] = state.pop("1.weight")
    with pytest.raises(InputError) as refused:
        fill(net, state, "w.pth")
    assert "1 missing (1.weight), 1 unexpected (2.weight)" in str(refused.value)
    with pytest.raises(InputError, match=r"0.bias \(5,\) instead of \(4,\)"):
        fill(net, {**net.state_dict(), "0.bias": torch.zeros(5)}, "w.pth")
    with pytest.raises(InputError, match=r"NaN or infinite weights: 1 broken \(0.bias\)"):
        fill(net, {**net.state_dict(), "0.bias": torch.full((4,), torch.nan)}, "w.pth")


def test_batch_counters_may_be_absent():
    net = nn.BatchNorm2d(3)
    state = {k: v + 1 for k, v in net.state_dict().items() if k != "num_batches_tracked"}
    fill(net, state, "old.pth")
    assert torch.equal(net.running_mean, torch.ones(3))


def test_the_hash_changes_with_any_weight_name_or_type_and_with_nothing_else():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = weights_hash(net)
    wrapped = Classifier(net, ["a", "b"], preprocess=Preprocess((1, 1)))
    assert weights_hash(wrapped) == before
    assert weights_hash(net.train()) == before
    net[1].running_mean[0] += 1e-7
    after = weights_hash(net)
    assert after != before
    assert weights_hash(net.double()) != after
    assert weights_hash(nn.ModuleDict({"a": net[0]})) != weights_hash(nn.ModuleDict({"b": net[0]}))
