#!/usr/bin/env bash
# The JiT guide's script for one GPU:  train.sh [any flag of `lockstep run jit`]; train_multi_gpu.sh says the rest.
exec "$(dirname "$0")/train_multi_gpu.sh" 1 "$@"
