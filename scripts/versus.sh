#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mica beside the other ways to train a GPT-2 on this machine's CPUs: PyTorch FSDP2, plain PyTorch, JAX, and llm.c and nanoGPT where
# checkouts of them are given. Makes an environment with PyTorch and JAX in build/peers first (a few GB).
#   scripts/versus.sh                                        all work, five rounds: two hours or more on two cores
#   scripts/versus.sh --rounds 1 --work char-tiny/fp32/12x64       a first look
#   scripts/versus.sh --llmc FOLDER --nanogpt FOLDER         with llm.c and nanoGPT
# Prints a line for each run, then tables in Markdown. scripts/peers/versus.py says what is measured.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
if [[ ! -x build/release/bin/mica-bench ]]; then
  echo "mica: error: build/release/bin/mica-bench is not there: cmake --preset release && cmake --build --preset release" >&2
  exit 2
fi
if [[ ! -e build/peers/ready ]]; then
  python3 -m venv build/peers
  build/peers/bin/pip install --quiet torch numpy jax
  touch build/peers/ready
fi
exec build/peers/bin/python scripts/peers/versus.py --mica build/release/bin/mica-bench "$@"
