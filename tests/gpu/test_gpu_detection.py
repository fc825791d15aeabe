"""Training steps of the detector on a GPU."""

from __future__ import annotations

import pytest
import torch
from pretend import CUDA, on_gpu, pretended

from burn.evaluation.configs import DetectorConfig
from burn.evaluation.detection.detector import Detector, Images
from networks import tiny_reactnet

TINY = DetectorConfig(anchors=(16, 32), proposals=20, rois=16, roi_size=3)
# torchvision selects anchors, proposals and regions by masks, for whose sizes it waits.
WAITS = {
    "detector.forward": 18, "detector.compute_loss": 4, "detector.<genexpr>": 2,
    "detector.region_losses": 1,
}  # fmt: skip


# Some tens of kernels depend on how many regions the random network proposes.
@pytest.mark.parametrize(("bfloat16", "most"), [(True, 2900), (False, 2650)])
def test_a_step_stays_within_its_kernels_and_waits(bfloat16: bool, most: int):
    with pretended() as gpu:
        gpu.seeded = True  # as the protocol does, for torchvision's samplers
        detector = on_gpu(Detector(tiny_reactnet(), 3, TINY, bfloat16=bfloat16)).train()
        optimizer = torch.optim.SGD(detector.parameters(), lr=0.01, momentum=0.9)
        pixels = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8).to(CUDA)
        boxes = torch.tensor([[5.0, 5.0, 30.0, 40.0]]).to(CUDA)
        labels = torch.ones(1, dtype=torch.int64).to(CUDA)
        images = Images(pixels, [(64, 96), (64, 90)])
        before = 0
        for _ in range(2):
            gpu.waits.clear()
            before = gpu.kernels
            _, losses = detector(images, [{"boxes": boxes, "labels": labels}] * 2)
            loss = torch.stack(list(losses.values())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert gpu.waits == WAITS
        assert gpu.kernels - before <= most
        assert all(p.grad is not None and p.grad.isfinite().all() for p in detector.parameters())
