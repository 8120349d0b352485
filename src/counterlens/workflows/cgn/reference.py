"""Checkpoints of the reference CGN code made into folders that all cgn commands open."""

from collections.abc import Sequence
from pathlib import Path

from counterlens.data.made.mnist_variants import WHICH
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.reference import from_reference
from counterlens.models.weights import file_hash, read_state
from counterlens.runs import Run, new_folder
from counterlens.workflows._shared.session import teller, write_report
from counterlens.workflows.cgn.sheets import save_sheet

# what the reference code calls the sets, in the names of its folders; the longer name first
_REFERENCE_NAMES = {
    "double_colored_mnist": "double-coloured",
    "wildlife_mnist": "wildlife",
    "colored_mnist": "coloured",
}


def import_cgn(
    files: Sequence[str],
    *,
    dataset: str | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> Run:
    """Write each checkpoint as RUN/seed-0, RUN/seed-1, … in full precision, with its card.

    Args:
        files: state dicts that the reference code saved (ckp.pth). Only tensors are read.
        dataset: coloured, double-coloured or wildlife; without it the set is read from the path
            of each file, such as experiments/cgn_wildlife_MNIST/weights/ckp.pth.
    """
    if not files:
        raise InputError("no checkpoint was given, expected FILE.pth of the reference CGN code.")
    if dataset is not None and dataset not in WHICH:
        raise InputError(f"no set {dataset!r}, expected one of {', '.join(WHICH)}.")
    sets = [dataset or _set_of(Path(file)) for file in files]
    if len(set(sets)) > 1:
        raise InputError(
            f"the checkpoints are of {' and '.join(sorted(set(sets)))}; import each set alone."
        )
    nets = [from_reference(read_state(Path(file), advice="")[0], file) for file in files]
    settings = {"files": list(files), "set": sets[0]}
    run = Run.create(out or new_folder("cgn-import", sets[0]), "cgn import", settings)
    gallery = []
    for i, (net, file) in enumerate(zip(nets, files, strict=True)):
        card = {
            "name": f"{sets[0]}-mnist-cgn",
            "kind": "cgn",
            "set": sets[0],
            "options": {"width": net.shape.width, "shuffle": "shift"},
            "imported": {"file": Path(file).name, "sha256": file_hash(Path(file))},
            "data": {"fingerprint": None},
            "training": {"seed": i, "intact": None},
        }
        cgn.save(run.folder / f"seed-{i}", net, card, half=False)
        gallery.append(save_sheet(run, f"sheet-seed-{i}", net, f"seed-{i}: {Path(file).name}"))
    run.write_table("gallery", gallery)
    run.note(model=f"{sets[0]}-mnist-cgn", data=sets[0])
    write_report(run, teller(quiet))
    run.finish()
    return run


def _set_of(file: Path) -> str:
    path = str(file.absolute()).lower()
    for name, which in _REFERENCE_NAMES.items():
        if name in path:
            return which
    raise InputError(
        f"the path {file} does not say which set the checkpoint imitates. Add --dataset with one "
        f"of {', '.join(WHICH)}."
    )
