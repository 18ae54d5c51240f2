#!/usr/bin/env bash
# Brings what the recipe has made so far back from the GPU machine: packed weights and the ends of the logs.
set -u
work=${WORK:-/tmp/nano}
python3 - "$work" "$OUT" <<'PYTHON'
import sys
from pathlib import Path

import torch

from training.export import pack

work, out = Path(sys.argv[1]), Path(sys.argv[2])
for source in ("language_model/llm.pt", "flow/flow.pt", "vocoder/hift.pt"):
    if (work / source).exists():
        pack(torch.load(work / source, weights_only=True, map_location="cpu"), out / Path(source).name, exact=True)
PYTHON
cp "$work"/tokenizer/speech_tokenizer_v2.onnx "$work"/tokenizer/tokenizer.pt "$work"/speaker/campplus.onnx "$work"/speaker/speaker.pt "$OUT/" 2>/dev/null
for log in "$work"/logs/*.log; do echo "== $log"; head -c 300 "$log"; echo ...; tail -n 25 "$log"; done > "$OUT/logs.txt"
for name in pipeline generate speech_tokenizer speaker_encoder features language_model flow vocoder; do
  echo "== $name"; tail -n 3 "$work/logs/$name.log" 2>/dev/null | cut -c1-400
done
ls -la "$OUT"; ls "$work/data" | wc -l; nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
