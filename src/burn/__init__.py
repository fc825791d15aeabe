"""BURN: 1-bit vision backbones, pretrained without labels."""
