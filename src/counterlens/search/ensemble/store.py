"""The state of an attack on disk: written whole or not at all, read back to go on exactly.

`attack.pt` holds everything but the images, which are appended as `found-0000.npz`, … and
counted in `attack.pt`; a part that is not counted was being written when the process died.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterlens.errors import InputError
from counterlens.runs import atomic
from counterlens.search.ensemble.state import AttackState
from counterlens.search.result import networks_of


@dataclass
class AttackStore:
    """A folder with the state of one attack.

    Args:
        folder: where; created if absent.
        about: settings and data that must be the same to go on.
        every: seconds between two saves.
    """

    folder: Path
    about: str
    every: float = 30.0
    parts: int = 0

    def save(self, attack: AttackState, progress: Mapping[str, Any]) -> None:
        """Write the images recorded since the last save, then the state that counts them."""
        if attack.fresh:
            rows = np.unique(np.asarray(attack.fresh, np.int64))
            points = attack.points[torch.from_numpy(rows)].numpy()
            name = self.folder / f"found-{self.parts:04d}.npz"
            with atomic(name) as part, part.open("wb") as out:
                np.savez_compressed(out, rows=rows, points=points)
            self.parts += 1
            attack.fresh.clear()
        state = {
            "about": self.about,
            "parts": self.parts,
            "robust": torch.from_numpy(attack.robust),
            "broken_by": list(attack.broken_by),
            "evaluations": torch.from_numpy(attack.evaluations),
            "nearest": torch.from_numpy(attack.nearest),
            "top": torch.from_numpy(attack.top),
            "tallies": json.dumps(attack.tallies),
            "targets": attack.targets,
            **progress,
        }
        with atomic(self.folder / "attack.pt") as part:
            torch.save(state, part)

    def load(self, attack: AttackState) -> dict[str, Any] | None:
        """Restore the saved state into `attack` and return the rest of it; None without one."""
        path = self.folder / "attack.pt"
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["about"] != self.about:
            raise InputError(
                f"{self.folder} holds the state of another attack: its model, data, radius, seed "
                "or settings differ. Resume with the same ones, or give another folder."
            )
        attack.robust = state["robust"].numpy()
        attack.broken_by = list(state["broken_by"])
        attack.evaluations = state["evaluations"].numpy()
        attack.nearest = state["nearest"].numpy()
        attack.top = state["top"].numpy()
        attack.tallies = json.loads(state["tallies"])
        attack.targets = state["targets"]
        self.parts = state["parts"]
        for k in range(self.parts):
            with np.load(self.folder / f"found-{k:04d}.npz") as part:
                attack.points[torch.from_numpy(part["rows"])] = torch.from_numpy(part["points"])
        return state


def fingerprint(settings: Mapping[str, Any], *tensors: Tensor, model: object = None) -> str:
    """A digest of settings, data and weights: equal only if an attack may be resumed."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    weights = [tensor for net in networks_of(model) for tensor in net.state_dict().values()]
    for tensor in (*tensors, *weights):
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        flat = tensor.detach().cpu().contiguous()
        if flat.dtype == torch.bfloat16:
            flat = flat.float()
        digest.update(flat.numpy().tobytes())
    return digest.hexdigest()
