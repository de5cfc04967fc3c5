// Payloads that go straight to where a rank wants them, and those that do not.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "hosts.h"
#include "transport/tcp/frame_parser.h"

namespace lockstep::testing::posted_receives {

constexpr std::size_t kPayload = 1000;
constexpr std::uint32_t kSlots = 4;
constexpr std::size_t kSlot = kSlotHeader + kPayload;
const ChannelId kChannel{7, 0, 1};
constexpr std::byte kUntouched{0xa5};

// A ring of process 0, to which process 1 sends.
class Receiver : FrameParser::Owner {
 public:
  Receiver() : parser_(*this, channels) {
    channels.open(kChannel, ReceiveRing{slots.data(), kSlots, kSlot, &written, &read});
    const Frame greeting = greeting_of(1);
    feed(std::as_bytes(std::span(&greeting, 1)));
  }
  // The next message, whose payload is all `fill`; only so many of its bytes.
  void send(std::byte fill, std::size_t payload = kPayload, std::size_t bytes = ~std::size_t{0}) {
    const Frame frame{.kind = Frame::kMessage,
                      .index = kChannel.ring,
                      .clique = kChannel.clique,
                      .number = number_++,
                      .bytes = static_cast<std::uint32_t>(kSlotHeader + payload)};
    message_.assign(sizeof(frame) + kSlotHeader + payload, fill);
    std::memcpy(message_.data(), &frame, sizeof(frame));
    unsent_ = message_;
    send_rest(bytes);
  }
  void send_rest(std::size_t bytes = ~std::size_t{0}) {
    const auto now = unsent_.first(std::min(bytes, unsent_.size()));
    unsent_ = unsent_.subspan(now.size());
    feed(now);
  }
  bool slot_is(std::uint32_t number, std::byte fill) const {
    const auto payload = slots.begin() + number % kSlots * kSlot + kSlotHeader;
    return std::all_of(payload, payload + kPayload, [&](std::byte byte) { return byte == fill; });
  }
  bool place_is(std::byte fill) const {
    return std::ranges::all_of(place, [&](std::byte byte) { return byte == fill; });
  }

  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlot, kUntouched);
  std::vector<std::byte> place = std::vector<std::byte>(kPayload, kUntouched);  // wanted
  Counter written, read;
  Channels channels;

 private:
  void feed(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      Channels::Filling filling;
      const auto room = parser_.room(filling);
      const std::size_t n = std::min(room.size(), bytes.size());
      std::ranges::copy(bytes.first(n), room.begin());
      bytes = bytes.subspan(n);
      filling.end();
      parser_.take(n);
    }
  }
  int greet(const Frame&, std::span<const std::byte>) override { return 1; }
  bool may_send(int, std::uint32_t) const override { return true; }
  void left(int, std::uint32_t, std::uint64_t) override {}
  void aborted(std::string_view) override {}
  void control(int, std::uint64_t, std::size_t, std::span<const std::byte>) override {}

  FrameParser parser_;
  std::uint32_t number_ = 0;
  std::vector<std::byte> message_;
  std::span<const std::byte> unsent_;
};

TEST(a_payload_goes_where_it_is_wanted) {
  Receiver to;
  to.channels.post_receive(kChannel, 0, to.place);
  to.send(std::byte{1});
  CHECK(to.written.reached(1));
  CHECK(to.channels.take_placed(kChannel, 0));
  CHECK(to.place_is(std::byte{1}));
  CHECK(to.slot_is(0, kUntouched));
  // The next one is wanted nowhere.
  to.read.advance();
  to.send(std::byte{2});
  CHECK(!to.channels.take_placed(kChannel, 1));
  CHECK(to.slot_is(1, std::byte{2}));
  CHECK(to.place_is(std::byte{1}));
}

TEST(a_message_that_has_arrived_or_begun_stays_in_its_slot) {
  Receiver to;
  to.send(std::byte{1});
  to.channels.post_receive(kChannel, 0, to.place);
  CHECK(!to.channels.take_placed(kChannel, 0));
  CHECK(to.slot_is(0, std::byte{1}));
  to.send(std::byte{2}, kPayload, sizeof(Frame) + 1);
  to.channels.post_receive(kChannel, 1, to.place);
  to.send_rest();
  CHECK(!to.channels.take_placed(kChannel, 1));
  CHECK(to.slot_is(1, std::byte{2}));
  CHECK(to.place_is(kUntouched));
}

TEST(a_message_of_another_length_stays_in_its_slot) {
  Receiver to;
  to.channels.post_receive(kChannel, 0, std::span(to.place).first(kPayload - 1));
  to.channels.post_receive(kChannel, 1, to.place);
  to.send(std::byte{1});
  to.send(std::byte{2}, kPayload - 1);
  for (std::uint32_t number = 0; number < 2; ++number)
    CHECK(!to.channels.take_placed(kChannel, number));
  CHECK(to.place_is(kUntouched));
}

TEST(nothing_goes_to_a_place_that_was_withdrawn) {
  Receiver to;
  to.channels.post_receive(kChannel, 0, to.place);
  const std::size_t half = kPayload / 2;
  to.send(std::byte{1}, kPayload, sizeof(Frame) + kSlotHeader + half);
  to.channels.withdraw(kChannel);
  std::ranges::fill(to.place, kUntouched);
  to.send_rest();
  CHECK(to.written.reached(1));
  CHECK(!to.channels.take_placed(kChannel, 0));
  CHECK(to.place_is(kUntouched));
}

// As a rank that gives up while the progress thread reads: the memory is freed at once.
TEST(withdrawing_waits_for_bytes_that_are_being_written) {
  Receiver to;
  for (std::uint32_t number = 0; number < 300; ++number) {
    auto place = std::make_unique<std::vector<std::byte>>(kPayload);
    to.channels.post_receive(kChannel, number, *place);
    std::thread progress([&] {
      to.send(std::byte{3}, kPayload, sizeof(Frame) + kSlotHeader);
      for (std::size_t sent = 0; sent < kPayload; sent += 10) to.send_rest(10);
    });
    for (std::uint32_t spin = 0; spin < number * 20; ++spin)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    to.channels.withdraw(kChannel);
    place.reset();
    progress.join();
    to.channels.take_placed(kChannel, number);
    to.read.advance();
  }
}

}  // namespace lockstep::testing::posted_receives
