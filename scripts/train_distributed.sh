#!/usr/bin/env bash
# The SASRec guide's script:  train_distributed.sh DATASET TRAIN_DIR [any flag of `lockstep run sasrec`]
# DATASET is a name or a path; results go into <DATASET>_<TRAIN_DIR>. It sets --preset guide; flags behind it win.
# NUM_GPUS=N: N ranks; unset: one for each visible GPU, and without a GPU one on the CPU. LOCKSTEP_BIN=FOLDER:
# where the programs are; unset: on the PATH, else this repository's build/release/bin.
set -euo pipefail
usage="usage: [NUM_GPUS=N] $0 DATASET TRAIN_DIR [flags of lockstep run sasrec]"
if [ $# -lt 2 ] || [[ $1 == -* ]] || [[ $2 == -* ]]; then
  echo "$usage" >&2
  exit 2
fi
if [ -n "${NUM_GPUS:-}" ] && ! [[ $NUM_GPUS =~ ^[1-9][0-9]*$ ]]; then
  echo "NUM_GPUS: found \"$NUM_GPUS\", expected a number of ranks from 1; unset it for all GPUs" >&2
  exit 2
fi
if [ -n "${LOCKSTEP_BIN:-}" ]; then
  lockstep=$LOCKSTEP_BIN/lockstep
elif ! lockstep=$(command -v lockstep); then
  lockstep=$(dirname "$0")/../build/release/bin/lockstep
fi
if [ ! -x "$lockstep" ]; then
  echo "$lockstep is not there: build it (make build), put lockstep on the PATH, or set LOCKSTEP_BIN" >&2
  exit 2
fi
exec "$lockstep" run sasrec --preset guide --dataset "$1" --train_dir "$2" ${NUM_GPUS:+--nproc "$NUM_GPUS"} "${@:3}"
