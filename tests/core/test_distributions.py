"""Wheels of the code, of the zoo and of the photographs: what is in which, and how it is found.

Oracle: a process whose path has unpacked wheels alone, and the files of the source tree.
"""

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from counterlens import zoo
from counterlens.data import open_set
from counterlens.errors import InputError
from counterlens.zoo import distributions

ROOT = Path(__file__).parents[2]
TREE = ROOT / "src" / "counterlens" / "zoo"


def included(extra):
    """Files of a distribution, by its build settings; they must be there."""
    build = tomllib.loads((ROOT / f"packages/counterlens-{extra}/pyproject.toml").read_text())
    pairs = build["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folder = ROOT / f"packages/counterlens-{extra}"
    for source, target in pairs.items():
        path = (folder / source).resolve()
        assert path.exists() and target == f"counterlens_{extra}/{path.relative_to(TREE)}"
        yield path


def test_every_shipped_thing_is_in_one_distribution_and_listed_under_it():
    parts = {extra: list(included(extra)) for extra in distributions.HELD}
    held = {}
    for extra, paths in parts.items():
        names = set()
        for path in paths:
            cards = [*path.glob("card.json"), *path.glob("*/card.json")]
            names |= {card.parent.name for card in cards} if path.is_dir() else {path.stem}
        held[extra] = tuple(sorted(names))
    assert held == distributions.HELD
    every = zoo.names() + zoo.pairs() + zoo.generators() + zoo.cgns() + zoo.samples()
    assert sorted(every) == sorted(name for names in held.values() for name in names)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    left_out = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    kept = [p for p in TREE.rglob("*") if p.is_file() and not
            any(p.is_relative_to(ROOT / part) for part in left_out)]  # fmt: skip
    assert sum(p.stat().st_size for p in kept) < 1e6
    assert set(settings["project"]["optional-dependencies"]) >= set(held)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A zoo without weights of its own, and a distribution with one sample beside it."""
    import importlib.metadata

    package = tmp_path / "counterlens_extra"
    (package / "samples").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('it is found, not imported')")
    for suffix in ("npz", "json"):
        (package / "samples" / f"pets.{suffix}").write_bytes(
            (TREE / "samples" / f"pets.{suffix}").read_bytes()
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    point = importlib.metadata.EntryPoint("extra", "counterlens_extra", distributions.GROUP)
    monkeypatch.setattr(distributions, "entry_points", lambda group: (point,))
    monkeypatch.setattr(distributions, "__file__", str(tmp_path / "none" / "distributions.py"))
    distributions.roots.cache_clear()
    yield package
    distributions.roots.cache_clear()


def test_a_distribution_is_found_by_its_entry_point_and_a_missing_one_is_named(bare):
    assert zoo.samples() == ["pets"] and zoo.names() == []
    assert zoo.sample("pets") == bare / "samples" / "pets.npz"
    for ask in (lambda: zoo.folder("cifar10-plain-small"), lambda: open_set("sample:cifar10")):
        with pytest.raises(InputError, match=r"is not installed; it is part of counterlens-zoo: "
                                             r"pip install 'counterlens\[zoo\]'"):  # fmt: skip
            ask()
    with pytest.raises(InputError, match=r"zoo:nothing is not shipped\. Shipped: none in this"):
        zoo.folder("nothing")


def test_sample_photographs_have_masks_and_say_whose_they_are():
    images = open_set("sample:pets")
    assert len(images) == 148 and len(images.classes) == 37
    assert images.read(0).shape == (136, 136, 3)
    assert set(images.extra["licence"]) == {"CC-BY-SA-4.0"}
    card = json.loads((TREE / "samples" / "pets.json").read_text())
    assert "Oxford-IIIT Pet" in card["source"] and "crops" in card["changes"]
    assert (TREE / "samples" / "pets.npz").stat().st_size < 2e6


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed")
def test_wheels_hold_what_they_should_and_work_together(tmp_path):
    from zipfile import ZipFile

    sizes = {}
    places = {f"counterlens-{k}": ROOT / "packages" / f"counterlens-{k}" for k in ("zoo", "photos")}
    for name, folder in {"counterlens": ROOT, **places}.items():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        command += ["-d", str(tmp_path / name)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (wheel,) = (tmp_path / name).glob("*.whl")
        sizes[name] = wheel.stat().st_size
        ZipFile(wheel).extractall(tmp_path / f"{name}-site")
    assert sizes["counterlens"] <= 5e6 and sizes["counterlens-zoo"] <= 95e6
    ask = "from counterlens import zoo; print(zoo.names(), zoo.samples(), zoo.generators())"

    def said(*names):
        path = ":".join(str(tmp_path / f"{name}-site") for name in names)
        command = [sys.executable, "-P", "-c", ask]
        done = subprocess.run(
            command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True,
            cwd=tmp_path,
        )  # fmt: skip
        return done.stdout.strip()

    assert said("counterlens") == "[] [] []"
    assert "pets" in said("counterlens", "counterlens-photos")
    assert "cifar10-diffusion" in said("counterlens", "counterlens-zoo")
