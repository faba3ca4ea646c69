#!/usr/bin/env bash
# The main job on Slurm, from a checkout and with a NANOCHAT_BASE_DIR that all nodes share: tracks/scale/README.md
#   sbatch --nodes=4 tracks/scale/slurm.sh --tag=NAME     flags as of speedrun.sh
#SBATCH --job-name=nanochat
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
set -euo pipefail
cd -- "$SLURM_SUBMIT_DIR"
: "${NANOCHAT_BASE_DIR:?has to be a folder that all nodes share}"
if [ -z "${NANOCHAT_CONTAINER:-}" ]; then bash runs/setup.sh; fi # once, before all nodes find it done
NANOCHAT_HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 10000))
export NANOCHAT_HEAD NANOCHAT_NODES=$SLURM_JOB_NUM_NODES NANOCHAT_PATIENCE=${NANOCHAT_PATIENCE:-600}
# With pyxis, NANOCHAT_CONTAINER may name an image built from tracks/scale/Containerfile.
container=(${NANOCHAT_CONTAINER:+"--container-image=$NANOCHAT_CONTAINER" --container-workdir=/nanochat
  "--container-mounts=$NANOCHAT_BASE_DIR:$NANOCHAT_BASE_DIR"})

srun --kill-on-bad-exit=1 --cpu-bind=none ${container[@]+"${container[@]}"} \
  bash -c 'NANOCHAT_NODE_RANK=$SLURM_NODEID exec bash speedrun.sh "$@"' node "$@" & job=$!
# Five minutes before the limit the trainers save and end; the requeued job resumes.
stopping=
trap 'stopping=1; kill -USR1 "$job"' USR1
while :; do
  code=0
  wait "$job" || code=$?
  kill -0 "$job" 2>/dev/null || break # else the signal ended the wait
done
if [ -n "$stopping" ] && [ "$code" != 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$code"
