/* ScaLAPACK's times for benchmarks/linalg.py, which compiles this file and runs it under mpirun.
 *
 * usage: scalapack ROUTINE M N NRHS BLOCK ROWS COLUMNS REPEATS; prints the seconds of each repeat.
 * ROUTINE, M = N: posv, gesv, potri (with its factorization), syevd, syevr, sygvx (with vectors),
 * syevd_values (by syevr).
 * ROUTINE, M >= N: qr (with q), gels, gesvd (with vectors), gesvd_values.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void Cblacs_pinfo(int*, int*);
extern void Cblacs_get(int, int, int*);
extern void Cblacs_gridinit(int*, char*, int, int);
extern void Cblacs_gridinfo(int, int*, int*, int*, int*);
extern int numroc_(int*, int*, int*, int*, int*);
extern void descinit_(int*, int*, int*, int*, int*, int*, int*, int*, int*, int*);
extern void pdposv_(char*, int*, int*, double*, int*, int*, int*, double*, int*, int*, int*, int*);
extern void pdpotrf_(char*, int*, double*, int*, int*, int*, int*);
extern void pdpotri_(char*, int*, double*, int*, int*, int*, int*);
extern void pdsyevd_(char*, char*, int*, double*, int*, int*, int*, double*, double*, int*, int*,
                     int*, double*, int*, int*, int*, int*);
extern void pdsyevr_(char*, char*, char*, int*, double*, int*, int*, int*, double*, double*, int*,
                     int*, int*, int*, double*, double*, int*, int*, int*, double*, int*, int*,
                     int*, int*);

extern void pdgesv_(int*, int*, double*, int*, int*, int*, int*, double*, int*, int*, int*, int*);

extern void pdgeqrf_(int*, int*, double*, int*, int*, int*, double*, double*, int*, int*);
extern void pdorgqr_(int*, int*, int*, double*, int*, int*, int*, double*, double*, int*, int*);
extern void pdgels_(char*, int*, int*, int*, double*, int*, int*, int*, double*, int*, int*, int*,
                    double*, int*, int*);
extern void pdgesvd_(char*, char*, int*, int*, double*, int*, int*, int*, double*, double*, int*,
                     int*, int*, double*, int*, int*, int*, double*, int*, int*);
extern void pdsygvx_(int*, char*, char*, char*, int*, double*, int*, int*, int*, double*, int*,
                     int*, int*, double*, double*, int*, int*, double*, int*, int*, double*,
                     double*, double*, int*, int*, int*, double*, int*, int*, int*, int*, int*,
                     double*, int*);

static int m, n, nrhs, block, processes, one = 1, zero = 0;
static int desc_a[9], desc_b[9], desc_z[9];

static void fill(const char* routine, double* a, int rows, int columns, int my_row, int my_column,
                 int np, int nq) {
  int symmetric = strcmp(routine, "gesv"), dominant = !strncmp(routine, "po", 2);
  for (int j = 0; j < columns; j++)
    for (int i = 0; i < rows; i++) {
      int gi = ((i / block) * np + my_row) * block + i % block;
      int gj = ((j / block) * nq + my_column) * block + j % block;
      unsigned lo = gi < gj || !symmetric ? gi : gj, hi = gi < gj || !symmetric ? gj : gi;
      unsigned h = (hi * 2654435761u) ^ (lo * 40503u + 977u);
      h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
      a[(size_t)j * rows + i] = h / 4294967296.0 - 0.5 + (gi == gj && dominant ? n : 0);
    }
}

static int eigen(const char* routine, double* a, double* w, double* z) {
  double size[4];
  int isize[4], info, ask = -1, found, nz;
  double* work = size;
  int *iwork = isize, lwork = ask, liwork = ask;
  double vl = 0, vu = 0;
  char* vectors = strcmp(routine, "syevd_values") ? "V" : "N";
  for (int pass = 0; pass < 2; pass++) {
    if (!strcmp(routine, "syevd"))
      pdsyevd_("V", "L", &n, a, &one, &one, desc_a, w, z, &one, &one, desc_z, work, &lwork, iwork,
               &liwork, &info);
    else
      pdsyevr_(vectors, "A", "L", &n, a, &one, &one, desc_a, &vl, &vu, &one, &n, &found, &nz, w, z,
               &one, &one, desc_z, work, &lwork, iwork, &liwork, &info);
    if (pass == 0) {
      lwork = (int)size[0] + 64 * n, liwork = isize[0] + 64;
      work = malloc(sizeof(double) * lwork), iwork = malloc(sizeof(int) * liwork);
    }
  }
  free(work), free(iwork);
  return info;
}

/* QR with its factor, least squares or singular values: asks for the workspace, then computes. */
static int orthogonal(const char* routine, double* a, double* b, double* w, double* u, double* vt) {
  double size = 0, *work = &size;
  double* tau = malloc(sizeof(double) * (n + block));
  int info = 0, lwork = -1;
  char* vectors = strcmp(routine, "gesvd") ? "N" : "V";
  for (int pass = 0; pass < 2; pass++) {
    if (!strcmp(routine, "qr")) {
      pdgeqrf_(&m, &n, a, &one, &one, desc_a, tau, work, &lwork, &info);
      double needed = work[0];
      pdorgqr_(&m, &n, &n, a, &one, &one, desc_a, tau, work, &lwork, &info);
      if (pass == 0 && needed > size) size = needed;
    } else if (!strcmp(routine, "gels")) {
      pdgels_("N", &m, &n, &nrhs, a, &one, &one, desc_a, b, &one, &one, desc_b, work, &lwork,
              &info);
    } else {
      pdgesvd_(vectors, vectors, &m, &n, a, &one, &one, desc_a, w, u, &one, &one, desc_a, vt, &one,
               &one, desc_z, work, &lwork, &info);
    }
    if (pass == 0) lwork = (int)size + 64 * n, work = malloc(sizeof(double) * lwork);
  }
  free(work), free(tau);
  return info;
}

