#include "transport/tcp/stripe_readers.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/signals.h"

namespace lockstep {
namespace {

constexpr int kLongestPoll = 1000;  // milliseconds; `wake_` ends a poll at once

}  // namespace

StripeReaders::StripeReaders(std::size_t count, Owner& owner) {
  while (readers_.size() < count) readers_.push_back(std::make_unique<Reader>(owner));
}

void StripeReaders::add(std::unique_ptr<Incoming> connection) {
  readers_.at(connection->frames.connection() - 1)->add(std::move(connection));
}

void StripeReaders::stop() {
  for (auto& reader : readers_) reader->stop();
}

void StripeReaders::abandon() {
  for (auto& reader : readers_) reader->abandon();
}

StripeReaders::Reader::Reader(Owner& owner) : owner_(owner), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  const std::string cannot = "lockstep: cannot receive over several connections: ";
  if (!watch_input(epoll_.get(), wake_.fd(), nullptr))
    throw Error(cannot + std::strerror(errno) + ". A smaller --connections needs fewer files.");
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(cannot + error.what() + ". A smaller --connections needs fewer threads.");
  }
}

void StripeReaders::Reader::add(std::unique_ptr<Incoming> connection) {
  Incoming* const added = connection.get();
  {
    std::lock_guard lock(mutex_);
    connections_.push_back(std::move(connection));
  }
  if (!watch_input(epoll_.get(), added->fd.get(), added)) end(*added, std::strerror(errno));
}

void StripeReaders::Reader::stop() {
  over_ = true;
  wake_.notify();
  if (thread_.joinable()) thread_.join();
}

void StripeReaders::Reader::abandon() {
  for (auto& connection : connections_)
    if (connection) connection->fd = Descriptor();
  epoll_ = Descriptor();
}

void StripeReaders::Reader::run() {
  block_signals();
  try {
    while (!over_) poll();
  } catch (const std::exception& error) {
    owner_.fail(error.what());
  }
}

void StripeReaders::Reader::poll() {
  epoll_event events[16];
  const int count = epoll_wait(epoll_.get(), events, 16, kLongestPoll);
  for (int i = 0; i < count && !over_; ++i)
    if (auto* connection = static_cast<Incoming*>(events[i].data.ptr)) advance(*connection);
}

void StripeReaders::Reader::advance(Incoming& connection) {
  try {
    while (!over_ && connection.read()) {
    }
  } catch (const Error& error) {
    end(connection, error.what());
  }
}

// Closing is not enough while a forked child keeps the connection open.
void StripeReaders::Reader::end(const Incoming& connection, const std::string& why) {
  const int process = connection.frames.process();
  const bool has_left = connection.frames.has_left();
  if (connection.session->was_changed()) owner_.changed(process, why);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd.get(), nullptr);
  {
    std::lock_guard lock(mutex_);
    std::erase_if(connections_, [&](const auto& one) { return one.get() == &connection; });
  }
  if (!has_left) owner_.ended(process, why);
}

}  // namespace lockstep
