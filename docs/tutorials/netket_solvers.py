import sys

import jax
import netket as nk
import numpy as np

import lockstep.linalg
from lockstep.linalg import netket as distributed

sys.modules["jaxmg"] = lockstep.linalg  # what NetKet's own distributed solvers import

SPINS = 8
hilbert = nk.hilbert.Spin(0.5, SPINS)
hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(SPINS), h=1.0, J=-1.0)


def energies(solver):  # of ten steps of stochastic reconfiguration
    sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)
    state = nk.vqs.MCState(sampler, nk.models.RBM(alpha=1), n_samples=256, seed=0)
    driver = nk.driver.VMC_SR(
        hamiltonian,
        nk.optimizer.Sgd(0.05),
        diag_shift=0.01,
        variational_state=state,
        linear_solver=solver,
    )
    log = nk.logging.RuntimeLog()
    driver.run(10, out=log, show_progress=False)
    return np.asarray(log.data["Energy"].Mean).real


theirs = nk.optimizer.solver
one_device = energies(theirs.pinv_smooth(rtol=1e-10))
for solver in (
    distributed.cholesky_distributed,
    distributed.pinv_smooth_distributed(rtol=1e-10),
    theirs.cholesky_distributed,
    theirs.pinv_smooth_distributed(rtol=1e-10),
):
    difference = np.abs(energies(solver) - one_device).max()
    if jax.process_index() == 0:
        print("the same energies as pinv_smooth:", difference < 1e-6)
if jax.process_index() == 0:
    print(f"from {one_device[0]:.2f} to {one_device[-1]:.2f}")
