// What is particular to UCX: the order of its messages, and what comes from others. Where
// LOCKSTEP_TEST_UCX names no library, the tests that need UCX do nothing. The engine's other tests
// run over UCX as well, with the same variable.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

#include <array>
#include <filesystem>

#include "base/error.h"
#include "harness.h"
#include "hosts.h"
#include "model.h"
#include "transport/ucx/ucx_transport.h"

namespace lockstep::testing::ucx {

// A test that needs UCX.
#define UCX_TEST(NAME)                               \
  static void NAME##_over_ucx();                     \
  TEST(NAME) {                                       \
    if (!ucx_libraries().empty()) NAME##_over_ucx(); \
  }                                                  \
  static void NAME##_over_ucx()

const ChannelId kChannel{7, 2, 1};

void arrive(UcxChannels& channels, std::uint32_t number) {
  std::byte* to = channels.room(kChannel, number, kSlotHeader);
  CHECK(to != nullptr);
  channels.arrived(kChannel, number);
}

TEST(messages_in_any_order) {
  UcxChannels channels;
  Ring ring;
  channels.open(kChannel, ring.receive_ring());
  arrive(channels, 2);
  arrive(channels, 1);
  CHECK_EQUAL(ring.written.load(), 0u);
  arrive(channels, 0);
  CHECK_EQUAL(ring.written.load(), 3u);
  // One that got its room first, and its bytes last.
  CHECK(channels.room(kChannel, 3, kSlotHeader) == &ring.slots[3 * Ring::kBytes]);
  ring.read.advance();
  arrive(channels, 4);
  CHECK_EQUAL(ring.written.load(), 3u);
  channels.arrived(kChannel, 3);
  CHECK_EQUAL(ring.written.load(), 5u);
}

TEST(messages_before_their_channel_in_any_order) {
  UcxChannels channels;
  Ring ring;
  for (const std::uint32_t number : {1u, 0u, 3u}) {
    CHECK(channels.room(kChannel, number, kSlotHeader) == nullptr);
    channels.keep(kChannel, number, std::vector<std::byte>(kSlotHeader, std::byte(number + 1)));
  }
  channels.open(kChannel, ring.receive_ring());
  CHECK_EQUAL(ring.written.load(), 2u);
  // Fetched while the channel was opened.
  channels.keep(kChannel, 2, std::vector<std::byte>(kSlotHeader, std::byte{3}));
  CHECK_EQUAL(ring.written.load(), 4u);
  for (std::uint32_t slot = 0; slot < 4; ++slot)
    CHECK(ring.slots[slot * Ring::kBytes] == std::byte(slot + 1));
}

TEST(releases_in_any_order) {
  UcxChannels channels;
  Ring ring;
  channels.open(kChannel, ring.send_ring());
  channels.released(kChannel, 3);
  CHECK_EQUAL(ring.read.load(), 4u);
  channels.released(kChannel, 1);
  CHECK_EQUAL(ring.read.load(), 4u);
}

TEST(messages_that_break_the_rules) {
  UcxChannels channels;
  Ring ring, other;
  channels.open(kChannel, ring.receive_ring());
  channels.open(kChannel, other.send_ring());
  arrive(channels, 0);
  const auto room = [&](std::uint32_t number, std::size_t bytes) {
    return ERROR_OF(channels.room(kChannel, number, bytes));
  };
  CHECK_CONTAINS(room(0, kSlotHeader), "out of turn");  // the same again
  CHECK_CONTAINS(room(-1u, kSlotHeader), "out of turn");
  CHECK_CONTAINS(room(9, kSlotHeader), "out of turn");
  CHECK_CONTAINS(room(4, kSlotHeader), "without room");  // number 0 has not been released
  CHECK_CONTAINS(room(1, Ring::kBytes + 1), "too long");
  CHECK_CONTAINS(room(1, UcxChannels::kMaxMessage + 1), "too long");
  CHECK_CONTAINS(ERROR_OF(channels.released(kChannel, 1000)), "not sent");
  CHECK_CONTAINS(ERROR_OF(channels.released({8, 2, 1}, 0)), "not sent");
  const ChannelId unknown{9, 2, 1};
  const auto keep = [&](std::uint32_t number, std::size_t bytes) {
    return ERROR_OF(channels.keep(unknown, number, std::vector<std::byte>(bytes)));
  };
  CHECK_CONTAINS(keep(kMaxSlots, kSlotHeader), "more messages");
  CHECK_CONTAINS(keep(0, UcxChannels::kMaxEarlyBytes), "more messages");
  channels.keep(unknown, 0, std::vector<std::byte>(kSlotHeader));
  CHECK_CONTAINS(keep(0, kSlotHeader), "out of turn");
}

TEST(no_library) {
  CHECK_CONTAINS(ERROR_OF(ucp::Library({"/a/libucp.so.0", "/b/libucp.so.0"})),
                 "--transport ucx needs UCX", "/a/libucp.so.0: cannot open", "; /b/libucp.so.0",
                 "apt install libucx0", "pip install libucx-cu12", "--transport tcp");
  CHECK_CONTAINS(ERROR_OF(ucp::Library({"libm.so.6"})), "has no ucp_get_version");
}

// The handlers of all signals, and how the functions begin that UCX may patch.
std::vector<std::byte> what_ucx_may_change() {
  std::vector<std::byte> found;
  for (int number = 1; number < 32; ++number) {
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0) continue;
    const auto* handler = reinterpret_cast<const std::byte*>(&action.sa_handler);
    found.insert(found.end(), handler, handler + sizeof(action.sa_handler));
  }
  for (const char* name : {"mmap", "munmap", "mremap", "madvise", "brk", "shmat"}) {
    const auto* code = static_cast<const std::byte*>(dlsym(RTLD_DEFAULT, name));
    found.insert(found.end(), code, code + 16);
  }
  return found;
}

