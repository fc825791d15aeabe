#!/usr/bin/env bash
# The comparison of binary, float and 8-bit networks that were taught alike, of docs/guide/choosing.md:
#
#     reproduction/rivals.sh runs/rivals 0 1 2      # a folder and seeds; the same command continues
#     python -m reproduction.documents.generate --take runs/rivals    # puts its numbers there
#
# It needs the folder clothing in the working directory, with train.parquet and val.parquet, the
# folder flowers with train.parquet and test.parquet (docs/models/photos.md says how they are split),
# and the teacher lite0. All networks of a seed learn from the same views of the clothes. The float
# networks' learning rates were chosen on held-out training photographs (docs/project/log.md); the
# binary ones have their recipe's.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: reproduction/rivals.sh FOLDER SEED…" >&2; exit 2; }
out=$1
seeds=("${@:2}")

# name, architecture, width, stages, steps of each stage, learning rate
networks="
reactnet_xs           reactnet_xs           1   2 200 0.016
burn                  reactnet_a            0.5 2 200 0.016
mobilenetv2_050       mobilenetv2_050       1   1 400 0.032
mobilenetv3_small_100 mobilenetv3_small_100 1   1 400 0.004
"
compared=()
while read -r name architecture width stages steps rate; do
    [ -n "$name" ] || continue
    runs=""
    for seed in "${seeds[@]}"; do
        run=$out/$name-$seed
        runs+=${runs:+,}$run
        [ -e "$run/stage$stages.safetensors" ] || burn pretrain --data clothing/train.parquet \
            --teacher lite0 --teacher-cache "$out/features" --backbone.name "$architecture" \
            --backbone.width "$width" --stages "$stages" --max-steps "$steps" --optim.lr "$rate" \
            --compute float32 --seed "$seed" --resume --out "$run" </dev/null
    done
    compared+=("$name=$runs")
done <<<"$networks"
python benchmarks/rivals.py "${compared[@]}" lite0=lite0 --calibrate clothing/train.parquet \
    --set clothes=clothing/train.parquet,clothing/val.parquet \
    --set flowers=flowers/train.parquet,flowers/test.parquet --out "$out/rivals.json"
