import jax
import netket as nk
import numpy as np

SPINS = 16
hilbert = nk.hilbert.Spin(0.5, SPINS)
chain = nk.graph.Chain(SPINS, pbc=True)
hamiltonian = nk.operator.IsingJax(hilbert, chain, h=1.0, J=-1.0)

sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=64)  # 16 on each of 4 devices
state = nk.vqs.MCState(sampler, nk.models.RBM(alpha=1), n_samples=1024, seed=0)
optimizer = nk.optimizer.Sgd(0.05)
driver = nk.driver.VMC_SR(hamiltonian, optimizer, diag_shift=0.01, variational_state=state)

log = nk.logging.RuntimeLog()
driver.run(100, out=log, show_progress=False)
energy = state.expect(hamiltonian)  # every process takes part

if jax.process_index() == 0:
    for step in range(0, 100, 20):
        print(f"step {step:2}  energy {log.data['Energy'].Mean[step].real:.3f}")
    print("at the end:", energy)
    print("samples:", state.samples.shape, state.samples.sharding.spec)
    momenta = (2 * np.arange(SPINS) + 1) * np.pi / SPINS
    print(f"exact: {-2 * np.abs(np.sin(momenta / 2)).sum():.3f}")
