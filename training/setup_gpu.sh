#!/usr/bin/env bash
# Unpacks what was carried to the GPU machine into WORK (default /tmp/nano); safe to run again as more arrives.
# Source it: it also sets the variables that the recipe reads.
work=${WORK:-/tmp/nano}
mkdir -p "$work/python" "$work/teachers/kokoro" "$work/logs"
[ -d "$work/python/hibari" ] || tar xJf .carry2/hibari.tar.xz -C "$work/python"
[ -d "$work/teachers/flite" ] || tar xJf .carry2/flite.tar.xz -C "$work/teachers"
cp -n .carry2/libworld.so .carry2/texts.json.gz "$work/" 2>/dev/null
cp -n .carry2/vocab.json .carry2/voices_ja.npz .carry2/kokoro.xz0 "$work/teachers/kokoro/" 2>/dev/null
cp -n .carry_front/whisper_front.npz "$work/" 2>/dev/null
[ -d .carry_trained ] && mkdir -p "$work/frozen" && cp -n .carry_trained/*.pt "$work/frozen/"
cp -n .carry4/kokoro.xz1 .carry3/kokoro.xz2 "$work/teachers/kokoro/" 2>/dev/null
if [ -f "$work/teachers/kokoro/kokoro.xz2" ] && [ ! -f "$work/teachers/kokoro/kokoro.onnx" ]; then
  cat "$work"/teachers/kokoro/kokoro.xz[012] | xz -dc > "$work/teachers/kokoro/kokoro.tmp"
  mv "$work/teachers/kokoro/kokoro.tmp" "$work/teachers/kokoro/kokoro.onnx"
fi
export WORLD_LIBRARY="$work/libworld.so" PYTHONPATH="$PWD:$work/python"
