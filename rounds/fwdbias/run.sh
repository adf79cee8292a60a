# 20 s after checks.sh (which compiles). Prediction, TFLOP/s at D 64 / 128 / 256: none 506 / 649 / 720; dense 302 / 448 / 539 (TMA, as before);
# packed 290 / 430 / 500; odd 170 / 300 / 400; float32 195 / 320 / 330; position 300 / 540; bucketed 240 / 430; unsorted 93 / 134.
# Jagged D 64 / 128: packed 210 / 300; odd (the report's case, 154 by mma.sync) 130 / 220; bucketed 160 / 250.
export WARPLOOM_LIBRARY=$PWD/lib PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python WARPLOOM_CACHE_DIR=$PWD/cache
for d in 64 128 256; do timeout 30 python bias_bench.py $d 2>&1 | tail -8; done
