"""Object detection on VOC: the detector, its training and its average precision."""
