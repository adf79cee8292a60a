# about 40 s: unpacks, compiles into ./cache and checks dQ of each build against the deterministic one (L 1024, jagged, L 4096)
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python WARPLOOM_CACHE_DIR=$PWD/cache
for build in off clears all; do
  (cd lib-$build && xz -dkf libwarploom.so.0.xz && ln -sf libwarploom.so.0 libwarploom.so)
done
for build in off clears all; do
  WARPLOOM_LIBRARY=$PWD/lib-$build timeout 55 python3 time_backward.py $build warm > warm-$build.txt 2>&1 &
done
wait
for build in off clears all; do echo "$build: $(grep -c cudnn warm-$build.txt) line(s)"; tail -2 warm-$build.txt | cut -c1-300; done
