#!/usr/bin/env bash
# The paper's comparison, ablations and analyses, by the commands of docs/project/results.md:
#
#     make reproduce SCALE=small     # on built-in images, an hour of one core at most
#     make reproduce SCALE=full      # CIFAR-10 and photographs of clothes, days
#
# The same command continues after an interruption. Small shows that everything runs; its budgets are
# too small to say which method is better. Full needs the folders cifar10 and clothing in the working
# directory, each with train.parquet and val.parquet, and the teacher lite0 (`burn-ssl[teacher]`).
# `python -m reproduction.documents.generate --take FOLDER …` puts its numbers into results.md.
set -euo pipefail

small() {
    local digits=(--data digits --test digits)
    burn demo --out "$out/demo"
    burn compare --methods burn,mocov2,supervised "${digits[@]}" --budget 4096 \
        --teacher "$out/demo/teacher" --out "$out/compared"
    burn ablate --groups components,classifier --recipe demo "${digits[@]}" --budget 4096 \
        --teacher "$out/demo/teacher" --out "$out/ablated"
    burn analyze gradients --recipe demo --data digits --teacher "$out/demo/teacher" --steps 20 \
        --seeds 0 --out "$out/gradients"
    burn analyze negatives "${digits[@]}" --budget 4096 --out "$out/negatives"
    same
    burn report "$out"/{demo,compared,ablated,gradients,negatives,ema-toy,schedules,cost} \
        --out "$out/report.html"
}

full() {
    local cifar=(--data cifar10/train.parquet --test cifar10/val.parquet)
    local clothes=(--data clothing/train.parquet --test clothing/val.parquet)
    local lite0=(--teacher lite0 --teacher-size 96)
    burn compare --methods all --seeds 0,1,2 "${cifar[@]}" --budget 51200 "${lite0[@]}" \
        --labelled-teacher lite0 --labelled-teacher-size 96 --more svm,transfer \
        --transfer-train clothing/train.parquet --transfer-test clothing/val.parquet --compile \
        --out "$out/compared"
    burn compare --family photos --methods burn,feature_only,s2bnn --seeds 0,1 "${clothes[@]}" \
        --budget 25600 --teacher lite0 --compile --out "$out/clothes"
    burn ablate --groups stages,classifier,projection,targets,sign,weights,views --seeds 0,1 \
        --recipe burn_small "${cifar[@]}" --budget 51200 "${lite0[@]}" --compile \
        --out "$out/ablated-default"
    burn ablate --groups components,joint,similarity,balance,direction --seeds 0,1 \
        --recipe burn_small "${cifar[@]}" --budget 51200 "${lite0[@]}" --compile \
        --out "$out/ablated"
    burn pretrain --recipe teacher_small --data cifar10/train.parquet --resume --out "$out/teacher"
    burn analyze gradients --data cifar10/train.parquet --teacher "$out/teacher" --steps 100 \
        --seeds 0,1 --out "$out/gradients"
    burn analyze negatives "${cifar[@]}" --budget 25600 --linear.lr 0.003 --workers 0 \
        --seeds 0,1 --out "$out/negatives"
    same
}

# What takes seconds.
same() {
    burn analyze ema-toy --out "$out/ema-toy"
    burn analyze schedules --out "$out/schedules"
    burn analyze cost --compared "$out/compared" --out "$out/cost"
}

case "${1:-}" in
small | full) ;;
*) echo "usage: make reproduce SCALE=small|full" >&2 && exit 2 ;;
esac
out=runs/reproduction/$1
"$1"
