# seconds: 18
[ -f libx/libwarploom.so ] || gzip -dkc libx/libwarploom.so.gz > libx/libwarploom.so.tmp && mv libx/libwarploom.so.tmp libx/libwarploom.so 2>/dev/null || true
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python:$PWD/bench:$PWD WARPLOOM_LIBRARY=$PWD/libx LIBX=$PWD/libx WARPLOOM_CACHE_DIR=$PWD/cache WARPLOOM_PACKS=$PWD/pack
timeout 19 python3 main.py
