// How members share a vector: the slices of all cover it once, in whole cache lines.
#include "check.h"
#include "collectives/slice.h"

namespace lockstep::testing::slices {

TEST(slices_cover_a_vector_once) {
  for (const std::size_t width : {1, 2, 4, 8, 16, 128})
    for (const int members : {1, 2, 3, 7, 16})
      for (const std::size_t count : {0, 1, 7, 64, 65, 1000, 4096}) {
        std::size_t next = 0;
        for (int member = 0; member < members; ++member) {
          const Slice slice = slice_of(member, members, count, width);
          CHECK_EQUAL(slice.first, next);
          next += slice.count;
          const bool ends = next == count;
          CHECK(ends || slice.count * width % kCacheLine == 0);
        }
        CHECK_EQUAL(next, count);
      }
}

TEST(slices_are_even) {
  const Slice second = slice_of(1, 3, 100, 4);  // 34 elements each, in lines of 16
  CHECK_EQUAL(second.first, 48U);
  CHECK_EQUAL(second.count, 48U);
  const Slice last = slice_of(2, 3, 100, 4);
  CHECK_EQUAL(last.first, 96U);
  CHECK_EQUAL(last.count, 4U);
}

}  // namespace lockstep::testing::slices
