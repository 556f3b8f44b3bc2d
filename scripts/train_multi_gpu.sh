#!/usr/bin/env bash
# The JiT guide's script:  train_multi_gpu.sh [NUM_GPUS] [any flag of `lockstep run jit`]
# NUM_GPUS ranks (2); on a machine without GPUs they are on the CPU. It sets --preset guide, the data in ./data/train,
# results into ./output; flags behind it win. BATCH_SIZE=64 (of each rank), GRADIENT_ACCUMULATION_STEPS=1, USE_AMP=true.
# LOCKSTEP_BIN=FOLDER: where the programs are; unset: on the PATH, else this repository's build/release/bin.
set -euo pipefail
num_gpus=2
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  num_gpus=$1
  shift
fi
check() {
  [[ $2 =~ $3 ]] && return
  echo "$1: found \"$2\", expected $4" >&2
  exit 2
}
number='^[1-9][0-9]{0,8}$'
check NUM_GPUS "$num_gpus" "$number" "a number of ranks from 1, as in: $0 2 [flags of lockstep run jit]"
check BATCH_SIZE "${BATCH_SIZE:=64}" "$number" "a number of samples from 1; unset it for 64"
check GRADIENT_ACCUMULATION_STEPS "${GRADIENT_ACCUMULATION_STEPS:=1}" "$number" "a number from 1; unset it for 1"
check USE_AMP "${USE_AMP:=true}" '^(true|false)$' "true or false; unset it for true"
if [ -n "${LOCKSTEP_BIN:-}" ]; then
  lockstep=$LOCKSTEP_BIN/lockstep
elif ! lockstep=$(command -v lockstep); then
  lockstep=$(dirname "$0")/../build/release/bin/lockstep
fi
if [ ! -x "$lockstep" ]; then
  echo "$lockstep is not there: build it (make build), put lockstep on the PATH, or set LOCKSTEP_BIN" >&2
  exit 2
fi
output=(--output_dir ./output)
batch_is_ours=true
for word in "$@"; do
  case $word in
    --train_dir* | --train-dir*) output=() ;;
    --batch_size* | --batch-size* | --nproc* | --grad*accum* | --config*) batch_is_ours=false ;;
  esac
done
if $batch_is_ours; then
  echo "effective batch: $BATCH_SIZE x $num_gpus ranks x $GRADIENT_ACCUMULATION_STEPS =" \
    "$((BATCH_SIZE * num_gpus * GRADIENT_ACCUMULATION_STEPS))"
fi
exec "$lockstep" run jit --preset guide --data_path ./data/train ${output[@]+"${output[@]}"} --nproc "$num_gpus" \
  --batch_size "$BATCH_SIZE" --gradient_accumulation_steps "$GRADIENT_ACCUMULATION_STEPS" --use_amp "$USE_AMP" "$@"
