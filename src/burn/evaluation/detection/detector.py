"""Faster R-CNN with a C4 backbone, from torchvision's parts (Ren et al., 2015; MoCo's VOC setting).

The proposal network takes the feature map before the backbone's last stage; that stage, followed by
BN, classifies the regions cut out of the map. Only the layers that are new are float.

The box losses are detectron2's, with which MoCo and the paper were evaluated: absolute differences.
torchvision smooths those below 1/9, and divides the loss of the proposals by fewer anchors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import roi_align

from burn.backbones.base import Backbone, modes_kept
from burn.evaluation.configs import DetectorConfig

_RATIOS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Images:
    """Images of several sizes in one tensor, padded at the right and below with the mean colour."""

    pixels: Tensor  # uint8 (batch, 3, height, width)
    sizes: list[tuple[int, int]]  # (height, width) of each image without padding

    def pin_memory(self) -> Images:  # data loaders call this
        return Images(self.pixels.pin_memory(), self.sizes)


class Detector(nn.Module):
    """A detector that returns losses in training mode and detections in eval mode.

    Boxes are in pixels of the (resized) images: left, top, right, bottom. They stay float32 if
    trunk and last stage run under autocast. The classes do not count the background.
    """

    def __init__(
        self, backbone: Backbone, num_classes: int, config: DetectorConfig, *, bfloat16: bool
    ) -> None:
        super().__init__()
        self.backbone, self._bfloat16 = backbone, bfloat16
        with torch.no_grad(), modes_kept(backbone):
            device = next(backbone.parameters()).device
            probe = torch.zeros(1, 3, 64, 64, dtype=torch.uint8, device=device)
            shape = backbone.eval().trunk(probe).shape
        stride, channels = 64 // shape[-1], shape[1]
        num_anchors = len(config.anchors) * len(_RATIOS)

        def pool(features: dict[str, Tensor], regions: list[Tensor], _sizes: object) -> Tensor:
            """Cut regions out with half-pixel alignment, which torchvision's pooler lacks."""
            size, scale = config.roi_size, 1 / stride
            return roi_align(features["0"], regions, size, scale, sampling_ratio=0, aligned=True)

        self.proposals = _Proposals(
            AnchorGenerator((config.anchors,), (_RATIOS,)),
            RPNHead(channels, num_anchors),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=256,
            positive_fraction=0.5,
            pre_nms_top_n={"training": 12000, "testing": 6000},
            post_nms_top_n={"training": 2000, "testing": config.proposals},
            nms_thresh=0.7,
        )
        self.regions = _Regions(
            pool,
            _RegionHead(backbone, bfloat16=bfloat16),
            FastRCNNPredictor(backbone.num_features, num_classes + 1),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=config.rois,
            positive_fraction=0.25,
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
            score_thresh=config.score_threshold,
            nms_thresh=0.5,
            detections_per_img=config.detections,
        )

    def forward(
        self, images: Images, targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections (`boxes`, `labels`, `scores`) in eval mode, losses in training mode.

        The latter needs for each image `boxes`, (objects, 4), and `labels`, int64 (objects,),
        counted from 1.
        """
        with torch.autocast(images.pixels.device.type, torch.bfloat16, enabled=self._bfloat16):
            features = {"0": self.backbone.trunk(images.pixels)}
        features = {"0": features["0"].float()}
        image_list = ImageList(images.pixels, images.sizes)
        proposals, proposal_losses = self.proposals(image_list, features, targets)
        detections, region_losses = self.regions(features, proposals, images.sizes, targets)
        return detections, {**proposal_losses, **region_losses}


class _Proposals(RegionProposalNetwork):
    """A region proposal network with detectron2's losses."""

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of objectness and boxes, divided by the most anchors that are sampled.

        An image's edges may leave fewer, by whose number torchvision divides.
        """
        positive, negative = (
            torch.where(torch.cat(mask))[0] for mask in self.fg_bg_sampler(labels)
        )
        sampled = torch.cat([positive, negative])
        most = self.fg_bg_sampler.batch_size_per_image * len(labels)
        boxes = F.l1_loss(
            pred_bbox_deltas[positive], torch.cat(regression_targets)[positive], reduction="sum"
        )
        scores = F.binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled], reduction="sum"
        )
        return scores / most, boxes / most


class _Regions(RoIHeads):
    """RoI heads with detectron2's losses."""

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if not self.training:
            return super().forward(features, proposals, image_shapes, targets)
        proposals, _, labels, aims = self.select_training_samples(proposals, targets)
        pooled = self.box_roi_pool(features, proposals, image_shapes)
        scores, boxes = self.box_predictor(self.box_head(pooled))
        classes, box_loss = region_losses(scores, boxes, torch.cat(labels), torch.cat(aims))
        return [], {"loss_classifier": classes, "loss_box_reg": box_loss}


def region_losses(
    scores: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the classes and the absolute differences of the boxes.

    Both are means over all regions. Scores are (regions, classes + 1), boxes (regions,
    4 · (classes + 1)), and labels 0 for background, whose boxes do not count.
    """
    positive = torch.where(labels > 0)[0]
    predicted = boxes.reshape(len(boxes), -1, 4)[positive, labels[positive]]
    box_loss = F.l1_loss(predicted, targets[positive], reduction="sum")
    return F.cross_entropy(scores, labels), box_loss / max(1, len(labels))


class _RegionHead(nn.Module):
    """The backbone's last stage, BN, and the mean over a region: (regions, num_features)."""

    def __init__(self, backbone: Backbone, *, bfloat16: bool) -> None:
        super().__init__()
        self._backbone = [backbone]  # a list, since the detector already owns its parameters
        self.norm = nn.BatchNorm2d(backbone.num_features)
        self._reduced = bfloat16

    def forward(self, regions: Tensor) -> Tensor:
        regions = regions.contiguous(memory_format=torch.channels_last)
        with torch.autocast(regions.device.type, torch.bfloat16, enabled=self._reduced):
            features = self._backbone[0].top(regions)
        return self.norm(features.float()).mean(dim=(2, 3))
