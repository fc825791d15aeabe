#!/bin/bash
# Pretrain on 4 machines with 8 GPUs each; preempted or out of time, the job requeues itself and
# goes on from the step that it saved.
#
#     sbatch examples/slurm.sh burn_imagenet imagenet/train resnet50:moco_v2_800ep.pth runs/imagenet
#
# --data and --out must be on a file system that all machines see.
#SBATCH --job-name=burn
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u

recipe=$1 data=$2 teacher=$3 out=$4
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

# The same command begins the run and goes on with it.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" burn pretrain --resume \
    --recipe "$recipe" --data "$data" --teacher "$teacher" --out "$out" \
    --workers "$SLURM_CPUS_PER_TASK" &
step=$!

# Before the time is up, and when the job is preempted: every process saves and exits with 143.
leave() {
    kill -TERM "$step" 2>/dev/null
    wait "$step"
    status=$?
    if [ "$status" = 143 ]; then
        scontrol requeue "$SLURM_JOB_ID"
        status=0
    fi
    exit "$status"
}
trap leave USR1 TERM
wait "$step"
