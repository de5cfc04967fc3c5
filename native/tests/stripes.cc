// Large messages whose stripes go over several connections.
#include "transport/tcp/stripes.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "transport/tcp/channels.h"

namespace lockstep::testing::stripes {

constexpr std::size_t kPayload = std::size_t{400} << 10;
constexpr std::size_t kSlot = kSlotHeader + kPayload;
constexpr std::uint32_t kSlots = 4;
const ChannelId kChannel{7, 0, 1};

TEST(stripes_are_all_of_a_message) {
  for (const std::uint32_t connections : {1u, 2u, 3u, 4u, 8u})
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, Stripes::kMinStripe, 2 * Stripes::kMinStripe - 1,
          2 * Stripes::kMinStripe, std::size_t{300'001}, std::size_t{512} << 10}) {
      const Stripes stripes(kMaxSlots, bytes, connections);
      CHECK(stripes.count() >= 1 && stripes.count() <= connections);
      std::size_t at = 0;
      for (std::size_t i = 0; i < stripes.count(); ++i) {
        CHECK_EQUAL(stripes.at(i), at);
        CHECK(stripes.count() == 1 || stripes.size(i) > 0);
        at += stripes.size(i);
      }
      CHECK_EQUAL(at, bytes);
      CHECK_EQUAL(stripes.count() > 1, connections > 1 && bytes >= 2 * Stripes::kMinStripe);
    }
  CHECK_EQUAL(Stripes(kMaxSlots, std::size_t{512} << 10, 4).count(), 4U);
  // A process may not know the group of the first ones yet.
  CHECK_EQUAL(Stripes(kMaxSlots - 1, std::size_t{512} << 10, 4).count(), 1U);
}

// A ring on which the first messages have come and gone, in one piece each.
struct Receiver {
  static constexpr std::uint32_t kConnections = 3;
  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlot);
  Counter written, read;
  Channels channels{kConnections};

  Receiver() {
    channels.open(kChannel, ReceiveRing{slots.data(), kSlots, kSlot, &written, &read});
    for (std::uint32_t number = 0; number < kMaxSlots; ++number) {
      const Channels::Part whole{kChannel, number, 0, 1};
      CHECK(channels.room(whole, kSlotHeader + 1).header != nullptr);
      channels.arrived(whole);
      read.advance();
    }
  }
  static Channels::Part part(std::uint32_t message, std::uint32_t stripe) {
    return {kChannel, kMaxSlots + message, stripe, kPayload};
  }
  static std::size_t bytes(const Channels::Part& part) {
    const Stripes stripes(part.number, part.payload, kConnections);
    return (part.stripe == 0 ? kSlotHeader : 0) + stripes.size(part.stripe);
  }
  Channels::Room begin(std::uint32_t message, std::uint32_t stripe) {
    return channels.room(part(message, stripe), bytes(part(message, stripe)));
  }
  void take(std::uint32_t message, std::uint32_t stripe) {
    begin(message, stripe);
    channels.arrived(part(message, stripe));
  }
  std::uint32_t messages() const { return written.load() - kMaxSlots; }
};

TEST(a_message_is_there_when_all_of_its_stripes_are) {
  for (const std::vector<std::uint32_t>& order :
       {std::vector<std::uint32_t>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}}) {
    Receiver to;
    for (const std::uint32_t stripe : order) {
      CHECK_EQUAL(to.messages(), 0U);
      to.take(0, stripe);
    }
    CHECK_EQUAL(to.messages(), 1U);
  }
}

TEST(messages_are_there_in_their_order) {
  Receiver to;
  to.take(0, 0);
  to.take(0, 1);
  for (const std::uint32_t stripe : {0, 1, 2}) to.take(1, stripe);
  CHECK_EQUAL(to.messages(), 0U);
  to.take(0, 2);
  CHECK_EQUAL(to.messages(), 2U);
}

