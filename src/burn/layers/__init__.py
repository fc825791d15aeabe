"""Binary convolution, its activations and its signs, independent of how a network is trained."""

from burn.layers.activation import RPReLU, RSign
from burn.layers.chain import BinaryLayer, Chain
from burn.layers.conv import BinaryConv2d
from burn.layers.sign import binary_weight, sign

__all__ = ["BinaryConv2d", "BinaryLayer", "Chain", "RPReLU", "RSign", "binary_weight", "sign"]
