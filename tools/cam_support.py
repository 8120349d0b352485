"""The CAM support table: for which timm architectures layer and layout are found, and which.

    tools/cam_support.py                 print the table
    tools/cam_support.py --write FILE    write it, e.g. docs/reference/cam-support.md
    tools/cam_support.py NAME…           only these architectures

Weights are random: what is tested is that a layer is found, that its output lies on the picture as
said, and that both maps of it are finite, of the picture's size and not empty for some class.
"""

import argparse
import sys
from pathlib import Path

import timm
import torch

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.explanations.cam import METHODS, class_cam
from counterlens.models.parts import CamLayer, cam_layer, head_name
from counterlens.types import Preprocess

ROSTER = {
    "CNN": "resnet18 resnet26d resnext26ts seresnet18 ese_vovnet19b_dw densenet121 vgg11_bn "
    "mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small tf_efficientnet_lite0 "
    "efficientnet_b0 ghostnet_050 regnety_002 repvgg_a0 dla46_c hrnet_w18_small hardcorenas_a "
    "inception_v3 xception41 darknet17 cspresnet50 nfnet_f0 eca_nfnet_l0 res2net50_14w_8s "
    "skresnet18 selecsls42b tresnet_m rexnet_100 hgnetv2_b0 starnet_s1 fasternet_t0 "
    "inception_next_atto repghostnet_050 rdnet_tiny",
    "ConvNeXt": "convnext_atto convnextv2_atto",
    "ViT": "vit_tiny_patch16_224 vit_base_patch32_clip_224 vit_small_patch16_rope_224 "
    "deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 deit3_small_patch16_224 "
    "beit_base_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224 xcit_nano_12_p16_224 "
    "crossvit_tiny_240 flexivit_small vit_relpos_small_patch16_224 vit_xsmall_patch16_clip_224 "
    "volo_d1_224 tiny_vit_5m_224 fastvit_t8 efficientformer_l1 efficientformerv2_s0",
    "Swin and other hierarchies": "swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 "
    "swinv2_cr_tiny_ns_224 hiera_tiny_224 mvitv2_tiny pvt_v2_b0 twins_pcpvt_small nest_tiny "
    "davit_tiny focalnet_tiny_srf gcvit_xxtiny poolformer_s12 nextvit_small",
    "Hybrids": "mobilevit_xxs mobilevitv2_050 coatnet_pico_rw_224 maxvit_pico_rw_256 levit_128s "
    "pit_ti_224 pit_ti_distilled_224 coat_lite_tiny convit_tiny visformer_tiny edgenext_xx_small "
    "efficientvit_b0 efficientvit_m0 repvit_m0_9 shvit_s1 convmixer_768_32 sequencer2d_s "
    "mambaout_femto",
    "MLPs": "mixer_s32_224 resmlp_12_224 gmixer_12_224 gmlp_ti16_224",
}


def check(name: str) -> tuple[str, str, str, str]:
    """Layer, layout, grid and verdict for one architecture."""
    if not timm.is_model(name):
        return "", "", "", "not in this timm"
    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False, num_classes=10)
    size = tuple(net.pretrained_cfg["input_size"][1:])
    model = Classifier(net, numbered(10), preprocess=Preprocess(size), name=name).eval()
    model.requires_grad_(False)
    try:
        place = cam_layer(model)
    except InputError as error:
        return "", "", "", f"no: {error}"
    with torch.no_grad():
        weight = model.net.get_submodule(head_name(model.net, 10)).weight
        if not weight.any():  # some families start with a silent head
            weight.normal_(std=0.02)
    x = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
    for method in METHODS:
        found = (
            class_cam(model, x, torch.tensor([k]), method=method, layer=place).picture
            for k in range(10)
        )
        if not any(m.shape[1:] == size and torch.isfinite(m).all() and m.any() for m in found):
            return place.name, place.layout, _grid(place), f"{method} is empty or not finite"
    layout = place.layout + (f", {place.prefix} before" if place.prefix else "")
    return place.name, layout, _grid(place), "yes"


def _grid(place: CamLayer) -> str:
    rows, columns = place.grid
    return f"{rows} × {columns}"


def table(names: list[str]) -> str:
    """The table as Markdown."""
    families = {name: family for family, text in ROSTER.items() for name in text.split()}
    lines = [
        "| family | timm architecture | layer | layout | grid | CAM |",
        "|---|---|---|---|---|---|",
    ]
    good = 0
    for name in names:
        layer, layout, grid, verdict = check(name)
        good += verdict == "yes"
        print(f"{name}: {verdict} {layer}", file=sys.stderr, flush=True)
        lines.append(
            f"| {families.get(name, '')} | `{name}` | `{layer}` | {layout} | {grid} | {verdict} |"
        )
    head = (
        "# CAM support\n\nWritten by `tools/cam_support.py`; never edited. "
        f"timm {timm.__version__}, torch {torch.__version__.split('+')[0]}: "
        f"{good} of {len(names)} architectures.\n\n"
        "The layer is the last one whose output lies on a grid over the picture and all of whose "
        "places reach the class. Another one can be named: `CamLayer(name, layout, grid)`.\n\n"
    )
    return head + "\n".join(lines) + "\n"


def main() -> None:
    """Check the roster or the names given."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*")
    options.add_argument("--write", type=Path)
    asked = options.parse_args()
    text = table(asked.names or [name for part in ROSTER.values() for name in part.split()])
    if asked.write:
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
