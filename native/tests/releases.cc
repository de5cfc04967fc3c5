// How the sender of a message learns that it has been read.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "hosts.h"

namespace lockstep::testing::releases {

// A release costs no frame of its own.
TEST(a_release_goes_with_the_next_frame) {
  Ring from, to;
  Two two;
  Host &first = two.hosts[0], &second = two.hosts[1];
  first.endpoint->channels().open(ChannelId{1, 0, 1}, from.send_ring());
  second.endpoint->channels().open(ChannelId{1, 0, 0}, to.receive_ring());
  first.endpoint->send({1, 0, 1}, 0, from.message(0, 1), first.limits());
  eventually([&] { return to.written.reached(1); }, "a message");
  to.read.advance();
  second.endpoint->release({1, 0, 0}, 0, second.limits(), false);
  two.exchange(2);  // its release takes the other one along
  CHECK(from.read.reached(1));
  CHECK(two.healthy());
}

// The peer reads nothing, so the sender stays in the middle of a frame.
TEST(a_release_does_not_wait_for_a_thread_that_sends) {
  const Impostor peer;
  const std::vector<std::byte> bytes(400 << 10);
  std::atomic<int> sent{0};
  std::atomic<bool> is_over{false};
  std::string error;
  std::thread sender([&] {
    const Message message{std::span<const std::byte, kSlotHeader>(bytes.data(), kSlotHeader),
                          std::span(bytes).subspan(kSlotHeader)};
    error = ERROR_OF(for (std::uint32_t i = 0;; ++i, ++sent)
                         peer.host.endpoint->send({1, 0, 1}, i, message, peer.host.limits()));
    is_over = true;
  });
  int before = -1;
  eventually(
      [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return std::exchange(before, sent.load()) == sent.load() && before > 0;
      },
      "a sender that waits");
  for (const bool at_once : {false, true})
    peer.host.endpoint->release({2, 0, 1}, 0, peer.host.limits(), at_once);
  CHECK(!is_over);  // it waits still
  peer.host.arena->abort("over");
  sender.join();
  CHECK_EQUAL(error, "over");
}

}  // namespace lockstep::testing::releases
