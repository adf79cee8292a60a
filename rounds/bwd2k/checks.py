import subprocess,sys,os,time
if len(sys.argv)>1:
    sys.path.insert(0,'bench')
    import torch, gpu_backward_checks as g, gpu_backward_reference as R
    from gpu_cases import BACKWARD_PROBLEMS, BACKWARD_SPECIAL_CHECKS
    torch.set_num_threads(1)
    i,n=int(sys.argv[1]),int(sys.argv[2])
    wide=lambda p:max(p.dim,p.value_dim)>128
    P={k:p for k,p in BACKWARD_PROBLEMS.items() if p.bias is None}
    prio=[k for k in P if 'D256' in k and 'dims' not in k]+[k for k in P if 'dims' not in k and not wide(P[k])]+[k for k in ('graph-capture','autograd','nan-stays-in-its-sequence','independent-of-the-batch')]
    names=prio+[k for k in P if k not in prio and wide(P[k])]+[k for k in P if k not in prio and not wide(P[k])]
    only=os.environ.get("ONLY")
    if os.environ.get('WIDE'): names=[k for k in names if k in P and wide(P[k])]
    part=os.environ.get('HALF')
    if part: names=names[int(part)::2]
    if only: names=[k for k in names if any(x in k for x in only.split(','))]
    bad=0
    log=open(f"log{os.environ.get('PART',0)}_{i}.txt","w")
    def one(k):
        if k not in P: return g.run(k)
        p=P[k]; seed=sum(map(ord,k))
        inputs,call,dout,out=g.build_backward(p,seed)
        found=g.differentiate(p,call,True); again=g.differentiate(p,call,not wide(p))
        v=R.judge(p,inputs,g.rows_of(dout),out,found)

        if v.ok and not all(torch.equal(a, again.named()[x]) for x, a in found.named().items()) : v.ok=False; v.message="not repeatable"
        if v.ok and not wide(p) and False: pass
        return v
    for k in names[i::n]:
        print(k,file=log,flush=True)
        try:
            v=one(k)
            if not v.ok: bad+=1; print("BAD",k,f"{v.error:.3g}/{v.limit:.3g}",v.message[:150],flush=True)
        except Exception as e:
            bad+=1; print("EXC",k,repr(e)[:300],flush=True)
            if 'CUDA' in repr(e) or 'launch' in repr(e): break
    print("done",file=log,flush=True)
    if bad: print("worker",i,"of",len(names[i::n]),"bad",bad,flush=True)
else:
    n=int(os.environ.get("WORKERS","8")); limit=float(os.environ.get("LIMIT","50"))
    t=time.time()
    ps=[subprocess.Popen([sys.executable,"checks.py",str(i),str(n)]) for i in range(n)]
    done=0;seen=0
    for i,p in enumerate(ps):
        try: p.wait(timeout=max(1,limit-(time.time()-t))); done+=1
        except subprocess.TimeoutExpired: p.kill(); 
        l=open(f"log{os.environ.get('PART',0)}_{i}.txt").read().split() if os.path.exists(f"log{os.environ.get('PART',0)}_{i}.txt") else []
        seen+=len([x for x in l if x!='done'])
        if l[-1:]!=['done']: print("UNFINISHED",i,len(l),l[-1:],"rc",p.returncode)
    print("checks",round(time.time()-t,1),"s workers done",done,"of",n,"problems",seen,flush=True)
