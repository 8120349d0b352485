#!/usr/bin/env bash
# The release gate, the same on a laptop and in a pipeline: exit code 1 where a gate fails.
set -euo pipefail
cd "$(dirname "$0")"
counterlens audit model.py:make sample:cifar10 --limit 100 --seed 0 \
  --require "accuracy.top1.low>=0.8" \
  --require "calibration.ece<=0.15" \
  --out gate --junit gate.xml
