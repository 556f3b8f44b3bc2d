#!/usr/bin/env bash
# The JiT guide's script:  train_multi_gpu.sh [NUM_GPUS] [any flag of `lockstep run jit`]
# NUM_GPUS ranks (2); on a machine without GPUs they are on the CPU. It sets --preset guide, the data in ./data/train,
# results into ./output; flags behind it win. BATCH_SIZE=64 (of each rank), GRADIENT_ACCUMULATION_STEPS=1, USE_AMP=true.
# With --config FILE there are no such defaults: only what is given counts, here, in these variables or in the file.
# LOCKSTEP_BIN=FOLDER: where the programs are; unset: on the PATH, else this repository's build/release/bin.
set -euo pipefail
num_gpus=
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  num_gpus=$1
  shift
fi
has_config=false
has_folder=false
batch_is_ours=true
for word in "$@"; do
  case $word in
    --config | --config=*) has_config=true ;;
    --train_dir* | --train-dir*) has_folder=true ;;
    --batch_size* | --batch-size* | --nproc* | --grad*accum*) batch_is_ours=false ;;
  esac
done
defaults=()
if ! $has_config; then
  : "${num_gpus:=2}" "${BATCH_SIZE:=64}" "${GRADIENT_ACCUMULATION_STEPS:=1}" "${USE_AMP:=true}"
  defaults=(--preset guide --data_path ./data/train)
  $has_folder || defaults+=(--output_dir ./output)
fi
check() {
  [[ -z $2 || $2 =~ $3 ]] && return
  echo "$1: found \"$2\", expected $4" >&2
  exit 2
}
number='^[1-9][0-9]{0,8}$'
check NUM_GPUS "$num_gpus" "$number" "a number of ranks from 1, as in: $0 2 [flags of lockstep run jit]"
check BATCH_SIZE "${BATCH_SIZE:-}" "$number" "a number of samples from 1; unset it for 64"
check GRADIENT_ACCUMULATION_STEPS "${GRADIENT_ACCUMULATION_STEPS:-}" "$number" "a number from 1; unset it for 1"
check USE_AMP "${USE_AMP:-}" '^(true|false)$' "true or false; unset it for true"
if [ -n "${LOCKSTEP_BIN:-}" ]; then
  lockstep=$LOCKSTEP_BIN/lockstep
elif ! lockstep=$(command -v lockstep); then
  lockstep=$(dirname "$0")/../build/release/bin/lockstep
fi
if [ ! -x "$lockstep" ]; then
  echo "$lockstep is not there: build it (make build), put lockstep on the PATH, or set LOCKSTEP_BIN" >&2
  exit 2
fi
if $batch_is_ours && ! $has_config; then
  echo "effective batch: $BATCH_SIZE x $num_gpus ranks x $GRADIENT_ACCUMULATION_STEPS =" \
    "$((BATCH_SIZE * num_gpus * GRADIENT_ACCUMULATION_STEPS))"
fi
exec "$lockstep" run jit ${defaults[@]+"${defaults[@]}"} ${num_gpus:+--nproc "$num_gpus"} \
  ${BATCH_SIZE:+--batch_size "$BATCH_SIZE"} \
  ${GRADIENT_ACCUMULATION_STEPS:+--gradient_accumulation_steps "$GRADIENT_ACCUMULATION_STEPS"} \
  ${USE_AMP:+--use_amp "$USE_AMP"} "$@"
