# 45 s: every backward check with a bias, and torch's, from the tree as it stands on the GPU machine
export WARPLOOM_LIBRARY=$PWD/lib PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python
timeout 58 python tools/gpu_check --only 'backward-*bias*' --only 'backward-softmax-bias*' 2>&1 | tail -40
