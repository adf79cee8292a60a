# about 18 s: three builds (everything; sums cleared but not converted in the kernel; nothing of it), backward TFLOP/s.
# Expected (off -> clears -> all): L1024 D64 287 -> 312 -> 345, D128 364 -> 395 -> 445; jagged 304 -> 320 -> 355, 386 -> 408 -> 440;
# L4096 485 -> 495 -> 515, 572 -> 588 -> 620. Softmax 2 to 10 % more. Which lines in tools/gpu_check prove it: checks backward-*, torch-*, bench */backward.
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python WARPLOOM_CACHE_DIR=$PWD/cache
for build in off clears all; do
  WARPLOOM_LIBRARY=$PWD/lib-$build timeout 15 python3 time_backward.py $build 2>&1 | tail -4
done