TEST(stripes_go_side_by_side) {
  Receiver to;
  const Channels::Room last = to.begin(0, 2), first = to.begin(0, 0), middle = to.begin(0, 1);
  const Stripes stripes(kMaxSlots, kPayload, Receiver::kConnections);
  CHECK_EQUAL(first.rest - first.header, std::ptrdiff_t{kSlotHeader});
  CHECK_EQUAL(middle.rest - first.rest, static_cast<std::ptrdiff_t>(stripes.at(1)));
  CHECK_EQUAL(last.rest - first.rest, static_cast<std::ptrdiff_t>(stripes.at(2)));
}

TEST(all_stripes_go_to_the_place_that_was_posted_or_none_does) {
  std::vector<std::byte> place(kPayload);
  Receiver to;
  to.begin(0, 1);
  to.channels.post_receive(kChannel, kMaxSlots, place);      // too late
  to.channels.post_receive(kChannel, kMaxSlots + 1, place);  // in time
  CHECK(!to.begin(0, 0).posted && !to.begin(0, 2).posted);
  for (const std::uint32_t stripe : {2, 0, 1}) {
    const Channels::Room room = to.begin(1, stripe);
    const Stripes stripes(kMaxSlots + 1, kPayload, Receiver::kConnections);
    CHECK(room.posted && room.rest == place.data() + stripes.at(stripe));
  }
  for (const std::uint32_t message : {0, 1})
    for (const std::uint32_t stripe : {0, 1, 2})
      to.channels.arrived(Receiver::part(message, stripe));
  CHECK(!to.channels.take_placed(kChannel, kMaxSlots));
  CHECK(to.channels.take_placed(kChannel, kMaxSlots + 1));
}

TEST(a_place_that_was_withdrawn_gets_no_stripe) {
  std::vector<std::byte> place(kPayload);
  Receiver to;
  to.channels.post_receive(kChannel, kMaxSlots, place);
  CHECK(to.begin(0, 1).posted);
  to.channels.withdraw(kChannel);
  Channels::Filling filling;
  const std::byte* const now = to.channels.posted_room(Receiver::part(0, 1), filling);
  CHECK(now < place.data() || now >= place.data() + place.size());
  CHECK(!to.begin(0, 0).posted);
}

TEST(parts_that_break_the_rules) {
  const auto error_of = [](Channels::Part part, std::ptrdiff_t more = 0) {
    Receiver to;
    to.begin(0, 0);
    to.begin(0, 1);
    const auto bytes = static_cast<std::ptrdiff_t>(Receiver::bytes(part)) + more;
    return error_or_none([&] { to.channels.room(part, static_cast<std::size_t>(bytes)); });
  };
  const auto part = Receiver::part;
  CHECK_EQUAL(error_of(part(0, 2)), "");
  CHECK_EQUAL(error_of(part(1, 0)), "");
  CHECK_CONTAINS(error_of(part(0, 0)), "out of turn");
  CHECK_CONTAINS(error_of(part(0, 1)), "another length");  // twice
  CHECK_CONTAINS(error_of(part(0, 2), 1), "another length");
  CHECK_CONTAINS(error_of(part(0, 2), -1), "another length");
  CHECK_CONTAINS(error_of(part(2, 0)), "out of turn");
  CHECK_CONTAINS(error_of(part(kSlots, 1)), "without room");
  CHECK_CONTAINS(error_of({kChannel, 0, 1, kPayload}), "another length");  // is not divided
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots - 1, 0, kPayload}), "out of turn");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 2, kPayload - (64 << 10)}), "another length");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 1, kPayload + 4096}), "too long");
  CHECK_CONTAINS(error_of({kChannel, kMaxSlots, 1, std::size_t{1} << 40}), "too long");
  CHECK_CONTAINS(error_of({{8, 0, 1}, kMaxSlots, 1, kPayload}), "out of turn");  // not open
  Receiver to;
  CHECK_CONTAINS(ERROR_OF(to.channels.room({kChannel, kMaxSlots, 3, kPayload}, 4096)),
                 "another length");
}

