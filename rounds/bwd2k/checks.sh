# seconds: 58
[ -f libx/libwarploom.so ] || gzip -dkc libx/libwarploom.so.gz > libx/libwarploom.so.tmp && mv libx/libwarploom.so.tmp libx/libwarploom.so 2>/dev/null || true
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python:$PWD/bench:$PWD WARPLOOM_LIBRARY=$PWD/libx LIBX=$PWD/libx WARPLOOM_CACHE_DIR=$PWD/cache WARPLOOM_PACKS=$PWD/pack
for d in 256 192; do for i in 0 1 2 3; do timeout 30 python3 warm.py $d $i 4 2>&1 | grep -v Warn & done; done
wait
# every wide edge case with the tiles of next (ONCE 0), then with dQ at once (ONCE 1)
WIDE=1 WORKERS=6 LIMIT=40 PART=0 BK_ONCE=0 timeout 45 python3 checks.py &
WIDE=1 WORKERS=6 LIMIT=40 PART=1 BK_ONCE=1 timeout 45 python3 checks.py &
wait