// In a child, where it has not been loaded before.
UCX_TEST(loading_leaves_signals_and_the_c_library_alone) {
  run_in_child([] {
    const auto before = what_ucx_may_change();
    const ucp::Library library(ucx_libraries());
    const UcxWorker worker(library, 2);
    CHECK(what_ucx_may_change() == before);
    CHECK(getenv("UCX_HANDLE_ERRORS") == nullptr);
  });
}

// The scheduler of a busy machine may stop it: what it was sent before must still come. The test is
// the first one, because UCX does not work in a child of a process that has used it, and keeps a
// worker.
UCX_TEST(a_process_that_is_stopped_while_another_one_ends) {
  for (const bool connected : {true, false})
    run_healthy(layout("2x1"), {.harness = Harness::kHosts}, [&](Rank& rank) {
      const auto end = rank.all();
      if (connected) run_case(*end, {.count = 10, .seed = 1});
      if (rank.process() == 1) stop_for(std::chrono::seconds(4));
      if (rank.process() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
      run_permute(*end, {{0, 1}}, 100, 2);
    });
}

std::size_t timers_of_this_process() {
  std::size_t found = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    found +=
        std::filesystem::read_symlink(each, closed).string().find("timerfd") != std::string::npos;
  }
  return found;
}

// UCX takes the time of its keepalive from a timer.
UCX_TEST(no_keepalive_of_ucx) {
  if (getenv("UCX_KEEPALIVE_INTERVAL") != nullptr) return;
  run_healthy(layout("2x1"), {.harness = Harness::kHosts}, [&](Rank& rank) {
    const auto end = all_started(rank);
    CHECK_EQUAL(timers_of_this_process(), 0u);
  });
}

std::unique_ptr<UcxTransport> make_ucx(int process, const Host& host, const WakeUp& wake_up) {
  return std::make_unique<UcxTransport>(ucx_libraries(), host.listener.fd.get(), process, kLabels,
                                        *host.arena, 20, wake_up);
}

// Two hosts whose messages go over UCX.
struct TwoOverUcx {
  std::deque<Ring> rings;
  Host hosts[2];
  std::atomic<std::uint32_t> abort{0};
  WakeUp wake_up;
  std::unique_ptr<UcxTransport> ucx[2];
  std::unique_ptr<TcpTransport> tcp[2];

