// Frames that were changed at random, for the parser: none may write where it should not, keep more
// than it may, or end in anything but an Error.
//
// LOCKSTEP_FUZZ_FRAMES and LOCKSTEP_FUZZ_SECONDS say how much is tried, whichever comes first. The
// frames are the same in each run: a failure names the conversation, which can be run alone with
// LOCKSTEP_FUZZ_FIRST.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "hosts.h"
#include "transport/tcp/frame_parser.h"

namespace lockstep::testing::frame_parsers {

using Random = std::mt19937_64;

constexpr int kOpenStreams = 3;
constexpr std::uint64_t kCliques[] = {1, 2, 3, 99};  // the last one is not open
constexpr std::size_t kSlot = kSlotHeader + 300;
constexpr std::uint32_t kSlots = 4;

double setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

// A ring and a place for posted receives, with walls around, which no frame may touch.
struct Walled {
  static constexpr std::size_t kWall = 4096;
  static constexpr std::byte kFill{0xa5};
  Bytes memory = Bytes(3 * kWall + kSlots * kSlot + kSlot, kFill);
  Counter written, read, sent;

  ReceiveRing receive_ring() { return {memory.data() + kWall, kSlots, kSlot, &written, &read}; }
  std::span<std::byte> place(std::size_t bytes) {
    return std::span(memory).subspan(2 * kWall + kSlots * kSlot, bytes);
  }
  void check() const {
    const auto wall = [](std::byte byte) { return byte == kFill; };
    CHECK(std::all_of(memory.begin(), memory.begin() + kWall, wall));
    const auto between = memory.begin() + kWall + kSlots * kSlot;
    CHECK(std::all_of(between, between + kWall, wall));
    CHECK(std::all_of(memory.end() - kWall, memory.end(), wall));
  }
};

// What one process of a job has, as far as frames reach it. The other one is process 1.
class Target : FrameParser::Owner {
 public:
  explicit Target(Arena& arena) : arena_(arena) {
    for (int i = 0; i < kOpenStreams; ++i) {
      const ChannelId channel{kCliques[i], 0, 1};
      channels_.open(channel, rings_[i].receive_ring());
      channels_.open(channel, SendRing{&rings_[i].sent});
    }
  }
  // In pieces of any size, as they come from a connection. Returns whether all were taken.
  bool feed(std::span<const std::byte> bytes, Random& random) {
    try {
      while (!bytes.empty()) {
        Channels::Filling filling;
        const auto room = parser_.room(filling);
        CHECK(!room.empty());
        std::size_t n = std::min(room.size(), bytes.size());
        if (random() % 4 == 0) n = 1 + random() % n;
        std::ranges::copy(bytes.first(n), room.begin());
        bytes = bytes.subspan(n);
        filling.end();
        parser_.take(n);
        for (int i = 0; i < kOpenStreams; ++i) {
          Walled& ring = rings_[i];
          const ChannelId channel{kCliques[i], 0, 1};
          if (random() % 4 == 0 && ring.written.load() != ring.read.load()) {
            channels_.take_placed(channel, ring.read.load());
            ring.read.advance();
          }
          const auto number = static_cast<std::uint32_t>(ring.read.load() + random() % kSlots);
          if (random() % 4 == 0)
            channels_.post_receive(channel, number, ring.place(random() % 301));
          if (random() % 16 == 0) channels_.withdraw(channel);
        }
      }
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  void check() {
    for (const Walled& ring : rings_) ring.check();
    while (control_.next(0).process >= 0) {
    }
    CHECK(parser_.process() == -1 || parser_.process() == 1);
  }

 private:
  int greet(const Frame& frame, std::span<const std::byte>) override {
    if (frame.number != Frame::kVersion || frame.index != 1) throw Error("not accepted");
    return 1;
  }
  bool may_send(int, std::uint32_t) const override { return true; }
  void left(int process, std::uint32_t, std::uint64_t) override { CHECK_EQUAL(process, 1); }
  void aborted(std::string_view text) override { arena_.abort(text); }
  void control(int process, std::uint64_t bytes, std::size_t at,
               std::span<const std::byte> part) override {
    control_.take(process, bytes, at, part);
  }

  Arena& arena_;
  std::array<Walled, kOpenStreams> rings_;
  Channels channels_;
  ControlMessages control_;
  FrameParser parser_{*this, channels_};
};

template <typename Value>
Value pick(Random& random, std::initializer_list<Value> from) {
  return from.begin()[random() % from.size()];
}

void append(Bytes& to, const Frame& frame, std::size_t bytes) {
  const auto head = std::as_bytes(std::span(&frame, 1));
  to.insert(to.end(), head.begin(), head.end());
  to.resize(to.size() + bytes, std::byte{'x'});
}

// A conversation as the protocol has it, and where its frames begin.
struct Conversation {
  Bytes bytes;
  std::vector<std::size_t> starts;

  void add(Frame frame, std::size_t rest = 0) {
    starts.push_back(bytes.size());
    frame.bytes = static_cast<std::uint32_t>(rest);
    append(bytes, frame, rest);
  }
  explicit Conversation(Random& random) {
    add({.kind = Frame::kGreeting, .index = 1, .number = Frame::kVersion});
    std::array<std::uint32_t, std::size(kCliques)> next{};
    for (std::size_t left = 2 + random() % 6; left > 0; --left) {
      const std::size_t clique = random() % std::size(kCliques);
      const std::size_t rest = pick<std::size_t>(random, {0, 1, 200, 300});
      switch (random() % 8) {
        case 0:
          add({.kind = Frame::kLeave});
          break;
        case 1:
          add({.kind = Frame::kControl, .clique = rest}, rest);
          break;
        case 2:
          add({.kind = Frame::kControl, .clique = 2 * rest}, rest);
          if (rest != 0)
            add({.kind = Frame::kControl,
                 .clique = 2 * rest,
                 .number = static_cast<std::uint32_t>(rest)},
                rest);
          break;
        case 3:
          add({.kind = Frame::kRelease, .clique = kCliques[clique]});
          break;
        case 4:
          add({.kind = Frame::kAbort}, rest);
          break;
        default:
          add({.kind = Frame::kMessage, .clique = kCliques[clique], .number = next[clique]++},
              kSlotHeader + rest);
      }
    }
  }
};

// Changes a field, bits, the order, or the length.
void mutate(Conversation& what, Random& random) {
  Bytes& bytes = what.bytes;
  const std::size_t start = what.starts[random() % what.starts.size()];
  const std::size_t field = start + 4 * (random() % (sizeof(Frame) / 4));
  switch (random() % 6) {
    case 0:
      if (!bytes.empty()) bytes[random() % bytes.size()] ^= std::byte(1 << random() % 8);
      break;
    case 1: {
      const auto value = pick<std::uint32_t>(
          random,
          {0,          1,          3,          4,          5,
           63,         64,         65,         299,        300,
           301,        364,        365,        1000,       0x40000,
           0x7ffff,    0x80000,    0x80001,    0xffffff,   0x7fffffff,
           0x80000000, 0xffffffbf, 0xffffffc0, 0xffffffff, static_cast<std::uint32_t>(random())});
      if (field + 4 <= bytes.size()) std::memcpy(&bytes[field], &value, 4);
      break;
    }
    case 2: {  // once more, somewhere
      const std::size_t from = what.starts[random() % what.starts.size()];
      const Bytes part(bytes.begin() + static_cast<std::ptrdiff_t>(std::min(from, bytes.size())),
                       bytes.end());
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(std::min(start, bytes.size())),
                   part.begin(), part.end());
      break;
    }
    case 3:
      bytes.resize(std::min(bytes.size(), start + random() % (2 * sizeof(Frame))));
      break;
    case 4: {
      const auto at = static_cast<std::ptrdiff_t>(std::min(start, bytes.size()));
      bytes.insert(bytes.begin() + at, 1 + random() % 40, std::byte(random()));
      break;
    }
    default: {  // a kind that is another
      const auto kind = static_cast<std::uint32_t>(random() % 12);
      if (start + 4 <= bytes.size()) std::memcpy(&bytes[start], &kind, 4);
    }
  }
}

TEST(a_conversation_that_was_not_changed_is_taken) {
  Arena arena = new_arena();
  int taken = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const Conversation what(random);
    Target target(arena);
    if (target.feed(what.bytes, random)) ++taken;
    target.check();
  }
  // Some have more messages, or releases, than the other side has room for.
  CHECK(taken > 100);
}

TEST(changed_frames) {
  Arena arena = new_arena();
  const double frames = setting("LOCKSTEP_FUZZ_FRAMES", 20'000);
  const Deadline deadline(setting("LOCKSTEP_FUZZ_SECONDS", 300));
  double done = 0;
  int refused = 0, conversations = 0;
  auto seed = static_cast<std::uint64_t>(setting("LOCKSTEP_FUZZ_FIRST", 1000));
  for (; done < frames && !deadline.passed(); ++seed, ++conversations) {
    try {
      Random random(seed);
      Conversation what(random);
      for (std::size_t i = 1 + random() % 3; i > 0; --i) mutate(what, random);
      arena.header().abort_state.store(0);
      Target target(arena);
      if (!target.feed(what.bytes, random)) ++refused;
      target.check();
      done += static_cast<double>(what.starts.size());
    } catch (const std::exception& error) {
      throw CheckFailed("LOCKSTEP_FUZZ_FIRST=" + std::to_string(seed) + ": " + error.what());
    }
  }
  CHECK(conversations > 0 && refused > conversations / 2);
  std::printf("%.0f frames, %d conversations, %d refused\n", done, conversations, refused);
}

}  // namespace lockstep::testing::frame_parsers
