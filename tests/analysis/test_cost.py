from burn.analysis.cost import count
from burn.backbones import BackboneConfig, build_backbone
from burn.types import Precision

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


def test_sizes_by_hand():
    network = build_backbone(BackboneConfig(width=0.25), Precision.BINARY)
    cost = count(network, 32, 0)
    floats = sum(t.numel() for t in network.state_dict().values() if t.is_floating_point())
    assert cost.float_bytes == 4 * floats
    assert cost.packed_bytes == cost.binary_parameters / 8 + 4 * (floats - cost.binary_parameters)


def test_a_float_network_has_no_binary_part():
    cost = count(build_backbone(BackboneConfig(name="resnet50"), Precision.FLOAT), 224, 1000)
    assert cost.binary_macs == cost.binary_parameters == 0
    assert cost.float_parameters == 25_557_032  # torchvision's count
    assert round(cost.flops / 1e9, 2) == 4.09  # the 4.09 GMACs of its documentation