  TwoOverUcx() {
    for (int i = 0; i < 2; ++i) {
      ucx[i] = make_ucx(i, hosts[i], wake_up);
      hosts[i].companion = ucx[i].get();
    }
    join_each_other(hosts);
    for (int i = 0; i < 2; ++i) {
      tcp[i] = std::make_unique<TcpTransport>(*hosts[i].endpoint, *hosts[i].endpoint, abort, 20,
                                              wake_up);
      ucx[i]->start(*hosts[i].endpoint, *tcp[i]);
    }
  }
  ~TwoOverUcx() {
    for (Host& host : hosts) host.endpoint.reset();
  }
  bool healthy() const { return !hosts[0].arena->aborted() && !hosts[1].arena->aborted(); }
};

// The ends of one channel, from process 0 to process 1.
struct Ends {
  Ring &from, &to;
  std::unique_ptr<SendChannel> send;
  std::unique_ptr<ReceiveChannel> receive;
  explicit Ends(TwoOverUcx& two, std::uint64_t clique)
      : from(two.rings.emplace_back()),
        to(two.rings.emplace_back()),
        send(two.ucx[0]->open({clique, 3, 1}, from.send_ring())),
        receive(two.ucx[1]->open({clique, 3, 0}, to.receive_ring())) {}
  void exchange(std::uint32_t number) {
    from.slots[number % Ring::kCount * Ring::kBytes + kSlotHeader + 5] = std::byte(number);
    send->post_send(number, from.message(number, 6), nullptr);
    eventually([&] { return to.written.reached(number + 1); }, "a message");
    CHECK(to.slots[number % Ring::kCount * Ring::kBytes + kSlotHeader + 5] == std::byte(number));
    to.read.advance();
    receive->post_release(number, nullptr);
  }
};

UCX_TEST(messages_and_releases) {
  TwoOverUcx two;
  Ends ends(two, 7);
  for (std::uint32_t number = 0; number < 10; ++number) ends.exchange(number);
  eventually([&] { return ends.from.read.reached(10); }, "the releases");
  CHECK(two.healthy());
}

UCX_TEST(a_process_has_left_when_its_messages_are_there) {
  TwoOverUcx two;
  Ring& from = two.rings.emplace_back();
  const auto send = two.ucx[0]->open({5, 3, 1}, from.send_ring());
  for (std::uint32_t number = 0; number < 3; ++number)
    send->post_send(number, from.message(number, 900), nullptr);
  two.hosts[0].endpoint.reset();
  const auto& left = *two.ucx[1]->has_left(0);
  eventually([&] { return left.load() != 0; }, "word that it has left");
  Ring& to = two.rings.emplace_back();
  const auto receive = two.ucx[1]->open({5, 3, 0}, to.receive_ring());
  CHECK_EQUAL(to.written.load(), 3u);
  // A process that has left needs nothing.
  receive->post_release(1, nullptr);
  CHECK(!two.hosts[1].arena->aborted());
}

// Whose messages are over may still send some by its other transport, or be broken.
UCX_TEST(a_count_that_is_not_reached_is_no_leave) {
  TwoOverUcx two;
  two.ucx[1]->left(0, 1);
  CHECK_EQUAL(two.ucx[1]->has_left(0)->load(), 0u);
  Ends(two, 7).exchange(0);
  eventually([&] { return two.ucx[1]->has_left(0)->load() != 0; }, "word that it has left");
}

UCX_TEST(messages_that_do_not_come_after_their_process_has_left) {
  TwoOverUcx two;
  two.ucx[1]->left(0, 3);
  Ends(two, 7).exchange(0);
  CHECK_CONTAINS(failure_of(*two.hosts[1].arena),
                 "process 0 has ended, and of its 3 messages to process 1 over UCX, 2 do not come",
                 "UCX_NET_DEVICES");
}

UCX_TEST(what_is_in_flight) {
  TwoOverUcx two;
  Ends(two, 7).exchange(0);
  CHECK_CONTAINS(two.ucx[0]->in_flight(1), "of 1 to it, 0 are still being sent");
  CHECK_CONTAINS(two.ucx[1]->in_flight(0), "1 messages have come from it, and 0 are being fetched");
}

