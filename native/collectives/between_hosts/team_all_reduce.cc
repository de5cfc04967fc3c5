#include "collectives/between_hosts/team_all_reduce.h"

#include <array>
#include <bit>

#include "collectives/shared_work.h"
#include "collectives/slice.h"

namespace lockstep {
namespace {

template <typename Byte>
Byte* at(const Vector& vector, Byte* base, Slice range) {
  return base + range.first * vector.width();
}

std::size_t bytes_of(const Vector& vector, Slice range) { return range.count * vector.width(); }

std::span<const std::byte> part(const Vector& vector, const std::byte* base, Slice range) {
  return {at(vector, base, range), bytes_of(vector, range)};
}

Slice slice(const Vector& vector, int member, int members) {
  return slice_of(member, members, vector.count, vector.width());
}

// Bytes [first, first + bytes) of a range.
Slice inside(const Vector& vector, Slice range, std::size_t first, std::size_t bytes) {
  return {range.first + first / vector.width(), bytes / vector.width()};
}

// Makes the local sum of a range before it is sent, where that is its first use.
class MakeSum {
 public:
  MakeSum(const Vector& vector, Slice range, bool is_first = true)
      : vector_(vector), range_(range), ranks_(is_first ? vector.ranks : nullptr) {}

  void operator()(std::size_t first, std::size_t bytes) const {
    const Slice part = inside(vector_, range_, first, bytes);
    if (ranks_ != nullptr && part.count != 0) ranks_->add(part.first, part.count);
  }

 private:
  const Vector& vector_;
  const Slice range_;
  LocalRanks* const ranks_;
};

void give(const Vector& vector, Slice range) {
  if (vector.ranks != nullptr && range.count != 0) vector.ranks->give(range.first, range.count);
}

// Adds what comes to the range of `own`, and leaves the sum in that of the vector's output. Which
// of two operands is the left one decides about the sign of a zero, so members that compute the
// same sum have to agree: the lower one's is.
class Add {
 public:
  struct Role {
    bool own_is_left;
    bool is_first = false;  // `own` is the vector's input, and may have to be made
    bool is_last = false;   // the sum is final
  };
  Add(CollectiveContext& context, const Vector& vector, const std::byte* own, Slice range,
      Role role)
      : context_(context),
        vector_(vector),
        range_(range),
        own_(at(vector, own, range)),
        out_(at(vector, vector.out, range)),
        role_(role) {}

  void operator()(const std::byte* piece, std::size_t first, std::size_t bytes) const {
    if (bytes == 0) return;
    MakeSum(vector_, range_, role_.is_first)(first, bytes);
    const std::byte* own = own_ + first;
    const std::array<const std::byte*, 2> in{role_.own_is_left ? own : piece,
                                             role_.own_is_left ? piece : own};
    share_reduce(context_, out_ + first, in, bytes / vector_.width(), vector_.dtype,
                 vector_.reduction);
    if (role_.is_last) give(vector_, inside(vector_, range_, first, bytes));
  }

 private:
  CollectiveContext& context_;
  const Vector& vector_;
  const Slice range_;
  const std::byte* own_;
  std::byte* out_;
  const Role role_;
};

// Leaves what comes, a result, in the range of the vector's output.
class Keep {
 public:
  Keep(CollectiveContext& context, const Vector& vector, Slice range)
      : context_(context), vector_(vector), range_(range), out_(at(vector, vector.out, range)) {}

  std::span<std::byte> place(std::size_t first, std::size_t bytes) const {
    return {out_ + first, bytes};
  }
  void operator()(const std::byte* piece, std::size_t first, std::size_t bytes) const {
    if (bytes != 0 && piece != out_ + first) share_copy(context_, out_ + first, piece, bytes);
    give(vector_, inside(vector_, range_, first, bytes));
  }

