import pytest

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone, describe_backbone
from burn.cli.main import main
from burn.core.types import Precision
from burn.costs.compute import cost_title, count, count_reactnet

# width, stride of the 3×3 at 224 pixels, by the paper's plan: (in, out, output side)
PLAN = [
    (32, 64, 112), (64, 128, 56), (128, 128, 56), (128, 256, 28), (256, 256, 28), (256, 512, 14),
    *[(512, 512, 14)] * 5, (512, 1024, 7), (1024, 1024, 7),
]  # fmt: skip


def test_binary_operations_by_hand():
    by_hand = sum((9 * c_in * c_in + c_in * c_out) * side**2 for c_in, c_out, side in PLAN)
    cost = count(build_backbone(BackboneConfig(), Precision.BINARY), 224, 1000)
    assert cost.binary_macs == by_hand == 4_816_896_000
    assert cost.flops == 27 * 32 * 112**2 + 1024 * 1000
    assert cost.binary_parameters == sum(9 * i * i + i * o for i, o, _ in PLAN)


# The blocks of the smaller networks, as above, at 96 pixels.
_WIDENING = [(32, 64, 48), (64, 128, 24), (128, 256, 12), (256, 512, 6), (512, 1024, 3)]
FAMILY = {
    "reactnet_xs": [(16, 32, 48), (32, 64, 24), (64, 128, 12), (128, 256, 6), (256, 512, 3)],
    "reactnet_s": _WIDENING,
    "reactnet_m": [*_WIDENING[:4], *[(512, 512, 6)] * 2, _WIDENING[4]],
    "reactnet_l": [
        *_WIDENING[:2], (128, 128, 24), _WIDENING[2], (256, 256, 12), _WIDENING[3], (512, 512, 6),
        _WIDENING[4], (1024, 1024, 3),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "binary_macs"),
    [
        ("reactnet_xs", 969_152, 32_440_320),
        ("reactnet_s", 3_858_816, 129_761_280),
        ("reactnet_m", 9_113_984, 318_504_960),
        ("reactnet_l", 17_808_256, 507_248_640),
    ],
)
def test_the_family_by_hand(name: str, parameters: int, binary_macs: int):
    blocks, stem = FAMILY[name], FAMILY[name][0][0]
    # Of a block: a 3×3 and a 1×1 convolution with a shift for each input, and BN (2) and RPReLU (3)
    # for each output. Of the stem: a convolution of 3 colours, and BN.
    weights = sum(9 * i * i + i * o for i, o, _ in blocks)
    assert parameters == weights + sum(2 * i + 5 * (i + o) for i, o, _ in blocks) + (27 + 2) * stem
    assert binary_macs == sum((9 * i * i + i * o) * side**2 for i, o, side in blocks)
    config = BackboneConfig(name)
    cost = count_reactnet(config, 96, 0)
    assert (cost.binary_parameters, cost.binary_macs) == (weights, binary_macs)
    assert cost.binary_parameters + cost.float_parameters == parameters
    assert cost.flops == 27 * stem * 48**2
    network = describe_backbone(config, Precision.BINARY)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network.num_features == blocks[-1][1]


def test_sizes_by_hand():
    network = build_backbone(BackboneConfig(width=0.25), Precision.BINARY)
    cost = count(network, 32, 0)
    parameters = sum(p.numel() for p in network.parameters())
    assert cost.float_bytes == 4 * parameters
    # Of a binary convolution four floats a channel remain (threshold of the inputs; multiplier,
    # bias and slope of the outputs), of the stem weight, bias and colour, of the mean its bias.
    channels = [(c // 4, part) for i, o, _ in PLAN for c, part in ((i, i // 4), (i, o // 4))]
    floats = sum(i + 3 * o for i, o in channels) + 8 * 28 + 3 + 256
    assert cost.packed_bytes is not None
    header = cost.packed_bytes - cost.binary_parameters // 8 - 4 * floats
    assert 0 < header < 20_000  # 26 layers of 5 tensors, some 110 bytes each


@pytest.mark.parametrize("classes", [0, 10])
@pytest.mark.parametrize(("side", "stem"), [(1, 1), (33, 2), (32, 1)])
@pytest.mark.parametrize("feature_layer", [False, True])
@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("reactnet_a", (2, 2, 2, 2)),
        ("reactnet_a", (1, 2, 1, 2)),
        ("reactnet_m", (2, 1, 2, 2)),
    ],
)
def test_the_plan_costs_what_the_network_does(
    name: str,
    classes: int,
    side: int,
    stem: int,
    feature_layer: bool,
    strides: tuple[int, int, int, int],
):
    config = BackboneConfig(
        name, width=0.25, stem_stride=stem, stage_strides=strides, feature_layer=feature_layer
    )
    network = build_backbone(config, Precision.BINARY)
    assert count_reactnet(config, side, classes) == count(network, side, classes)


def test_a_float_network_has_no_binary_part():
    cost = count(build_backbone(BackboneConfig(name="resnet50"), Precision.FLOAT), 224, 1000)
    assert cost.binary_macs == cost.binary_parameters == 0
    assert cost.float_parameters == 25_557_032  # torchvision's count
    assert round(cost.flops / 1e9, 2) == 4.09  # the 4.09 GMACs of its documentation
    assert cost.packed_bytes is None


def test_a_network_that_cannot_be_packed_shows_no_packed_size(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["info", "resnet18", "--width", "0.25", "--image-size", "32"]) == 0
    printed = capsys.readouterr().out
    assert "size in float32" in printed
    assert "size packed" not in printed


def test_the_title_is_one_printable_line(capsys: pytest.CaptureFixture[str]):
    about = {"name": "runs/" + 80 * "long", "recipe": "a\x1b[2J\u202eb", "image_size": 32}
    assert cost_title(about) == f"name runs/{80 * 'long'}, recipe a?[2J?b, image size 32"
    assert main(["info", "reactnet_a", "--width", "0.0625", "--image-size", "32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name reactnet_a, image size 32, classes 0"
    assert lines[1].startswith("┌")
