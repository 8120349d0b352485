"""What the commands around counterfactual generative networks can be asked to do."""

from pathlib import Path

from counterlens.workflows._shared.options import Compute, Output, Resumable, option, record


@record
class DigitOptions:
    """Of commands that colour or texture MNIST."""

    mnist: str = option(
        "sample:mnist",
        help="Both splits of MNIST: known:mnist@ROOT or the shipped sample:mnist.",
        unit="SPEC",
        group="Data",
    )
    textures: str | None = option(
        None,
        help="Textures of wildlife: pack:FILE.npz or DTD's folder. Default: drawn by code.",
        unit="SPEC",
        group="Data",
    )


@record
class CgnTrainOptions(Output, Resumable, DigitOptions):
    """Options of cgn train; what decides the training stands in its recipe."""

    kind: str = option(
        "cgn",
        help="cgn, or gan for the baseline.",
        unit="KIND",
        group="Training",
        choices=("cgn", "gan"),
    )
    vgg: str | None = option(
        None,
        help="Weights of VGG-16 for the style loss: vgg16-397923af.pth or vgg16.ckpt.",
        unit="FILE",
        group="Training",
        scope="run",
    )
    seeds: str = option(
        "0",
        help="Trained side by side, e.g. 0-2 or 0,5.",
        unit="SEEDS",
        group="Training",
        scope="objects",
    )
    changes: tuple[str, ...] = option(
        (),
        help="Change a setting, e.g. epochs=5.",
        flag="--set",
        unit="KEY=VALUE",
        group="Training",
        scope="run",
    )
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, mps.", group="Run", scope="run")


@record
class CgnImportOptions(Output):
    """Options of cgn import."""

    dataset: str | None = option(
        None,
        help="The set they imitate. Default: by the path, e.g. cgn_wildlife_MNIST/….",
        unit="SET",
        scope="run",
    )


@record
class CgnGenerateOptions(Output, Resumable, Compute):
    """Options of cgn generate."""

    count: int = option(
        50_000, help="Images to generate of each, as one data set.", unit="N", group="Images"
    )
    ratio: int = option(1, help="Images per mask.", unit="N", group="Images")


@record
class CgnShowOptions(Output, Resumable, Compute):
    """Options of cgn show."""

    sheets: int = option(4, help="How many sheets.", unit="N", group="Images")


@record
class CgnEvaluateOptions(Output, Resumable, Compute, DigitOptions):
    """Options of cgn evaluate."""

    cgns: tuple[str, ...] = option(
        help="A run of cgn train or cgn import, or one of its seed-N.",
        flag="--cgn",
        unit="FOLDER",
        group="Generators",
    )
    gans: tuple[str, ...] = option(
        (), help="The same of the baseline.", flag="--gan", unit="FOLDER", group="Generators"
    )
    count: int = option(
        50_000, help="Images to generate of each, per classifier.", unit="N", group="Classifiers"
    )
    ratio: int = option(1, help="Images per mask.", unit="N", group="Classifiers")
    originals: int | None = option(
        None, help="Originals in the combined arms. Default: all.", unit="N", group="Classifiers"
    )
    epochs: int = option(10, help="Epochs of each classifier.", unit="N", group="Classifiers")
    compared: int = option(
        3, help="CGNs with which the other arms are trained.", unit="N", group="Classifiers"
    )
    sizes: str = option(
        "",
        help="Run the ablation with these sizes instead, e.g. 10000,100000.",
        unit="NUMBERS",
        group="Ablation",
        scope="objects",
    )
    ratios: str = option(
        "1,5,10,20",
        help="Ratios of the ablation.",
        unit="NUMBERS",
        group="Ablation",
        scope="objects",
    )
    seen: int = option(
        10_000, help="Test images whose heat maps are measured.", unit="N", group="Measures"
    )
    tsne: int = option(3840, help="Images per t-SNE panel; 0: none.", unit="N", group="Measures")


@record
class CgnComposeOptions(Output, Resumable, Compute):
    """Options of cgn compose."""

    count: int = option(
        2000, help="Images to generate of each, in one set.", unit="N", group="Images"
    )
    size: int = option(128, help="Side of the images in pixels.", unit="N", group="Images")
    sheets: int = option(4, help="How many sheets, ten classes each.", unit="N", group="Images")
    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group="Images"
    )
    mask: tuple[str, ...] = option(
        (),
        help="Mask of the object. FOLDER, one named as each image; key:NAME of the pack; U2-Net as "
        "FILE.onnx; sam:FOLDER or sam:OWNER/MODEL, shown the middle. Default: the pack's own.",
        unit="MASK",
        group="Factors",
    )
    texture: str = option(
        "patches",
        help="patches: a grid of 6 x 6 windows of another object; own: the object's pixels.",
        group="Factors",
        choices=("patches", "own"),
    )
    background: str = option(
        "swap",
        help="swap: another image's, its object's box tiled over; inpaint: the same, painted over; "
        "own: as photographed.",
        group="Factors",
        choices=("swap", "inpaint", "own"),
    )
    inpainter: Path | None = option(
        None, help="MI-GAN as ONNX, for inpaint.", unit="FILE", group="Factors"
    )
    mix: str = option(
        "any",
        help="Classes of texture and background: any, independent of the shape's; other; same.",
        group="Factors",
        choices=("any", "other", "same"),
    )


@record
class CgnNaturalOptions(Output, Resumable, Compute):
    """Options of cgn train-natural."""

    salient: str = option(
        help="Segmenter that carries gradients: U2-Net as FILE.onnx.",
        unit="FILE",
        group="Training",
        scope="objects",
    )
    vgg: str | None = option(
        None,
        help="Weights of VGG-16 for the style loss: vgg16-397923af.pth or vgg16.ckpt.",
        unit="FILE",
        group="Training",
        scope="run",
    )
    iterations: int = option(50, help="Updates of the mechanisms.", unit="N", group="Training")
    images: int = option(32, help="Images per update. The study: 2048.", unit="N", group="Training")
    speed: float = option(
        1.0, help="What the study's learning rates are multiplied by.", group="Training"
    )
    ablation: str = option(
        "none",
        help="Loss to leave out.",
        group="Training",
        choices=("none", "shape", "texture", "background", "reconstruction"),
    )
    judged_by: str | None = option(
        None,
        help="Classifier that says whether composed images show their class.",
        unit="MODEL",
        group="Measures",
    )
