"""`burn finetune`: a pretrained network and a classifier learn together from labelled images."""
