"""Object detection on VOC: the network, its training and its average precision."""
