import sys; D=int(sys.argv[1]); i=int(sys.argv[2]); n=int(sys.argv[3])
from vt import *; from variants import *
items=list((V if D==256 else V192).items())
q,k,v,do=[torch.randn(256,2,D,device='cuda').bfloat16() for _ in range(4)]
cu=torch.tensor([0,128,256],device='cuda',dtype=torch.int32)
import warploom as wl
m=dict(mask=wl.Mask.causal(),max_seqlen_q=128,max_seqlen_k=128)
o,lse=wl.softmax_attention(q,k,v,cu,return_lse=True,**m)
ref={}
for name,(lib,env,dt) in items[i::n]:
    for op in 'hs':
        try:
            use(lib,env)
            r=wl.hstu_attention_backward(do,q,k,v,cu,**m) if op=='h' else wl.softmax_attention_backward(do,q,k,v,o,lse,cu,**m)
            torch.cuda.synchronize()
        except Exception as e: print('warm',D,name,op,repr(e)[:200],flush=True)
