"""Dense linear algebra on sharded matrices, in JAX: one process or many, CPU or GPU.

Layers; each imports only those above it:

    _layout          which device holds which row: all index maps, without JAX
    _redistribute    from shardings to that layout and back, by all-to-all
    _tiles           kernels on the data of one device, with LAPACK's names
    _cpu_kernels     the same on CPUs by native code
    _sweeps, _tournament, _dealt_columns    solutions with a triangle; pivots; many right-hand sides
    _cholesky, _inverse, _lu, _lu_solve     the distributed loops, one family in each file
    _cholesky_grid   Cholesky over rows and columns of devices
    _cost_model, _validation             tile sizes by cost; checks of arguments and their errors
    _arguments       the arrays of a call, checked and on their mesh
    _posdef, _general                    the loops as functions of global arrays, with derivatives
    _hermitian       refuses a matrix of which they would read one half
    _tridiagonalize, _divide_and_conquer, _secular    Hermitian to tridiagonal; its eigenvalues
    _back_transformation                 from the vectors of a reduced matrix to its own
    _products        products of matrices of which each device holds rows
    _triangular, _solve, _lu_factor, _general_solve, _determinant    the public functions
    _generalized, _eigh                                              and those of eigenvalues
    _shards, _shard_map                  the same inside a `jax.shard_map` of the caller

And for matrices of any shape:

    _panel, _householder                 QR of one panel of columns; of a matrix, panel by panel
    _bidiagonalize, _bidiagonal_svd      any square matrix to bidiagonal; its decomposition
    _band                                any square matrix to a band; its singular values
    _qdwh, _stacked_qr                   the unitary polar factor without kernels
    _singular_plan, _singular            polar and singular values
    _qr, _least_squares, _svd, _polar, _rank, _condition    the public functions
    _context         jaxmg's names inside a `jax.jit` or a `jax.shard_map` of the caller

And in modules of their own, with the names of other projects:

    lineax           solvers for `lineax.linear_solve`; it imports lineax
    netket           solvers for NetKet's stochastic reconfiguration
"""

from lockstep import _jax_compat
from lockstep.linalg._condition import cond as cond
from lockstep.linalg._context import gesvd_shardmap_ctx as gesvd_shardmap_ctx
from lockstep.linalg._context import least_squares_shardmap_ctx as least_squares_shardmap_ctx
from lockstep.linalg._context import lu_solve_shardmap_ctx as lu_solve_shardmap_ctx
from lockstep.linalg._context import polar_shardmap_ctx as polar_shardmap_ctx
from lockstep.linalg._context import qr_shardmap_ctx as qr_shardmap_ctx
from lockstep.linalg._determinant import SlogdetResult as SlogdetResult
from lockstep.linalg._determinant import det as det
from lockstep.linalg._determinant import slogdet as slogdet
from lockstep.linalg._eigh import eigh as eigh
from lockstep.linalg._eigh import eigvalsh as eigvalsh
from lockstep.linalg._eigh import syevd as syevd
from lockstep.linalg._general_solve import solve as solve
from lockstep.linalg._least_squares import least_squares as least_squares
from lockstep.linalg._lu_factor import lu as lu
from lockstep.linalg._lu_factor import lu_factor as lu_factor
from lockstep.linalg._lu_factor import lu_solve as lu_solve
from lockstep.linalg._polar import polar as polar
from lockstep.linalg._qr import qr as qr
from lockstep.linalg._rank import lstsq as lstsq
from lockstep.linalg._rank import matrix_rank as matrix_rank
from lockstep.linalg._rank import null_space as null_space
from lockstep.linalg._rank import orth as orth
from lockstep.linalg._rank import pinv as pinv
from lockstep.linalg._shard_map import potri_shardmap_ctx as potri_shardmap_ctx
from lockstep.linalg._shard_map import potrs_shardmap_ctx as potrs_shardmap_ctx
from lockstep.linalg._shard_map import syevd_shardmap_ctx as syevd_shardmap_ctx
from lockstep.linalg._solve import inv as inv
from lockstep.linalg._solve import potri as potri
from lockstep.linalg._solve import potrs as potrs
from lockstep.linalg._svd import gesvd as gesvd
from lockstep.linalg._svd import svd as svd
from lockstep.linalg._svd import svdvals as svdvals
from lockstep.linalg._triangular import cho_factor as cho_factor
from lockstep.linalg._triangular import cho_solve as cho_solve
from lockstep.linalg._triangular import cholesky as cholesky
from lockstep.linalg._triangular import solve_triangular as solve_triangular

# Routines that go over a grid of devices have collectives of its rows and columns.
_jax_compat.install(_jax_compat.GROUPS, _jax_compat.GROUPS_LOST, _jax_compat.batch_groups)
