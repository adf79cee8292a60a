# expected: 35 s on 16 cores (10 s to compile all kernels side by side, then 14 cases of 1 to 2 s, mostly making the problem)
# Writes out/*: per case the JSON, SVG and Perfetto traces, then one line a case: plain and traced ms, slow-down,
# makespan of CTA 0, products under way, order. Prediction: every slow-down below 2 % (one CTA records), order 0 violated.
set -u
export WARPLOOM_LIBRARY=$PWD/lib PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/python LD_LIBRARY_PATH=$PWD/lib:${LD_LIBRARY_PATH:-}
NV=$(python3 -c "import glob, os, sys; print(next((os.path.dirname(f) for p in sys.path for f in sorted(glob.glob(p + '/nvidia/*/lib/libnvrtc.so.*'))), ''))")
export LD_LIBRARY_PATH=${NV:+$NV:}$LD_LIBRARY_PATH  # where NVRTC is looked for
mkdir -p out
trace() { # name, then arguments of warploom trace attention
  local name=$1; shift
  timeout 20 ./warploom trace attention "$@" --compare --rounds 20 --until 40000 --svg out/$name.svg \
    --perfetto out/$name.perfetto.json --json out/$name.json > out/$name.txt 2>&1
  local rc=$?
  python3 - "$name" $rc <<'PY'
import json, sys
name, rc = sys.argv[1], sys.argv[2]
try:
    a = json.load(open(f"out/{name}.json"))
    t, c = a["timing"], a["comparison"]
    rows = "; ".join(f"{r['tag'] or r['what'][7:]} {r['measured']['count']:.0f}x{r['measured']['mean']:.0f}" for r in c["rows"])
    print(f"{name}: rc {rc}, {t['plain_ms']:.4f} -> {t['traced_ms']:.4f} ms ({t['slow_down_percent']:+.2f} %), CTA 0 "
          f"{a['makespan']} cycles at {a['clock_ghz']:.3f} GHz, products {c['tensor']['measured']:.1f} %, order "
          f"{a['order']['violated']}/{a['order']['checked']}, lost {a['lost']} | {rows}")
except Exception as e:
    print(name, "rc", rc, "failed:", e, open(f"out/{name}.txt").read()[-300:])
PY
}
cases() { # calls $1 with a case's name and arguments
  for op in hstu softmax; do
    for d in 64 128 256; do
      $1 forward-$op-D$d --op $op --head-dim $d
      if [ $d = 256 ]; then
        for k in keys dq; do $1 backward-$k-$op-D$d --op $op --head-dim $d --pass backward --kernel $k; done
      else
        $1 backward-$op-D$d --op $op --head-dim $d --pass backward
      fi
    done
  done
}
compile() { shift; timeout 60 ./warploom trace attention "$@" > /dev/null 2>&1 & }
cases compile
wait
cases trace
# What marks cost when every CTA records, and without those of the main loops: to choose by.
for more in "--record 0" "--detail rings"; do
  echo "$more"
  timeout 20 ./warploom trace attention --op hstu --rounds 20 $more 2>&1 | grep -E "takes|order"
done
