"""Numbers below or above which several packages call something by the same name."""

from __future__ import annotations

TARGET_ALARM = 0.5  # share of log C below which a target counts as collapsed
# Below which features count as collapsed. RankMe of features as they are says little here: their
# mean is its largest singular value, and where it grows the rank falls to 3 with images told apart
# as well as before (BURN on digits at 100 times its learning rate: kNN 52 %, less the mean 40).
# Less the mean: 26 stages of every method, trained on CIFAR-10, at least 7.5 on 32 images, 11 on 64
# and 18 on 128; on digits, all on 64 images: BYOL without predictor, whose loss is zero and whose
# backbone still has kNN 33 %, 26; BYOL at 100 times its learning rate, kNN 49 %, 4.3; SimCLR at 300
# times its learning rate, kNN 14 to 23 %, 2.9 to 1.1.
RANK_ALARM = 3.0
# Features that differ by rounding alone have a high rank: bfloat16 makes a spread of 0.001. The
# lowest measured of features that tell images apart is 0.027 (that BYOL at kNN 49 %).
SPREAD_ALARM = 0.003
