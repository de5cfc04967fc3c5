// The Cholesky factor of a block that every device has (`lockstep/linalg/_cholesky.py`). Devices of
// one process share its cores: one of them finds the factor, the others take it.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <type_traits>
#include <vector>

#include "linalg/blas.h"
#include "linalg/ffi.h"

namespace lockstep {
namespace {

// Factorizes a by rows, in its lower triangle: the upper one of its transpose, as LAPACK sees it.
// Writes zero above it, and NaN into it if there is no factor.
template <typename T>
void factor(T* a, std::int64_t size) {
  const int order = static_cast<int>(size);
  int info = 0;
  T none(std::numeric_limits<double>::quiet_NaN());
  if constexpr (!std::is_floating_point_v<T>) none = T(none.real(), none.real());
  blas::of<T>().potrf("U", &order, a, &order, &info);
  for (std::int64_t i = 0; i < size; ++i) {
    T* row = a + i * size;
    if (info != 0) std::fill(row, row + i + 1, none);
    std::fill(row + i + 1, row + size, T(0));
  }
}

// The factor of the latest block, kept for the devices that ask for it next; a device that comes
// with another block while one is being factored does its own. A function of the block's bits
// alone, so it does not matter which device found it, or for which program.
template <typename T>
class Latest {
 public:
  void factor_in_place(T* a, std::int64_t size) {
    const auto count = static_cast<std::size_t>(size * size);
    std::unique_lock lock(mutex_);
    if (is_block(a, count)) {
      // The device that finds it is running, with a turn of its own, and waits for no other.
      found_.wait(lock, [&] { return !busy_ || !is_block(a, count); });
      if (is_block(a, count)) {
        std::copy_n(factor_.begin(), count, a);
        return;
      }
    }
    if (busy_) {
      lock.unlock();
      return factor(a, size);
    }
    block_.clear();  // matches nothing, should there be no memory for the next
    factor_.resize(count);
    block_.assign(a, a + count);
    busy_ = true;
    lock.unlock();
    factor(a, size);
    lock.lock();
    std::copy(a, a + count, factor_.begin());
    busy_ = false;
    found_.notify_all();
  }

 private:
  // Bits are compared: a NaN is a number like any other here, and -0 is not 0.
  bool is_block(const T* a, std::size_t count) const {
    return block_.size() == count && std::memcmp(block_.data(), a, count * sizeof(T)) == 0;
  }

  std::mutex mutex_;
  std::condition_variable found_;
  std::vector<T> block_, factor_;  // of one size while not busy
  bool busy_ = false;
};

}  // namespace
}  // namespace lockstep

// a (W, W) -> its lower factor, in place.
extern "C" lockstep::ffi::Error* lockstep_potrf(lockstep::ffi::Frame* frame) {
  using namespace lockstep;
  if (ffi::is_question(*frame)) return nullptr;
  if (frame->arguments.size != 1 || frame->results.size != 1)
    return ffi::error(*frame, "lockstep_potrf: wanted are 1 argument and 1 result.");
  const ffi::Buffer& a = frame->results[0];
  if (!frame->is_in_place() || a.rank != 2 || a.dims[0] != a.dims[1])
    return ffi::error(*frame, "lockstep_potrf: wanted is (W, W) in place.");
  return blas::for_type(a.type, *frame, [&]<typename T>(T) {
    static auto& latest = *new Latest<T>;  // kernels may run while the process exits
    if (a.dims[0] > 0) latest.factor_in_place(a.as<T>(), a.dims[0]);
  });
}
