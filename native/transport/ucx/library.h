// The functions of UCX that the transport needs, from a libucp that is opened at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/ucx/ucp.h"

namespace lockstep::ucp {

class Library {
 public:
  // Opens the first of these that there is. Throws Error, with what was tried, when there is none,
  // or when it is too old.
  explicit Library(const std::vector<std::string>& candidates);

  const std::string& version() const { return version_; }
  // Before 1.14 UCX has crashed when two processes connected to each other over several network
  // interfaces with TCP.
  bool takes_several_networks() const { return numbers_[1] >= 14; }
  std::string text_of(Status status) const { return status_string(status); }
  // Throws Error, of what has failed, unless the status is kOk.
  void check(Status status, const char* what) const;

 private:
  void* const handle_;  // stays open for good: UCX has threads, and handlers for the exit

  template <typename Pointer>
  class Symbol {
   public:
    Symbol(const Library& library, const char* name)
        : call_(reinterpret_cast<Pointer>(library.symbol(name))) {}
    operator Pointer() const { return call_; }

   private:
    Pointer call_;
  };
  template <typename Signature>
  using Function = Symbol<Signature*>;

  void* symbol(const char* name) const;

 public:
  Function<void(unsigned*, unsigned*, unsigned*)> get_version{*this, "ucp_get_version"};
  Function<const char*(Status)> status_string{*this, "ucs_status_string"};
  Function<Status(const char*, const char*, Config**)> config_read{*this, "ucp_config_read"};
  Function<Status(Config*, const char*, const char*)> config_modify{*this, "ucp_config_modify"};
  Function<void(Config*)> config_release{*this, "ucp_config_release"};
  Function<Status(unsigned, unsigned, const Params*, const Config*, Context**)> init{
      *this, "ucp_init_version"};
  Function<void(Context*)> cleanup{*this, "ucp_cleanup"};
  Function<Status(Context*, const WorkerParams*, Worker**)> worker_create{*this,
                                                                          "ucp_worker_create"};
  Function<void(Worker*)> worker_destroy{*this, "ucp_worker_destroy"};
  Function<Status(Worker*, WorkerAttributes*)> worker_query{*this, "ucp_worker_query"};
  Function<void(Worker*, void*)> worker_release_address{*this, "ucp_worker_release_address"};
  Function<unsigned(Worker*)> worker_progress{*this, "ucp_worker_progress"};
  Function<Status(Worker*, int*)> worker_get_efd{*this, "ucp_worker_get_efd"};
  Function<Status(Worker*)> worker_arm{*this, "ucp_worker_arm"};
  Function<Status(Worker*)> worker_signal{*this, "ucp_worker_signal"};
  Function<StatusPointer(Worker*, const RequestParam*)> worker_flush{*this, "ucp_worker_flush_nbx"};
  Function<Status(Worker*, const HandlerParam*)> set_handler{*this,
                                                             "ucp_worker_set_am_recv_handler"};
  Function<Status(Worker*, const EpParams*, Ep**)> ep_create{*this, "ucp_ep_create"};
  Function<StatusPointer(Ep*, const RequestParam*)> ep_close{*this, "ucp_ep_close_nbx"};
  Function<StatusPointer(Ep*, unsigned, const void*, std::size_t, const void*, std::size_t,
                         const RequestParam*)>
      send{*this, "ucp_am_send_nbx"};
  Function<StatusPointer(Worker*, void*, void*, std::size_t, const RequestParam*)> receive{
      *this, "ucp_am_recv_data_nbx"};
  Function<void(Worker*, void*)> request_cancel{*this, "ucp_request_cancel"};
  Function<Status(void*)> request_status{*this, "ucp_request_check_status"};
  Function<void(void*)> request_free{*this, "ucp_request_free"};

 private:
  const std::array<unsigned, 3> numbers_;
  const std::string version_;
};

}  // namespace lockstep::ucp