TEST(the_network_of_a_socket) {
  CHECK_EQUAL(ucp::device_of(listen_anywhere().fd.get()), "lo");
  CHECK_EQUAL(ucp::device_of(-1), "");
}

UCX_TEST(an_old_ucx_gets_one_network) {
  if (std::getenv("UCX_NET_DEVICES") != nullptr) return;
  const ucp::Library library(ucx_libraries());
  const Listener listener = listen_anywhere();
  const ucp::Devices devices = ucp::choose_devices(library, listener.fd.get());
  const bool is_old = !library.takes_several_networks();
  // With InfiniBand it has all networks, and says what may happen.
  CHECK(devices.warning.empty() || is_old);
  CHECK_EQUAL(devices.chosen, is_old && devices.warning.empty() ? "lo" : "");
  setenv("UCX_NET_DEVICES", "all", 1);
  const ucp::Devices given = ucp::choose_devices(library, listener.fd.get());
  unsetenv("UCX_NET_DEVICES");
  CHECK_EQUAL(given.chosen + given.warning, "");
}

UCX_TEST(a_message_without_the_secret_is_dropped) {
  TwoOverUcx two;
  // A stranger that knows where process 1 listens.
  std::vector<std::byte> greeting = two.ucx[1]->greeting();
  const std::vector<std::byte> address(greeting.begin() + 16, greeting.end());
  const ucp::Library library(ucx_libraries());
  const int listener = two.hosts[0].listener.fd.get();
  UcxWorker stranger(library, 2, ucp::choose_devices(library, listener).chosen);
  stranger.start([] {});
  ucp::Ep* ep = nullptr;
  std::vector<ucp::StatusPointer> requests;
  std::array<std::byte, 48 + kSlotHeader> header{};
  {
    const UcxWorker::Lock lock(stranger);
    ucp::EpParams param{};
    param.field_mask = ucp::EpParams::kAddress;
    param.address = address.data();
    library.check(library.ep_create(stranger.get(), &param, &ep), "connect");
    const ucp::RequestParam plain{};
    for (const std::size_t bytes : {header.size(), std::size_t{48}, std::size_t{8}})
      requests.push_back(library.send(ep, 0, header.data(), bytes, nullptr, 0, &plain));
  }
  stranger.flush(Clock::now() + std::chrono::seconds(5), two.abort);
  for (const ucp::StatusPointer request : requests)
    if (request != nullptr && !ucp::is_error(request)) library.request_free(request);
  Ends ends(two, 7);
  ends.exchange(0);
  eventually([&] { return two.ucx[1]->refused() == 3; }, "three messages");
  ends.exchange(1);
  CHECK(two.healthy());
}

UCX_TEST(a_connection_that_ucx_alone_does_not_have) {
  TwoOverUcx two;
  const auto gone = make_ucx(1, two.hosts[1], two.wake_up)->greeting();
  two.ucx[0]->greeted(1, gone);
  Ring& from = two.rings.emplace_back();
  const auto send = two.ucx[0]->open({7, 3, 1}, from.send_ring());
  std::string error;
  const auto fails = [&] {
    error = error_or_none([&] { send->post_send(0, from.message(0, 6), nullptr); });
    return !error.empty();
  };
  eventually(fails, "an error");
  CHECK_CONTAINS(error,
                 "the UCX connection from process 0 to process 1 is broken: ", "UCX_NET_DEVICES",
                 "--transport tcp");
  eventually([&] { return two.hosts[0].arena->aborted(); }, "the end of the job");
}

UCX_TEST(a_process_that_sends_over_tcp) {
  Host hosts[2];
  const WakeUp wake_up;
  const auto ucx = make_ucx(0, hosts[0], wake_up);
  hosts[0].companion = ucx.get();
  const auto errors = errors_of_joining(hosts, {.timeout_seconds = 20});
  // The first that is refused ends, perhaps before it has answered the other one.
  CHECK(!errors[0].empty() && !errors[1].empty());
  CHECK_CONTAINS(errors[0] + errors[1], "what this process sends over");
}

}  // namespace lockstep::testing::ucx
