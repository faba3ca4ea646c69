#!/usr/bin/env bash
echo "error: runs/slurm.sh has moved: run sbatch tracks/scale/slurm.sh, with the same flags" >&2
exit 2
