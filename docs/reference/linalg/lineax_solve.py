import jax
import jax.numpy as jnp
import lineax as lx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from lockstep.linalg.lineax import AutoLinearSolver

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
jax.set_mesh(mesh)  # inside linear_solve, arrays do not say where they are
solver = AutoLinearSolver(well_posed=None, in_specs=P("rows", None))
m, n = 2000, 48


def design():  # m points, n waves
    place = jnp.linspace(0, 1, m)
    return jnp.cos(jnp.pi * place[:, None] * jnp.arange(n))


a = jax.jit(design, out_shardings=NamedSharding(mesh, P("rows", None)))()
b = jnp.exp(jnp.linspace(0, 1, m))
x = lx.linear_solve(lx.MatrixLinearOperator(a), b, solver).value  # tall: least squares by QR
gradient = jax.grad(lambda b: lx.linear_solve(lx.MatrixLinearOperator(a), b, solver).value[0])(b)
normal = lx.MatrixLinearOperator(a.T @ a, lx.positive_semidefinite_tag)  # by Cholesky
difference = float(jnp.abs(lx.linear_solve(normal, a.T @ b, solver).value - x).max())
error = float(jnp.abs(gradient @ a - jnp.eye(n)[0]).max())  # a row of the pseudo-inverse
if jax.process_index() == 0:
    chosen = (solver.select_solver(operator) for operator in (lx.MatrixLinearOperator(a), normal))
    print("solvers:", *(f"{type(each).__module__}.{type(each).__name__}" for each in chosen))
    print(f"the same as by the normal equations: {difference < 1e-9}, x[0] {float(x[0]):.4f}")
    print(f"the gradient is right: {error < 1e-12}")