 private:
  CollectiveContext& context_;
  const Vector& vector_;
  const Slice range_;
  std::byte* out_;
};

}  // namespace

void recursive_doubling(CollectiveContext& context, const Team& team, const Vector& vector) {
  const Slice all{0, vector.count};
  const std::size_t bytes = bytes_of(vector, all);
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size())));
  // Each of these pairs of neighbours becomes one member: the odd one hands its vector over.
  const int pairs = team.size() - power;
  const bool is_paired = team.self < 2 * pairs;
  if (is_paired && team.self % 2 == 1) {
    const int neighbour = team.peer(team.self - 1);
    send_all(context, neighbour, part(vector, vector.in, all), MakeSum(vector, all));
    receive_all(context, neighbour, bytes, Keep(context, vector, all));
    return context.all_arrived();
  }
  const std::byte* sum = vector.in;
  if (is_paired) {
    receive_all(context, team.peer(team.self + 1), bytes,
                Add(context, vector, sum, all, {.own_is_left = true, .is_first = true}));
    sum = vector.out;
  }
  const int self = is_paired ? team.self / 2 : team.self - pairs;
  for (int distance = 1; distance < power; distance *= 2, sum = vector.out) {
    const int other = self ^ distance;
    const int peer = team.peer(other < pairs ? 2 * other : other + pairs);
    const bool is_first = distance == 1 && !is_paired, is_last = 2 * distance == power;
    exchange(context, peer, part(vector, sum, all), peer, bytes,
             Add(context, vector, sum, all, {.own_is_left = self < other, .is_last = is_last}),
             MakeSum(vector, all, is_first));
  }
  context.all_arrived();
  if (is_paired) send_all(context, team.peer(team.self + 1), part(vector, vector.out, all));
}

void halving_doubling(CollectiveContext& context, const Team& team, const Vector& vector) {
  struct Step {
    int peer;
    Slice mine, theirs;
  };
  std::vector<Step> steps;
  Slice mine{0, vector.count};
  const std::byte* sum = vector.in;
  for (int distance = team.size() / 2; distance > 0; distance /= 2, sum = vector.out) {
    const std::size_t half = std::min(mine.count, whole_lines(mine.count / 2, vector.width()));
    const Slice lower{mine.first, half}, upper{mine.first + half, mine.count - half};
    const bool is_lower = (team.self & distance) == 0;
    const int peer = team.peer(team.self ^ distance);
    steps.push_back({peer, is_lower ? lower : upper, is_lower ? upper : lower});
    mine = steps.back().mine;
    const bool is_first = steps.size() == 1;
    exchange(context, peer, part(vector, sum, steps.back().theirs), peer, bytes_of(vector, mine),
             Add(context, vector, sum, mine,
                 {.own_is_left = is_lower, .is_first = is_first, .is_last = distance == 1}),
             MakeSum(vector, steps.back().theirs, is_first));
  }
  context.all_arrived();
  // The two ranges of a step make up this member's range of the step before.
  for (; !steps.empty(); steps.pop_back()) {
    const Step& step = steps.back();
    exchange(context, step.peer, part(vector, vector.out, step.mine), step.peer,
             bytes_of(vector, step.theirs), Keep(context, vector, step.theirs));
  }
}

void direct_slices(CollectiveContext& context, const Team& team, const Vector& vector) {
  const auto of = [&](int member) { return slice(vector, member, team.size()); };
  const Slice mine = of(team.self);
  exchange_with_team(
      context, team, [&](int member) { return part(vector, vector.in, of(member)); },
      [&](int) { return bytes_of(vector, mine); },
      [&](int, int step, const std::byte* piece, std::size_t first, std::size_t bytes) {
        const bool is_first = step == 1, is_last = step == team.size() - 1;
        Add(context, vector, is_first ? vector.in : vector.out, mine,
            {.own_is_left = true, .is_first = is_first, .is_last = is_last})(piece, first, bytes);
      },
      [&](int member, std::size_t first, std::size_t bytes) {
        MakeSum(vector, of(member))(first, bytes);
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
             Add(context, vector, vector.in, of(-step - 1),
                 {.own_is_left = false, .is_first = true, .is_last = step == team.size() - 2}),
             MakeSum(vector, of(0), step == 0));
  context.all_arrived();
  for (int step = 0; step < team.size() - 1; ++step)
    exchange(context, next, part(vector, vector.out, of(1 - step)), previous,
             bytes_of(vector, of(-step)), Keep(context, vector, of(-step)));
}

}  // namespace lockstep
