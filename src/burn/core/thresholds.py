"""Thresholds that several packages use for the same alarm."""

from __future__ import annotations

TARGET_ALARM = 0.5  # share of log C below which a target counts as collapsed
# Rank (RankMe) of centred features below which they count as collapsed. The rank of features as
# they are says little: their mean is the largest singular value, and where it grows, the rank falls
# to 3 although the features tell images apart as well as before (BURN on digits at 100 times its
# learning rate: kNN 52 %; centred, the rank is 40).
# Ranks of centred features: 26 stages of every method, trained on CIFAR-10, have at least 7.5 on 32
# images, 11 on 64 and 18 on 128. On digits, all on 64 images, BYOL without predictor, whose loss is
# zero and whose backbone still has kNN 33 %, has 26; BYOL at 100 times its learning rate, kNN 49 %,
# has 4.3; SimCLR at 300 times its learning rate, kNN 14 to 23 %, has 2.9 to 1.1.
RANK_ALARM = 3.0
# Spread of features below which they count as collapsed, because features that differ by rounding
# alone have a high rank: bfloat16 makes a spread of 0.001. The lowest spread measured of features
# that tell images apart is 0.027 (the BYOL above with kNN 49 %).
SPREAD_ALARM = 0.003
