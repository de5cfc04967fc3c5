// The functions and numbers of OpenSSL that TLS needs, from a libssl that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/symbol.h"

struct ssl_st;  // OpenSSL's SSL, SSL_CTX, BIO, BIO_METHOD and EVP_CIPHER_CTX
struct ssl_ctx_st;
struct bio_st;
struct bio_method_st;
struct evp_cipher_ctx_st;

namespace lockstep {
namespace openssl {

// From OpenSSL's headers; the same in 1.1.1 and in all of 3.
constexpr std::uint64_t kInitNoAtexit = 0x80000;
constexpr int kReadAhead = 41, kSessionCache = 44, kMinVersion = 123, kMaxVersion = 124;
constexpr int kTls13 = 0x0304;
constexpr std::uint32_t kAes128GcmSha256 = 0x03001301;
constexpr unsigned long kAllowNoDhe = 0x400;
constexpr int kVerifyPeer = 1;
constexpr int kBioFlush = 11, kBioOfOurs = 0x0400 | 100;  // a source or sink, its number
constexpr int kBioRetryFlags = 0xf, kBioRetryRead = 0x1 | 0x8;
constexpr int kErrorWantRead = 2, kErrorZeroReturn = 6;
constexpr int kGetTag = 0x10, kSetTag = 0x11;
constexpr unsigned long kLibrarySsl = 20;
constexpr unsigned long kBinderDoesNotVerify = 253;
constexpr unsigned long kAlertIllegalParameter = 1047, kAlertDecryptError = 1051;

using Ssl = ssl_st;
using Context = ssl_ctx_st;
using Bio = bio_st;
using BioMethod = bio_method_st;
using Cipher = evp_cipher_ctx_st;

// Called for the key of a handshake, by the client and by the server.
using ClientKey = unsigned (*)(Ssl*, const char*, char*, unsigned, unsigned char*, unsigned);
using ServerKey = unsigned (*)(Ssl*, const char*, unsigned char*, unsigned);
// Called with a line of NSS's key log: a label, the client's random number and a secret.
using KeyLog = void (*)(const Ssl*, const char*);

// The library stays open for good: it leaves something behind in each thread that has used it.
class Library {
 public:
  explicit Library(const std::string& name);
  void* symbol(const char* name) const;

 private:
  std::string name_;
  void* handle_;
};

// Whether an error of libssl has this reason.
bool is(unsigned long error, unsigned long reason);

}  // namespace openssl

struct OpenSsl {
  openssl::Library library;

  Symbol<int(std::uint64_t, const void*)> init{library, "OPENSSL_init_ssl"};
  Symbol<const void*()> method{library, "TLS_method"};
  Symbol<openssl::Context*(const void*)> new_context{library, "SSL_CTX_new"};
  Symbol<void(openssl::Context*)> free_context{library, "SSL_CTX_free"};
  Symbol<long(openssl::Context*, int, long, void*)> set{library, "SSL_CTX_ctrl"};
  Symbol<unsigned long(openssl::Context*, unsigned long)> clear_options{library,
                                                                        "SSL_CTX_clear_options"};
  Symbol<int(openssl::Context*, const char*)> set_ciphersuites{library, "SSL_CTX_set_ciphersuites"};
  Symbol<int(openssl::Context*, std::size_t)> set_tickets{library, "SSL_CTX_set_num_tickets"};
  Symbol<void(openssl::Context*, openssl::ClientKey)> set_client_key{
      library, "SSL_CTX_set_psk_client_callback"};
  Symbol<void(openssl::Context*, openssl::ServerKey)> set_server_key{
      library, "SSL_CTX_set_psk_server_callback"};
  Symbol<void(openssl::Context*, openssl::KeyLog)> set_key_log{library,
                                                               "SSL_CTX_set_keylog_callback"};
  Symbol<openssl::Ssl*(openssl::Context*)> new_session{library, "SSL_new"};
  Symbol<void(openssl::Ssl*)> free_session{library, "SSL_free"};
  Symbol<void(openssl::Ssl*, openssl::Bio*, openssl::Bio*)> set_bios{library, "SSL_set_bio"};
  Symbol<openssl::BioMethod*(int, const char*)> new_bio_method{library, "BIO_meth_new"};
  Symbol<void(openssl::BioMethod*)> free_bio_method{library, "BIO_meth_free"};
  Symbol<int(openssl::BioMethod*, int (*)(openssl::Bio*, const char*, int))> set_bio_write{
      library, "BIO_meth_set_write"};
  Symbol<int(openssl::BioMethod*, int (*)(openssl::Bio*, char*, int))> set_bio_read{
      library, "BIO_meth_set_read"};
  Symbol<int(openssl::BioMethod*, long (*)(openssl::Bio*, int, long, void*))> set_bio_control{
      library, "BIO_meth_set_ctrl"};
  Symbol<openssl::Bio*(const openssl::BioMethod*)> new_bio{library, "BIO_new"};
  Symbol<void(openssl::Bio*, int)> set_bio_ready{library, "BIO_set_init"};
  Symbol<void(openssl::Bio*, int)> set_bio_flags{library, "BIO_set_flags"};
  Symbol<void(openssl::Bio*, int)> clear_bio_flags{library, "BIO_clear_flags"};
  Symbol<void(openssl::Ssl*, int, void*)> set_verify{library, "SSL_set_verify"};
  Symbol<void(openssl::Ssl*)> be_client{library, "SSL_set_connect_state"};
  Symbol<void(openssl::Ssl*)> be_server{library, "SSL_set_accept_state"};
  Symbol<int(openssl::Ssl*)> handshake{library, "SSL_do_handshake"};
  Symbol<int(openssl::Ssl*)> version{library, "SSL_version"};
  Symbol<int(openssl::Ssl*)> used_psk{library, "SSL_session_reused"};  // a PSK counts as a session
  Symbol<const void*(const openssl::Ssl*)> suite{library, "SSL_get_current_cipher"};
  Symbol<std::uint32_t(const void*)> suite_number{library, "SSL_CIPHER_get_id"};
  Symbol<int(const openssl::Ssl*)> has_pending{library, "SSL_has_pending"};
  Symbol<const char*(int)> alert_text{library, "SSL_alert_desc_string_long"};
  Symbol<int(openssl::Ssl*, int)> get_error{library, "SSL_get_error"};
  Symbol<void()> clear_errors{library, "ERR_clear_error"};
  Symbol<unsigned long()> next_error{library, "ERR_get_error"};
  Symbol<const char*(unsigned long)> reason{library, "ERR_reason_error_string"};

  // These are in the libcrypto that this libssl is linked with: dlsym searches a library's
  // dependencies.
  Symbol<openssl::Cipher*()> new_cipher{library, "EVP_CIPHER_CTX_new"};
  Symbol<void(openssl::Cipher*)> free_cipher{library, "EVP_CIPHER_CTX_free"};
  Symbol<const void*()> aes_128_gcm{library, "EVP_aes_128_gcm"};
  Symbol<int(openssl::Cipher*, const void*, void*, const unsigned char*, const unsigned char*, int)>
      init_cipher{library, "EVP_CipherInit_ex"};
  Symbol<int(openssl::Cipher*, unsigned char*, int*, const unsigned char*, int)> crypt{
      library, "EVP_CipherUpdate"};
  Symbol<int(openssl::Cipher*, unsigned char*, int*)> finish_cipher{library, "EVP_CipherFinal_ex"};
  Symbol<int(openssl::Cipher*, int, int, void*)> control_cipher{library, "EVP_CIPHER_CTX_ctrl"};
  Symbol<const void*()> sha256{library, "EVP_sha256"};
  Symbol<unsigned char*(const void*, const void*, int, const unsigned char*, std::size_t,
                        unsigned char*, unsigned*)>
      hmac{library, "HMAC"};

  // The first error of this thread, or 0. Leaves none: Python's ssl module looks there as well.
  unsigned long take_error() const;
  std::string text_of(unsigned long error) const;
};

}  // namespace lockstep
