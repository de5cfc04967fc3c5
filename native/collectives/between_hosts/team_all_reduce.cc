#include "collectives/between_hosts/team_all_reduce.h"

#include <array>
#include <bit>

#include "collectives/shared_work.h"

namespace lockstep {
namespace {

// Elements [first, first + count).
struct Range {
  std::size_t first, count;
};

template <typename Byte>
Byte* at(const Vector& vector, Byte* base, Range range) {
  return base + range.first * vector.width();
}

std::size_t bytes_of(const Vector& vector, Range range) { return range.count * vector.width(); }

std::span<const std::byte> part(const Vector& vector, const std::byte* base, Range range) {
  return {at(vector, base, range), bytes_of(vector, range)};
}

// The part of the vector of one member, a multiple of a cache line. Some may be empty.
Range slice(const Vector& vector, int member, int members) {
  const std::size_t line = std::max<std::size_t>(1, 64 / vector.width());
  const auto parts = static_cast<std::size_t>(members);
  const std::size_t each = ((vector.count + parts - 1) / parts + line - 1) / line * line;
  const std::size_t first = std::min(vector.count, static_cast<std::size_t>(member) * each);
  return {first, std::min(each, vector.count - first)};
}

// Adds what comes to the range of `own`, and leaves the sum in that of the vector's output. Which
// of two operands is the left one decides about the sign of a zero, so members that compute the
// same sum have to agree: the lower one's is.
class Add {
 public:
  Add(CollectiveContext& context, const Vector& vector, const std::byte* own, Range range,
      bool own_is_left)
      : context_(context),
        vector_(vector),
        own_(at(vector, own, range)),
        out_(at(vector, vector.out, range)),
        own_is_left_(own_is_left) {}

  void operator()(const std::byte* piece, std::size_t first, std::size_t bytes) const {
    if (bytes == 0) return;
    const std::byte* own = own_ + first;
    const std::array<const std::byte*, 2> in{own_is_left_ ? own : piece,
                                             own_is_left_ ? piece : own};
    share_reduce(context_, out_ + first, in, bytes / vector_.width(), vector_.dtype,
                 vector_.reduction);
  }

 private:
  CollectiveContext& context_;
  const Vector& vector_;
  const std::byte* own_;
  std::byte* out_;
  const bool own_is_left_;
};

// Leaves what comes in the range of the vector's output.
class Keep {
 public:
  Keep(CollectiveContext& context, const Vector& vector, Range range)
      : context_(context), out_(at(vector, vector.out, range)) {}

  std::span<std::byte> place(std::size_t first, std::size_t bytes) const {
    return {out_ + first, bytes};
  }
  void operator()(const std::byte* piece, std::size_t first, std::size_t bytes) const {
    if (bytes != 0 && piece != out_ + first) share_copy(context_, out_ + first, piece, bytes);
  }

 private:
  CollectiveContext& context_;
  std::byte* out_;
};

}  // namespace

void recursive_doubling(CollectiveContext& context, const Team& team, const Vector& vector) {
  const Range all{0, vector.count};
  const std::size_t bytes = bytes_of(vector, all);
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size())));
  // So many pairs of neighbours become one member each: the odd one hands its vector over.
  const int pairs = team.size() - power;
  const bool is_paired = team.self < 2 * pairs;
  if (is_paired && team.self % 2 == 1) {
    const int neighbour = team.peer(team.self - 1);
    send_all(context, neighbour, part(vector, vector.in, all));
    receive_all(context, neighbour, bytes, Keep(context, vector, all));
    return context.all_arrived();
  }
  const std::byte* sum = vector.in;
  if (is_paired) {
    receive_all(context, team.peer(team.self + 1), bytes, Add(context, vector, sum, all, true));
    sum = vector.out;
  }
  const int self = is_paired ? team.self / 2 : team.self - pairs;
  for (int distance = 1; distance < power; distance *= 2, sum = vector.out) {
    const int other = self ^ distance;
    const int peer = team.peer(other < pairs ? 2 * other : other + pairs);
    exchange(context, peer, part(vector, sum, all), peer, bytes,
             Add(context, vector, sum, all, self < other));
  }
  context.all_arrived();
  if (is_paired) send_all(context, team.peer(team.self + 1), part(vector, vector.out, all));
}

void halving_doubling(CollectiveContext& context, const Team& team, const Vector& vector) {
  struct Step {
    int peer;
    Range mine, theirs;
  };
  const std::size_t line = std::max<std::size_t>(1, 64 / vector.width());
  std::vector<Step> steps;
  Range mine{0, vector.count};
  const std::byte* sum = vector.in;
  for (int distance = team.size() / 2; distance > 0; distance /= 2, sum = vector.out) {
    const std::size_t half = std::min(mine.count, (mine.count / 2 + line - 1) / line * line);
    const Range lower{mine.first, half}, upper{mine.first + half, mine.count - half};
    const bool is_lower = (team.self & distance) == 0;
    const int peer = team.peer(team.self ^ distance);
    steps.push_back({peer, is_lower ? lower : upper, is_lower ? upper : lower});
    mine = steps.back().mine;
    exchange(context, peer, part(vector, sum, steps.back().theirs), peer, bytes_of(vector, mine),
             Add(context, vector, sum, mine, is_lower));
  }
  context.all_arrived();
  // Both ranges of a step together are this member's of the step before.
  for (; !steps.empty(); steps.pop_back()) {
    const Step& step = steps.back();
    exchange(context, step.peer, part(vector, vector.out, step.mine), step.peer,
             bytes_of(vector, step.theirs), Keep(context, vector, step.theirs));
  }
}

void direct_slices(CollectiveContext& context, const Team& team, const Vector& vector) {
  const auto of = [&](int member) { return slice(vector, member, team.size()); };
  const Range mine = of(team.self);
  exchange_with_team(
      context, team, [&](int member) { return part(vector, vector.in, of(member)); },
      [&](int) { return bytes_of(vector, mine); },
      [&](int, int step, const std::byte* piece, std::size_t first, std::size_t bytes) {
        Add(context, vector, step == 1 ? vector.in : vector.out, mine, true)(piece, first, bytes);
      });
  context.all_arrived();
  exchange_with_team(
      context, team, [&](int) { return part(vector, vector.out, mine); },
      [&](int member) { return bytes_of(vector, of(member)); },
      [&](int member, int, const std::byte* piece, std::size_t first, std::size_t bytes) {
        Keep(context, vector, of(member))(piece, first, bytes);
      });
}

void ring_slices(CollectiveContext& context, const Team& team, const Vector& vector) {
  const int next = team.peer(team.behind(1)), previous = team.peer(team.behind(-1));
  const auto of = [&](int step) { return slice(vector, team.behind(step), team.size()); };
  for (int step = 0; step < team.size() - 1; ++step)
    exchange(context, next, part(vector, step == 0 ? vector.in : vector.out, of(-step)), previous,
             bytes_of(vector, of(-step - 1)),
             Add(context, vector, vector.in, of(-step - 1), false));
  context.all_arrived();
  for (int step = 0; step < team.size() - 1; ++step)
    exchange(context, next, part(vector, vector.out, of(1 - step)), previous,
             bytes_of(vector, of(-step)), Keep(context, vector, of(-step)));
}

}  // namespace lockstep
