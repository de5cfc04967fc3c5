#include "transport/tcp/stripe_readers.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/signals.h"

namespace lockstep {
namespace {

constexpr int kPollInterval = 1000;  // milliseconds; `wake_` ends a poll at once

}  // namespace

StripeReaders::StripeReaders(std::size_t count, Ended ended) : ended_(std::move(ended)) {
  while (readers_.size() < count) readers_.push_back(std::make_unique<Reader>(ended_));
}

StripeReaders::~StripeReaders() { stop(); }

void StripeReaders::add(std::unique_ptr<Incoming> connection) {
  readers_.at(connection->frames.connection() - 1)->add(std::move(connection));
}

void StripeReaders::stop() {
  for (auto& reader : readers_) reader->stop();
}

void StripeReaders::abandon() {
  for (auto& reader : readers_) reader->abandon();
}

StripeReaders::Reader::Reader(const Ended& ended)
    : ended_(ended), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!watch_input(epoll_.get(), wake_.fd(), nullptr))
    throw Error(std::string("lockstep: cannot watch for other hosts: ") + std::strerror(errno) +
                ".");
  thread_ = std::thread([this] { run(); });
}

void StripeReaders::Reader::add(std::unique_ptr<Incoming> connection) {
  Incoming* const added = connection.get();
  {
    std::lock_guard lock(mutex_);
    connections_.push_back(std::move(connection));
  }
  // The other end sends nothing before it has its answer, so there is nothing yet but in the
  // socket.
  if (!watch_input(epoll_.get(), added->fd.get(), added)) end(*added, std::strerror(errno));
}

void StripeReaders::Reader::stop() {
  over_ = true;
  wake_.notify();
  if (thread_.joinable()) thread_.join();
}

void StripeReaders::Reader::abandon() {
  for (auto& connection : connections_) connection->fd = Descriptor();
  epoll_ = Descriptor();
}

void StripeReaders::Reader::run() {
  block_signals();
  epoll_event events[16];
  while (!over_) {
    const int count = epoll_wait(epoll_.get(), events, 16, kPollInterval);
    for (int i = 0; i < count && !over_; ++i)
      if (auto* connection = static_cast<Incoming*>(events[i].data.ptr)) advance(*connection);
  }
}

void StripeReaders::Reader::advance(Incoming& connection) {
  try {
    while (!over_ && connection.read()) {
    }
  } catch (const std::exception& error) {
    end(connection, error.what());
  }
}

// Closing is not enough while a forked child keeps the connection open.
void StripeReaders::Reader::end(const Incoming& connection, const std::string& why) {
  const int process = connection.frames.process();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd.get(), nullptr);
  {
    std::lock_guard lock(mutex_);
    std::erase_if(connections_, [&](const auto& one) { return one.get() == &connection; });
  }
  ended_(process, why);
}

}  // namespace lockstep
