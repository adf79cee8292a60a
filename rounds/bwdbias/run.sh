# 18 s: dense bias with its gradient: jagged (rows begin anywhere) against equal lengths, D 64 and 128, packed, fp16; TFLOP/s
export WARPLOOM_LIBRARY=$PWD/lib PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python
timeout 20 python run.py
