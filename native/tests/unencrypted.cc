// Between hosts without encryption: the key is still proved, and everything else is as with it.
#include "transport/tcp/unencrypted.h"

#include <string>

#include "check.h"
#include "hosts.h"
#include "tls_wires.h"

namespace lockstep::testing::unencrypted {

TEST(parts_of_any_size_come_out_in_order) {
  const Wire wire = local_wire();
  UnencryptedSession from(wire.a->fd()), to(wire.b->fd());
  CHECK(from.handshake() == Result::kDone);
  for (const std::size_t head : {0, 1, 32, 9000})
    for (const std::size_t body : {0, 1, 8191, 8192, 8193, 60000})
      for (const std::size_t most : {1, 31, 8192, 100000}) {
        const Bytes bytes = random_bytes(head + body, head + body);
        std::size_t moved = 0;
        CHECK(from.write(std::span(bytes).first(head), std::span(bytes).subspan(head), moved) ==
              Result::kDone);
        CHECK_EQUAL(moved, bytes.size());
        CHECK(received(to, most) == shown(bytes));
      }
}

TEST(a_full_connection_takes_the_rest_later) {
  const Wire wire = local_wire(4096);
  UnencryptedSession from(wire.a->fd()), to(wire.b->fd());
  const Bytes bytes = random_bytes(1 << 20, 1);
  std::string seen;
  bool was_full = false;
  for (std::size_t done = 0, moved = 0; done < bytes.size(); done += moved) {
    const Result result = from.write(std::span(bytes).subspan(done), moved);
    CHECK(result == Result::kDone || (result == Result::kWantsWrite && moved == 0));
    was_full = was_full || result == Result::kWantsWrite;
    if (result == Result::kWantsWrite) seen += received(to, 1000);
  }
  seen += received(to, 1000);
  CHECK(was_full);
  CHECK(seen == shown(bytes));
}

TEST(how_it_ends) {
  Wire wire = loopback_wire();
  UnencryptedSession from(wire.a->fd()), to(wire.b->fd());
  say(from, "last");
  CHECK(from.close() == Result::kDone);
  std::string seen;
  eventually([&] { return (seen += received(to, 100)) == "last"; }, "the last bytes");
  Bytes room(1);
  std::size_t moved = 0;
  eventually([&] { return to.read(room, moved) == Result::kClosed; }, "the end");
  CHECK_CONTAINS(to.problem(), "the other end closed the connection");
  CHECK(to.write(bytes_of("more"), moved) == Result::kClosed);
  wire.b.reset();
  eventually([&] { return over(from.read(room, moved)); }, "the end of the other");
}

// What docs/security.md says is lost.
TEST(a_man_in_the_middle_reads_and_changes_what_passes) {
  const Wire near = local_wire(), far = local_wire();
  UnencryptedSession from(near.a->fd()), to(far.b->fd());
  say(from, "pay 10");
  Bytes seen = near.b->take();
  CHECK_EQUAL(shown(seen), "pay 10");
  seen[4] = std::byte{'9'};
  far.a->put(seen);
  CHECK_EQUAL(received(to, 100), "pay 90");
}

TEST(all_processes_encrypt_or_none_does) {
  Host hosts[2];
  hosts[1].encrypt = false;
  const auto errors = errors_of_joining(hosts);
  // The one that is refused first does not stay to answer the other.
  CHECK_CONTAINS(errors[0] + errors[1], "has refused the connection of process",
                 "what it sends, and this process", "LOCKSTEP_ENCRYPTION");
}

}  // namespace lockstep::testing::unencrypted