// Parts that come at random, from three connections: each in order, as a connection has them.
TEST(any_order_of_connections) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Receiver to;
    std::uint32_t next[Receiver::kConnections]{};
    std::uint32_t released = 0;
    while (to.messages() < 12) {
      const std::uint32_t stripe = random() % Receiver::kConnections;
      if (random() % 4 == 0 && released < to.messages()) {
        to.read.advance();
        ++released;
      }
      if (next[stripe] == 12 || next[stripe] >= released + kSlots) continue;
      to.take(next[stripe]++, stripe);
      CHECK_EQUAL(to.messages(), *std::ranges::min_element(next));
    }
  }
}

// A message that began whole before its channel was open here, and a stripe of the same number: the
// stripe would be written far behind the place that was posted for a later message.
TEST(a_message_comes_whole_or_in_stripes) {
  constexpr std::uint32_t kMany = kMaxSlots;
  std::vector<std::byte> slots(kMany * kSlot), place(kPayload);
  Counter written, read;
  Channels channels(Receiver::kConnections);
  for (std::uint32_t number = 0; number < kMany; ++number)
    channels.keep(kChannel, number, std::vector<std::byte>(kSlotHeader + 1));
  CHECK(channels.room({kChannel, kMany, 0, 1}, kSlotHeader + 1).header == nullptr);
  channels.open(kChannel, ReceiveRing{slots.data(), kMany, kSlot, &written, &read});
  read.advance();
  channels.post_receive(kChannel, kMany, place);
  const Channels::Part stripe{kChannel, kMany, 1, kPayload};
  CHECK(channels.room(stripe, Receiver::bytes(stripe)).posted);
  CHECK_CONTAINS(ERROR_OF(channels.keep(kChannel, kMany, std::vector<std::byte>(kSlotHeader + 1))),
                 "out of turn");
}

// Parts with anything in them, as a peer with the key may send: none goes where it should not.
TEST(parts_at_random) {
  std::size_t taken = 0, refused = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    Receiver to;
    std::vector<std::byte> place(kPayload);
    std::vector<Channels::Part> open;
    try {
      for (int step = 0; step < 40; ++step) {
        Channels::Part part = Receiver::part(to.read.load() - kMaxSlots + random() % 3,
                                             random() % Receiver::kConnections);
        if (random() % 20 == 0) part.number += static_cast<std::uint32_t>(random() % 20) - 10;
        if (random() % 20 == 0) part.payload = random() % (2 * kPayload);
        if (random() % 20 == 0) part.stripe = random() % 5;
        if (random() % 3 == 0) to.channels.post_receive(kChannel, part.number, place);
        if (random() % 8 == 0) to.channels.withdraw(kChannel);
        if (random() % 4 == 0 && to.written.load() != to.read.load()) {
          to.channels.take_placed(kChannel, to.read.load());
          to.read.advance();
        }
        const std::size_t bytes = Receiver::bytes(part) + (random() % 30 == 0);
        const Channels::Room room = to.channels.room(part, bytes);
        const std::size_t payload = bytes - (part.stripe == 0 ? kSlotHeader : 0);
        const auto& whole = room.posted ? place : to.slots;
        CHECK(room.rest >= whole.data() && room.rest + payload <= whole.data() + whole.size());
        if (random() % 10 != 0) to.channels.arrived(part);
        ++taken;
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(taken > 3000 && refused > 1000);
}

// Others may fill places of the same channel all the time.
TEST(withdrawing_is_not_kept_waiting) {
  std::vector<std::byte> place(kPayload);
  Receiver to;
  to.channels.post_receive(kChannel, kMaxSlots, place);
  for (const std::uint32_t stripe : {0, 1, 2}) to.begin(0, stripe);
  std::atomic<bool> over{false};
  std::vector<std::jthread> readers;
  for (const std::uint32_t stripe : {0, 1, 2})
    readers.emplace_back([&, stripe] {
      while (!over) {
        Channels::Filling filling;
        to.channels.posted_room(Receiver::part(0, stripe), filling);
      }
    });
  to.channels.withdraw(kChannel);
  over = true;
}

}  // namespace lockstep::testing::stripes
