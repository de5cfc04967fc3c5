"""Dense linear algebra on sharded matrices, in pure JAX: one process or many, CPU or GPU.

Layers, each only on those before it:

    _layout          which device holds which row: all index maps, no JAX
    _redistribute    shardings to that layout and back, through all-to-all
    _tiles           kernels on what one device holds, under LAPACK's names
    _cholesky, _inverse            the distributed loops, one family a file
    _model, _arguments             tile sizes by cost; checks and their errors
    _positive        the loops as functions of global arrays, with their derivatives
    _tridiagonal, _divide          Hermitian to tridiagonal and back, divide and conquer
    _triangular, _solve, _eigh     the public functions
    _inside                        the same inside a `jax.shard_map` of the caller's

LU, QR and SVD would be further files beside `_cholesky`, over the same layouts and tile kernels.
"""

from lockstep.linalg._eigh import eigh as eigh
from lockstep.linalg._eigh import syevd as syevd
from lockstep.linalg._shard_map import potri_shardmap_ctx as potri_shardmap_ctx
from lockstep.linalg._shard_map import potrs_shardmap_ctx as potrs_shardmap_ctx
from lockstep.linalg._shard_map import syevd_shardmap_ctx as syevd_shardmap_ctx
from lockstep.linalg._solve import inv as inv
from lockstep.linalg._solve import potri as potri
from lockstep.linalg._solve import potrs as potrs
from lockstep.linalg._triangular import cho_factor as cho_factor
from lockstep.linalg._triangular import cho_solve as cho_solve
from lockstep.linalg._triangular import cholesky as cholesky
from lockstep.linalg._triangular import solve_triangular as solve_triangular