static int generalized(double* a, double* b, double* w, double* z) {
  double size[4], *work = size, absolute = 0, limit = -1, gap[64];
  int isize[4], *iwork = isize, lwork = -1, liwork = -1, kind = 1, found, count, info;
  int *failed = malloc(sizeof(int) * n), *cluster = malloc(sizeof(int) * 2 * processes);
  for (int pass = 0; pass < 2; pass++) {
    pdsygvx_(&kind, "V", "A", "L", &n, a, &one, &one, desc_a, b, &one, &one, desc_a, &absolute,
             &absolute, &one, &n, &absolute, &found, &count, w, &limit, z, &one, &one, desc_z, work,
             &lwork, iwork, &liwork, failed, cluster, gap, &info);
    if (pass == 0) {
      lwork = (int)size[0] + 64 * n, liwork = isize[0] + 64;
      work = malloc(sizeof(double) * lwork), iwork = malloc(sizeof(int) * liwork);
    }
  }
  free(work), free(iwork), free(failed), free(cluster);
  return info;
}

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const char* routine = argv[1];
  m = atoi(argv[2]), n = atoi(argv[3]), nrhs = atoi(argv[4]), block = atoi(argv[5]);
  int np = atoi(argv[6]), nq = atoi(argv[7]), repeats = atoi(argv[8]);
  processes = np * nq;
  MPI_Init(&argc, &argv);
  int me, count, context, my_row, my_column, info = 0;
  Cblacs_pinfo(&me, &count);
  Cblacs_get(-1, 0, &context);
  Cblacs_gridinit(&context, "Row", np, nq);
  Cblacs_gridinfo(context, &np, &nq, &my_row, &my_column);
  int rows = numroc_(&m, &block, &my_row, &zero, &np), lead = rows > 1 ? rows : 1;
  int z_rows = numroc_(&n, &block, &my_row, &zero, &np), z_lead = z_rows > 1 ? z_rows : 1;
  int columns = numroc_(&n, &block, &my_column, &zero, &nq);
  int b_columns = numroc_(&nrhs, &block, &my_column, &zero, &nq);
  descinit_(desc_a, &m, &n, &block, &block, &zero, &zero, &context, &lead, &info);
  descinit_(desc_z, &n, &n, &block, &block, &zero, &zero, &context, &z_lead, &info);
  descinit_(desc_b, &m, &nrhs, &block, &block, &zero, &zero, &context, &lead, &info);
  double* a = malloc(sizeof(double) * lead * (columns + 1));
  double* u = malloc(sizeof(double) * lead * (columns + 1));
  double* z = malloc(sizeof(double) * z_lead * (columns + 1));
  double* b = malloc(sizeof(double) * lead * (b_columns + 1));
  double* w = malloc(sizeof(double) * n);
  int* pivots = malloc(sizeof(int) * (rows + block));
  for (int k = 0; k < repeats; k++) {
    fill(routine, a, rows, columns, my_row, my_column, np, nq);
    fill("posv", u, rows, columns, my_row, my_column, np, nq);  // positive definite, for sygvx
    for (size_t i = 0; i < (size_t)rows * b_columns; i++) b[i] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (!strcmp(routine, "posv")) {
      pdposv_("L", &n, &nrhs, a, &one, &one, desc_a, b, &one, &one, desc_b, &info);
    } else if (!strcmp(routine, "gesv")) {
      pdgesv_(&n, &nrhs, a, &one, &one, desc_a, pivots, b, &one, &one, desc_b, &info);
    } else if (!strcmp(routine, "potri")) {
      pdpotrf_("L", &n, a, &one, &one, desc_a, &info);
      pdpotri_("L", &n, a, &one, &one, desc_a, &info);
    } else if (!strcmp(routine, "sygvx")) {
      info = generalized(a, u, w, z);
    } else if (!strncmp(routine, "syev", 4)) {
      info = eigen(routine, a, w, z);
    } else {
      info = orthogonal(routine, a, b, w, u, z);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) printf("%.6f\n", MPI_Wtime() - start);
    if (info) return 3;
  }
  MPI_Finalize();
  return 0;
}
