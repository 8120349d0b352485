"""Checkpoints of the reference CGN code turned into folders that all cgn commands open."""

from collections.abc import Sequence
from pathlib import Path

from counterlens.data.synthetic.mnist_variants import WHICH
from counterlens.errors import InputError
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN
from counterlens.generators.cgn.reference import from_reference
from counterlens.models.weights import file_hash, read_state
from counterlens.workflows._shared.objects import texts
from counterlens.workflows._shared.options import takes
from counterlens.workflows._shared.result import Result
from counterlens.workflows._shared.session import running
from counterlens.workflows.cgn.options import CgnImportOptions
from counterlens.workflows.cgn.sheets import save_sheet

# what the reference code calls the sets, in the names of its folders; the longer name first
_REFERENCE_NAMES = {
    "double_colored_mnist": "double-coloured",
    "wildlife_mnist": "wildlife",
    "colored_mnist": "coloured",
}


@takes(CgnImportOptions)
def import_cgn(files: Sequence[str], options: CgnImportOptions) -> Result:
    """Write each checkpoint as RUN/seed-0, RUN/seed-1, … in full precision, with its card.

    Args:
        files: state dicts that the reference code saved (ckp.pth). Only tensors are read. Without
            `dataset` the set is read from the path of each, such as
            experiments/cgn_wildlife_MNIST/weights/ckp.pth.
    """
    dataset, paths = options.dataset, texts(files)
    if not paths:
        raise InputError("no checkpoint was given, expected FILE.pth of the reference CGN code.")
    if dataset is not None and dataset not in WHICH:
        raise InputError(f"no set {dataset!r}, expected one of {', '.join(WHICH)}.")
    sets = [dataset or _set_of(Path(file)) for file in paths]
    if len(set(sets)) > 1:
        raise InputError(
            f"the checkpoints are of {' and '.join(sorted(set(sets)))}; import each set alone."
        )
    nets = [from_reference(read_state(Path(file), advice="")[0], file) for file in paths]
    inputs = {"files": paths, "set": sets[0]}
    with running("cgn import", options, name=sets[0], inputs=inputs) as run:
        gallery = []
        for i, (net, file) in enumerate(zip(nets, paths, strict=True)):
            cgn.save(run.folder / f"seed-{i}", net, _card(net, file, sets[0], i), half=False)
            gallery.append(save_sheet(run, f"sheet-seed-{i}", net, f"seed-{i}: {Path(file).name}"))
        run.write_table("gallery", gallery)
        run.note(model=f"{sets[0]}-mnist-cgn", data=sets[0])
    return Result(run)


def _card(net: CGN, file: str, which: str, seed: int) -> dict[str, object]:
    return {
        "name": f"{which}-mnist-cgn",
        "kind": "cgn",
        "set": which,
        "options": {"width": net.shape.width, "shuffle": "shift"},
        "imported": {"file": Path(file).name, "sha256": file_hash(Path(file))},
        "data": {"fingerprint": None},
        "training": {"seed": seed, "intact": None},
    }


def _set_of(file: Path) -> str:
    path = str(file.absolute()).lower()
    for name, which in _REFERENCE_NAMES.items():
        if name in path:
            return which
    raise InputError(
        f"the path {file} does not say which set the checkpoint imitates. Add dataset=NAME with "
        f"one of {', '.join(WHICH)}."
    )
