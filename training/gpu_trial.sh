#!/usr/bin/env bash
# A few seconds of every stage on the GPU machine, to find out what breaks before the long run.
set -u
. training/setup_gpu.sh
export COSYVOICE_GOLDEN_DIR=$work/golden OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1
tar xJf .carry_golden/g.tar.xz -C "$work"
data=$work/trial; mkdir -p "$data"
python3 -m training.generate --data "$data" --teachers "$work/teachers" --texts "$work/texts.json.gz" \
  --workers 9 --minutes 0.45 > "$OUT/generate.log" 2>&1 &
python3 -m pytest -q -m gpu tests/models tests/runtime tests/frontend/test_features.py > "$OUT/gpu_tests.log" 2>&1 &
wait
grep -h "real time" "$OUT/generate.log"; tail -n 15 "$OUT/gpu_tests.log"; ls "$data" | wc -l
step() { local name=$1; shift; timeout 100 python3 -m "training.$name" "$@" > "$OUT/$name.log" 2>&1 || echo "FAILED $name"; tail -n 3 "$OUT/$name.log"; }
step speech_tokenizer --data "$data" --out "$work/t_tok" --minutes 0.3 --report-utterances 20 &
step speaker_encoder --data "$data" --out "$work/t_spk" --minutes 0.25 &
step vocoder --data "$data" --out "$work/t_voc" --minutes 0.35 &
wait
step features --data "$data" --tokenizer "$work/t_tok" --speaker "$work/t_spk"
step language_model --data "$data" --tokenizer assets/nano/CosyVoice-BlankEN --out "$work/t_lm" --minutes 0.35 &
step flow --data "$data" --out "$work/t_flow" --minutes 0.35 &
step vocoder --data "$data" --out "$work/t_voc" --minutes 0.35 --resume &
wait
step export_onnx --tokenizer "$work/t_tok" --speaker "$work/t_spk" --out "$work/t_onnx"
nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv
