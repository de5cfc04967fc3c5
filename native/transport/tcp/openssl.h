// The functions and numbers of OpenSSL that TLS needs, from a libssl that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct ssl_st;  // OpenSSL's SSL, SSL_CTX, BIO and BIO_METHOD
struct ssl_ctx_st;
struct bio_st;
struct bio_method_st;

namespace lockstep {
namespace openssl {

// From OpenSSL's headers; the same in 1.1.1 and in all of 3.
constexpr std::uint64_t kInitNoAtexit = 0x80000;
constexpr int kMode = 33, kReadAhead = 41, kSessionCache = 44, kMinVersion = 123, kMaxVersion = 124;
constexpr int kTls13 = 0x0304;
constexpr long kPartialWrite = 1, kMovingWriteBuffer = 2;
constexpr unsigned long kIgnoreUnexpectedEof = 0x80, kAllowNoDhe = 0x400;
constexpr int kVerifyPeer = 1;
constexpr int kUpdateNotRequested = 0;
constexpr int kBioFlush = 11, kBioOfOurs = 0x0400 | 100;  // a source or sink, its number
constexpr int kErrorWantRead = 2, kErrorWantWrite = 3, kErrorZeroReturn = 6;
constexpr unsigned long kLibrarySsl = 20;
constexpr unsigned long kBinderDoesNotVerify = 253, kUnexpectedEof = 294;
constexpr unsigned long kAlertIllegalParameter = 1047, kAlertDecryptError = 1051;

using Ssl = ssl_st;
using Context = ssl_ctx_st;
using Bio = bio_st;
using BioMethod = bio_method_st;

// Called for the key of a handshake, by the client and by the server.
using ClientKey = unsigned (*)(Ssl*, const char*, char*, unsigned, unsigned char*, unsigned);
using ServerKey = unsigned (*)(Ssl*, const char*, unsigned char*, unsigned);

// The library stays open for good: it leaves something behind in each thread that has used it.
class Library {
 public:
  explicit Library(const std::string& name);
  void* symbol(const char* name) const;

 private:
  std::string name_;
  void* handle_;
};

template <typename Signature>
class Function;
template <typename Value, typename... Arguments>
class Function<Value(Arguments...)> {
 public:
  Function(const Library& library, const char* name)
      : call_(reinterpret_cast<Value (*)(Arguments...)>(library.symbol(name))) {}
  Value operator()(Arguments... arguments) const { return call_(arguments...); }
  auto pointer() const { return call_; }

 private:
  Value (*call_)(Arguments...);
};

// Whether an error of libssl has this reason.
bool is(unsigned long error, unsigned long reason);

}  // namespace openssl

struct OpenSsl {
  openssl::Library library;

  openssl::Function<int(std::uint64_t, const void*)> init{library, "OPENSSL_init_ssl"};
  openssl::Function<const void*()> method{library, "TLS_method"};
  openssl::Function<openssl::Context*(const void*)> new_context{library, "SSL_CTX_new"};
  openssl::Function<void(openssl::Context*)> free_context{library, "SSL_CTX_free"};
  openssl::Function<long(openssl::Context*, int, long, void*)> set{library, "SSL_CTX_ctrl"};
  openssl::Function<unsigned long(openssl::Context*, unsigned long)> clear_options{
      library, "SSL_CTX_clear_options"};
  openssl::Function<int(openssl::Context*, const char*)> set_ciphersuites{
      library, "SSL_CTX_set_ciphersuites"};
  openssl::Function<int(openssl::Context*, std::size_t)> set_tickets{library,
                                                                     "SSL_CTX_set_num_tickets"};
  openssl::Function<void(openssl::Context*, std::size_t)> set_read_buffer{
      library, "SSL_CTX_set_default_read_buffer_len"};
  openssl::Function<void(openssl::Context*, openssl::ClientKey)> set_client_key{
      library, "SSL_CTX_set_psk_client_callback"};
  openssl::Function<void(openssl::Context*, openssl::ServerKey)> set_server_key{
      library, "SSL_CTX_set_psk_server_callback"};
  openssl::Function<openssl::Ssl*(openssl::Context*)> new_session{library, "SSL_new"};
  openssl::Function<void(openssl::Ssl*)> free_session{library, "SSL_free"};
  openssl::Function<int(openssl::Ssl*, int)> set_read_fd{library, "SSL_set_rfd"};
  openssl::Function<void(openssl::Ssl*, openssl::Bio*)> set_write_bio{library, "SSL_set0_wbio"};
  openssl::Function<openssl::BioMethod*(int, const char*)> new_bio_method{library, "BIO_meth_new"};
  openssl::Function<void(openssl::BioMethod*)> free_bio_method{library, "BIO_meth_free"};
  openssl::Function<int(openssl::BioMethod*, int (*)(openssl::Bio*, const char*, int))>
      set_bio_write{library, "BIO_meth_set_write"};
  openssl::Function<int(openssl::BioMethod*, long (*)(openssl::Bio*, int, long, void*))>
      set_bio_control{library, "BIO_meth_set_ctrl"};
  openssl::Function<openssl::Bio*(const openssl::BioMethod*)> new_bio{library, "BIO_new"};
  openssl::Function<void(openssl::Bio*, int)> set_bio_ready{library, "BIO_set_init"};
  openssl::Function<void(openssl::Ssl*, int, void*)> set_verify{library, "SSL_set_verify"};
  openssl::Function<void(openssl::Ssl*)> be_client{library, "SSL_set_connect_state"};
  openssl::Function<void(openssl::Ssl*)> be_server{library, "SSL_set_accept_state"};
  openssl::Function<int(openssl::Ssl*)> handshake{library, "SSL_do_handshake"};
  openssl::Function<int(openssl::Ssl*, void*, std::size_t, std::size_t*)> read{library,
                                                                               "SSL_read_ex"};
  openssl::Function<int(openssl::Ssl*, const void*, std::size_t, std::size_t*)> write{
      library, "SSL_write_ex"};
  openssl::Function<int(openssl::Ssl*, int)> update_key{library, "SSL_key_update"};
  openssl::Function<int(openssl::Ssl*)> shutdown{library, "SSL_shutdown"};
  openssl::Function<int(openssl::Ssl*)> version{library, "SSL_version"};
  openssl::Function<int(openssl::Ssl*)> used_psk{
      library, "SSL_session_reused"};  // a PSK counts as a session
  openssl::Function<void*(const openssl::Ssl*)> session{library, "SSL_get_session"};
  openssl::Function<int(void*, const unsigned char*, std::size_t)> set_master_key{
      library, "SSL_SESSION_set1_master_key"};
  openssl::Function<int(openssl::Ssl*, int)> get_error{library, "SSL_get_error"};
  openssl::Function<void()> clear_errors{library, "ERR_clear_error"};
  openssl::Function<unsigned long()> next_error{library, "ERR_get_error"};
  openssl::Function<const char*(unsigned long)> reason{library, "ERR_reason_error_string"};

  // The first error of this thread, or 0. Leaves none: Python's ssl module looks there as well.
  unsigned long take_error() const;
  std::string text_of(unsigned long error) const;
};

}  // namespace lockstep
