"""vt.py: times variants (copies of the library, environments) in one process; BK_* as in libx."""
import sys,os,time,ctypes,shutil
sys.path.insert(0,'bench')
import torch, warploom as wl
from warploom import _library
from pathlib import Path
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
KEYS=("BK_SRC","BK_SHARED","BK_KROWS","BK_KSTAGES","BK_ONCE","BK_KEYS","BK_STAGES","BK_VSTAGES","BK_TURNS","WARPLOOM_KERNELS")
_library.add_cuda_library_directories()
base=_library.library
dirs=[p for p in sys.path if p]
libs={}
def use(lib,env):
    if lib not in libs:
        src=os.path.realpath(os.path.join(os.environ["LIBX"],"libwarploom.so")); to=f"/tmp/lib_{os.getpid()}_{lib}.so"
        shutil.copy(src,to); libs[lib]=_library._load(Path(to))
        _library.library=libs[lib]; _library._cuda_directories_added=False; _library.add_cuda_library_directories()
    L=libs[lib]; _library.library=L; _library.run=L.warploom_run
    for k in KEYS:
        if k in env: os.environ[k]=env[k]
        elif k in os.environ: del os.environ[k]
def bench(fns,rounds=5,burst=4):
    ts={k:[] for k in fns}
    flush=torch.empty(32<<20,device='cuda',dtype=torch.float32)
    for k,f in list(fns.items()):
        try: f(); f(); torch.cuda.synchronize()
        except Exception as e:
            print("FAIL",k,repr(e)[:300],flush=True); del fns[k]
            if 'CUDA' in repr(e): raise
    for r in range(rounds):
        ks=list(fns); ks=ks[r%len(ks):]+ks[:r%len(ks)]
        for k in ks:
            flush.zero_()
            torch.cuda._sleep(400000)
            a,b=(torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            for _ in range(burst): fns[k]()
            b.record(); b.synchronize(); ts[k].append(a.elapsed_time(b)/burst)
    return {k:sorted(v)[len(v)//2] for k,v in ts.items() if v}
def case(D,B,L,variants,ops='h',det=False,jag=False,causal=True,cudnn=True,prof=False,H=4,rounds=5):
    """variants: name -> (lib, env, det)"""
    g=torch.Generator(device='cuda').manual_seed(1)
    lens=torch.full((B,),L) if not jag else torch.randint(256,L+1,(B,),generator=torch.Generator().manual_seed(0))
    T=int(lens.sum())
    q,k,v,do=[torch.randn(T,H,D,device='cuda',generator=g).bfloat16() for _ in range(4)]
    cu=torch.cat((torch.zeros(1,dtype=torch.long),lens.cumsum(0))).int().cuda()
    m=dict(mask=wl.Mask.causal() if causal else wl.Mask.full(),max_seqlen_q=L,max_seqlen_k=L)
    use('main',{}); 
    o=lse=None
    if 's' in ops: o,lse=wl.softmax_attention(q,k,v,cu,return_lse=True,**m)
    fns={}
    def make(name,op):
        lib,env,dt=variants[name]
        def f():
            use(lib,env)
            if op=='h': return wl.hstu_attention_backward(do,q,k,v,cu,deterministic=dt,**m)
            return wl.softmax_attention_backward(do,q,k,v,o,lse,cu,deterministic=dt,**m)
        return f
    for op in ops:
        for n in variants: fns[op+':'+n]=make(n,op)
    if cudnn and not jag:
        try:
            ls=[x.unflatten(0,(B,L)).transpose(1,2).detach().requires_grad_() for x in (q,k,v)]
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): out=sdpa(*ls,is_causal=causal)
            dd=do.unflatten(0,(B,L)).transpose(1,2)
            fns['cudnn']=lambda:torch.autograd.grad(out,ls,dd,retain_graph=True)
        except Exception as e: print('cudnn',repr(e)[:100])
    r=bench(fns,rounds)
    fl=10*float((lens.double()**2).sum())*H*D*(0.5 if causal else 1)
    print(f"D{D} B{B} L{L}{' jag' if jag else ''}{'' if causal else ' full'}",' '.join(f"{k} {fl/t/1e9:.0f}({t*1e3:.0f}us)" for k,t in r.items()),flush=True)
    if prof:
        try:
            from torch.profiler import profile, ProfilerActivity
            for nm,f in fns.items():
                if nm=="cudnn": continue
                with profile(activities=[ProfilerActivity.CUDA]) as pr:
                    f();f(); torch.cuda.synchronize()
                print("  ",nm,[(e.key.replace('attention_','')[:22],round(e.device_time_total/2)) for e in pr.key_averages() if e.device_time_total>4 and 'attention' in e.key],flush=True)
        except Exception as e: print("prof",repr(e)[:100])
    return fns
