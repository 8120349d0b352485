"""predict() next to a bare loop with the same batch, workers and memory format.

Result (two CPU cores, quiet; median of 33 rounds with its 95 % interval):
    60,000 pictures of 32 px in memory   1.05 [0.96, 1.15] of the bare loop's throughput
    300 JPEGs at 224 px, two workers     0.97 [0.88, 1.04]; in computation 0.96 [0.92, 0.99]
Run: .venv/bin/python benchmarks/bench_predict.py
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from counterlens.classifier import Classifier
from counterlens.data.sets import ReadArray
from counterlens.data.sources.folders import open_folder
from counterlens.images import ImageSet
from counterlens.predictions import predict
from counterlens.types import Preprocess
from race import machine, race, ratio


def lightest(size: int, device: str) -> Classifier:
    """Two small convolutions: hardly any work, so whatever the pass adds shows."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    fit = Preprocess(size=(size, size), crop=0.875 if size > 32 else 1.0, interpolation="bilinear")
    half = (0.5, 0.5, 0.5)
    names = [str(i) for i in range(10)]
    return Classifier(net, names, half, half, preprocess=fit).eval().to(device)


@torch.inference_mode()
def bare(classifier: Classifier, loader: DataLoader[torch.Tensor], amp: bool) -> torch.Tensor:
    """What one would write by hand."""
    place = classifier.mean.device
    out = []
    for pixels in loader:
        x = pixels.to(place, non_blocking=True)
        x = x.to(torch.float32, memory_format=torch.channels_last).div_(255)
        with torch.autocast(place.type, dtype=torch.float16, enabled=amp):
            out.append(classifier(x).float().cpu())
    return torch.cat(out)


class Arrays(Dataset[torch.Tensor]):
    """Batches cut from one array."""

    def __init__(self, pixels: np.ndarray, batch: int) -> None:
        self.pixels, self.batch = pixels, batch

    def __len__(self) -> int:
        return -(-len(self.pixels) // self.batch)

    def __getitem__(self, j: int) -> torch.Tensor:
        part = self.pixels[j * self.batch : (j + 1) * self.batch]
        return torch.from_numpy(part).permute(0, 3, 1, 2)


class Files(Dataset[torch.Tensor]):
    """JPEG files: Pillow decodes, the shorter side is resized, the centre cut out."""

    def __init__(self, files: list[Path], size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> torch.Tensor:
        image = Image.open(self.files[i]).convert("RGB")
        short = int(self.size / 0.875)
        scale = short / min(image.size)
        wide = (int(image.width * scale), int(image.height * scale))
        image = image.resize(wide, Image.Resampling.BILINEAR)
        left, top = (wide[0] - self.size) // 2, (wide[1] - self.size) // 2
        cut = image.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.array(cut)).permute(2, 0, 1).contiguous()


def small_pictures(n: int, rounds: int, device: str) -> dict[str, object]:
    """The lightest model on 32 px pictures in memory."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    images = ImageSet(
        "pixels", [str(i) for i in range(n)], np.zeros(n, np.int64), (), ReadArray(pixels)
    )
    classifier, batch, amp = (
        lightest(32, device),
        2048 if device == "cuda" else 256,
        device == "cuda",
    )
    loader = DataLoader(Arrays(pixels, batch), batch_size=None, pin_memory=amp)
    ours = partial(predict, classifier, images, batch=batch, workers=0, progress=False)
    theirs = partial(bare, classifier, loader, amp)
    assert torch.allclose(ours().logits, theirs(), atol=1e-2 if amp else 1e-5)
    laps = race(rounds, predict=ours, bare=theirs)
    return {
        "images_per_s": n / min(lap.wall for lap in laps["predict"]),
        **ratio(laps, "predict", "bare"),
    }


def jpeg_folder(n: int, rounds: int, device: str, workers: int, size: int) -> dict[str, object]:
    """The lightest model on a folder of JPEG files of photographic size."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(n):
            small = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
            path = Path(folder) / f"class{i % 4}" / f"{i:05}.jpg"
            path.parent.mkdir(exist_ok=True)
            small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        images = open_folder(Path(folder), name="jpegs")
        files = sorted(Path(folder).rglob("*.jpg"))
        classifier, batch, amp = lightest(size, device), 32, device == "cuda"
        loader = DataLoader(
            Files(files, size),
            batch_size=batch,
            num_workers=workers,
            pin_memory=amp,
            prefetch_factor=4 if workers else None,
        )
        ours = partial(predict, classifier, images, batch=batch, workers=workers, progress=False)
        theirs = partial(bare, classifier, loader, amp)
        laps = race(rounds, predict=ours, bare=theirs)
    return {
        "images_per_s": n / min(lap.wall for lap in laps["predict"]),
        **ratio(laps, "predict", "bare"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of torch; 1 steadies `cpu` on a busy machine")
    out = Path(__file__).parent / "results" / "predict.json"
    parser.add_argument("--out", type=Path, default=out)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    found = {
        "32 px in memory": small_pictures(
            200_000 if given.device == "cuda" else 60_000, 3 * given.rounds, given.device
        ),
        "JPEG folder, 224 px": jpeg_folder(300, 3 * given.rounds, given.device, given.workers, 224),
        "machine": machine(),
        "workers": given.workers,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
