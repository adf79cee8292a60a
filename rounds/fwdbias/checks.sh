# 55 s: forward checks of every form of bias on Hopper, and the kernels of run.sh compiled side by side
export WARPLOOM_LIBRARY=$PWD/lib PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python WARPLOOM_CACHE_DIR=$PWD/cache
for d in 64 128 256; do timeout 50 python bias_bench.py $d warm 2>&1 | grep -i fail & done
timeout 58 python tools/gpu_check --only 'forward-bias*' --only 'forward-softmax-bias*' 2>&1 | tail -40
wait
