#!/usr/bin/env bash
# The paper's comparison, ablations and analyses, by the commands of docs/project/results.md:
#
#     make reproduce SCALE=small     # on built-in images, an hour of one core at most
#     make reproduce SCALE=full      # CIFAR-10, Tiny-ImageNet and photographs of clothes, days
#
# The same command continues after an interruption. Small shows that everything runs; its budgets are
# too small to say which method is better. Full needs the folders cifar10, clothing and tiny in the
# working directory, each with train.parquet and val.parquet (`python -m reproduction.tiny` makes the
# last), and the teacher lite0 (`burn-ssl[teacher]`).
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
    local tiny=(--data tiny/train.parquet --test tiny/val.parquet --linear.epochs 20)
    local lite0=(--teacher lite0 --teacher-size 96)
    burn compare --methods all --seeds 0,1,2 "${cifar[@]}" --budget 51200 "${lite0[@]}" \
        --labelled-teacher lite0 --labelled-teacher-size 96 --more svm,transfer \
        --transfer-train clothing/train.parquet --transfer-test clothing/val.parquet --compile \
        --out "$out/compared"
    fine_tuned
    burn compare --methods burn,s2bnn,supervised,simclr,mocov2,byol,swav --seeds 0,1 \
        "${tiny[@]}" --budget 51200 "${lite0[@]}" --more transfer \
        --transfer-train cifar10/train.parquet --transfer-test cifar10/val.parquet --compile \
        --out "$out/tiny"
    burn ablate --groups components,similarity,balance --seeds 3,4 --recipe burn_small \
        "${tiny[@]}" --budget 51200 "${lite0[@]}" --compile --out "$out/ablated-tiny"
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

# With 1 and 10 % of the labels, at one rate for each method.
fine_tuned() {
    local method seed labels rate
    for method in burn s2bnn supervised simclr infomin mocov2 byol swav; do
        rate=0.001
        if [ "$method" = supervised ]; then rate=0.01; fi
        for seed in 0 1 2; do
            for labels in 1 10; do
                burn evaluate semi "$out/compared/$method-seed$seed" \
                    --train cifar10/train.parquet --test cifar10/val.parquet --labels "$labels" \
                    --select test --lrs "$rate" --head-factors 1 --seed "$seed" \
                    --out "$out/semi$labels/$method-seed$seed"
            done
        done
    done
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
