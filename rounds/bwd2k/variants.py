import os
H=os.getcwd()
OLD={'BK_KROWS':'64','BK_KSTAGES':'2','BK_ONCE':'0'}
V={'old':('old',OLD,False),
 'k3':('k3',{'BK_ONCE':'0'},False),            # three stages of Q and dO: as on next
 'k3once':('k3once',{'BK_ONCE':'1'},False),    # and dQ's product at once
 'form1':('form1',{'BK_SRC':H+'/src_form1','BK_SHARED':'232448','BK_KROWS':'64','BK_KSTAGES':'2','BK_ONCE':'0'},False)}
NOF1={k:V[k] for k in ('old','k3','k3once')}
V192={**NOF1,'k4x48':('k4x48',{'BK_KROWS':'48','BK_KSTAGES':'4','BK_ONCE':'0'},False)}
