// The two halves of a column of the reduction to tridiagonal form, around the product with the
// trailing matrix (`lockstep/linalg/_tridiagonalize.py`): the reflector of the column, and from the
// product the vector w, with which the trailing matrix becomes a - v^T w^* - w^T v^*.
//
// The rows of v and w from this column's on count as zero, whatever is there.
#include <cstring>
#include <vector>

#include "linalg/column.h"
#include "linalg/ffi.h"
#include "linalg/rows.h"
#include "linalg/types.h"

namespace lockstep {
namespace {

using column::Place;

// The reflector u of the column after the panel's earlier ones; scalars are the diagonal, beta and
// tau.
template <typename T>
LOCKSTEP_INLINE void reflector(const ffi::Frame& frame, const Place& at) {
  const auto* panel = frame.arguments[0].as<const T>();
  const auto* v = frame.arguments[1].as<const T>();
  const auto* w = frame.arguments[2].as<const T>();
  auto* u = frame.results[0].as<T>();
  auto* scalars = frame.results[1].as<T>();

  std::memcpy(static_cast<void*>(u), panel + at.column * at.size(),
              static_cast<std::size_t>(at.size()) * sizeof(T));
  column::leave(at, v, column::elements(at, w, at.column, at.slot(0)), u);
  column::leave(at, w, column::elements(at, v, at.column, at.slot(0)), u);
  scalars[0] = std::real(u[at.slot(0)]);
  at.clear_done(u);
  const auto [beta, tau] = column::larfg(at, at.slot(1), u);
  scalars[1] = beta;
  scalars[2] = tau;
}

// From y = a u, where a is the trailing matrix before the panel.
template <typename T>
LOCKSTEP_INLINE void correct(const ffi::Frame& frame, const Place& at) {
  const auto* y = frame.arguments[0].as<const T>();
  const auto* u = frame.arguments[1].as<const T>();
  const auto* v = frame.arguments[2].as<const T>();
  const auto* w = frame.arguments[3].as<const T>();
  const T tau = *frame.arguments[4].as<const T>();
  auto* out = frame.results[0].as<T>();

  std::memcpy(static_cast<void*>(out), y, static_cast<std::size_t>(at.size()) * sizeof(T));
  column::leave(at, v, column::dots(at, w, at.column, u), out);
  column::leave(at, w, column::dots(at, v, at.column, u), out);
  at.clear_done(out);
  // w = tau y - tau / 2 (tau y)^H u u
  const T half = rows::times(tau * rows::Real<T>(0.5),
                             rows::times(rows::conjugate(tau), column::dot(at, out, u)));
  at.each([&](std::int64_t j) { out[j] = rows::times(tau, out[j]) - rows::times(half, u[j]); });
}

LOCKSTEP_TYPES(reflector, Place)
LOCKSTEP_TYPES(correct, Place)

bool read_place(const ffi::Buffer& panel, const ffi::Buffer& where, Place& place) {
  return panel.rank == 3 && where.is(ffi::Type::kS32, {3}) &&
         column::read(panel, where.as<const std::int32_t>(), panel.dims[0], place);
}

}  // namespace
}  // namespace lockstep

// panel, v, w (width, P, R), s32 (tile, step, column) -> u (P, R), (diagonal, beta, tau).
extern "C" lockstep::ffi::Error* lockstep_reflector(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 4 || out.size != 2 || !read_place(in[0], in[3], at) || !in[1].is_like(in[0]) ||
      !in[2].is_like(in[0]) || !out[0].is(in[0].type, {at.devices, at.rows}) ||
      !out[1].is(in[0].type, {3})) {
    return ffi::error(*frame, "lockstep_reflector: shapes, types or place do not fit.");
  }
  return ffi::run(*frame, [&] { reflector_of_type(in[0].type, *frame, at); });
}

// y, u (P, R), v, w (width, P, R), tau (), s32 (tile, step, column) -> w (P, R) of this column.
extern "C" lockstep::ffi::Error* lockstep_correct(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  const auto& in = frame->arguments;
  const auto& out = frame->results;
  Place at;
  if (in.size != 6 || out.size != 1 || !read_place(in[2], in[5], at) || !in[3].is_like(in[2]) ||
      !in[0].is(in[2].type, {at.devices, at.rows}) || !in[1].is_like(in[0]) ||
      !in[4].is(in[2].type, {}) || !out[0].is_like(in[0])) {
    return ffi::error(*frame, "lockstep_correct: shapes, types or place do not fit.");
  }
  return ffi::run(*frame, [&] { correct_of_type(in[2].type, *frame, at); });
}
