#include "operator/kube/tls_setup.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <vector>

#include "operator/kube/small_file.h"
#include "runner/base/mutex.h"
#include "runner/base/plural.h"

namespace lockstep::kube {
namespace {

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

// Why OpenSSL refused, from this thread's queue, which is empty afterwards.
std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown reason" : reason;
}

Bio memory_of(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return length > 0 ? std::string(data, static_cast<size_t>(length)) : std::string();
}

std::string name_text(const X509_NAME* name) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253);
  const std::string text = text_of(bio.get());
  return text.empty() ? "nobody" : text;
}

std::string time_text(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  return text_of(bio.get());
}

std::string address_text(const ASN1_OCTET_STRING* address) {
  const unsigned char* bytes = ASN1_STRING_get0_data(address);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = ASN1_STRING_length(address) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(address) != 16) return "?";
  return ::inet_ntop(family, bytes, text.data(), text.size()) == nullptr ? "?" : text.data();
}

// "localhost, 127.0.0.1"
std::string alternative_names(X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> texts;
  constexpr int kNamesShownMax = 10;
  const int count = names ? sk_GENERAL_NAME_num(names.get()) : 0;
  for (int i = 0; i < count && i < kNamesShownMax; ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      texts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      texts.push_back(address_text(name->d.iPAddress));
    }
  }
  const std::string text = joined(texts);
  return text.empty() ? "no name at all" : text;
}

// Refuses an encrypted key instead of asking for its password on a terminal.
int no_password(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

struct NamedPem {
  std::string name;  // the file, or the field
  std::string text;
};

Result<NamedPem> read_pem(const PemSource& source, const std::string& field) {
  if (source.file.empty()) return NamedPem{field, source.text};
  Result<std::string> text = read_small_file(source.file);
  if (!text.ok()) return text.error().with_context(field);
  return NamedPem{field + " " + source.file, *std::move(text)};
}

Result<std::vector<Certificate>> certificates_of(const NamedPem& pem) {
  const Bio bio = memory_of(pem.text);
  std::vector<Certificate> certificates;
  ERR_clear_error();
  while (true) {
    Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, &no_password, nullptr));
    if (!certificate) break;
    certificates.push_back(std::move(certificate));
  }
  const unsigned long code = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  const std::string reason = openssl_reason();
  if (!at_end) return invalid(pem.name, "holds a certificate that cannot be read: " + reason);
  if (certificates.empty()) {
    return invalid(pem.name, "holds no certificate; expected PEM (-----BEGIN CERTIFICATE-----)");
  }
  return certificates;
}

Result<Key> key_of(const NamedPem& pem) {
  const Bio bio = memory_of(pem.text);
  ERR_clear_error();
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &no_password, nullptr));
  if (key) return key;
  const std::string reason = openssl_reason();
  const bool encrypted = pem.text.find("ENCRYPTED") != std::string::npos;
  return invalid(pem.name, encrypted ? "is encrypted; expected a key without a password"
                                     : "holds no private key; expected PEM (-----BEGIN … PRIVATE KEY-----): " + reason);
}

// The certificates and key after parsing. Immutable.
struct Material {
  Store roots;  // absent: those of the system
  std::vector<Certificate> client_chain;
  Key client_key;
};

Result<std::shared_ptr<const Material>> load(const TlsOptions& options) {
  auto material = std::make_shared<Material>();
  if (!options.authority.empty()) {
    TRY_ASSIGN(const NamedPem pem, read_pem(options.authority, "certificate-authority"));
    TRY_ASSIGN(const std::vector<Certificate> roots, certificates_of(pem));
    material->roots.reset(X509_STORE_new());
    for (const Certificate& root : roots) X509_STORE_add_cert(material->roots.get(), root.get());
    // Every certificate in the file is trusted as a root, also an intermediate one, as with Go's
    // x509.VerifyOptions.Roots.
    X509_STORE_set_flags(material->roots.get(), X509_V_FLAG_PARTIAL_CHAIN);
    ERR_clear_error();
  }
  if (!options.client_certificate.empty()) {
    TRY_ASSIGN(const NamedPem certificate, read_pem(options.client_certificate, "client-certificate"));
    TRY_ASSIGN(const NamedPem key, read_pem(options.client_key, "client-key"));
    TRY_ASSIGN(material->client_chain, certificates_of(certificate));
    TRY_ASSIGN(material->client_key, key_of(key));
    if (X509_check_private_key(material->client_chain.front().get(), material->client_key.get()) != 1) {
      ERR_clear_error();
      return invalid(certificate.name + " and " + key.name + " do not belong together");
    }
  }
  return std::shared_ptr<const Material>(std::move(material));
}

std::string signature_of(const TlsOptions& options) {
  std::string text;
  for (const PemSource* source : {&options.authority, &options.client_certificate, &options.client_key}) {
    if (!source->file.empty()) text.append(file_signature(source->file)).append("|");
  }
  return text;
}

// What the verification of a connection needs; connections keep it alive.
struct Verifier {
  std::string host;       // what the certificate must be for
  std::string authority;  // where the roots are from, for messages
  bool host_is_address = false;
  bool skip_verify = false;
  mutable Mutex mutex;
  mutable std::string refusal GUARDED_BY(mutex);

  void refuse(const std::string& why) const {
    const MutexLock lock(mutex);
    refusal = why;
  }
};

std::string refusal_text(const Verifier& verifier, X509_STORE_CTX* chain) {
  const int error = X509_STORE_CTX_get_error(chain);
  X509* certificate = X509_STORE_CTX_get_current_cert(chain);
  if (certificate == nullptr) return std::string("the server's certificate: ") + X509_verify_cert_error_string(error);
  const bool is_leaf = X509_STORE_CTX_get_error_depth(chain) == 0;
  const std::string subject = name_text(X509_get_subject_name(certificate));
  std::string whose = is_leaf ? "the server's certificate (" : "a certificate above the server's (";
  whose.append(subject).append(")");
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + " has expired, on " + time_text(X509_get0_notAfter(certificate)) +
             "; is this machine's clock right?";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + " is not valid before " + time_text(X509_get0_notBefore(certificate)) +
             "; is this machine's clock right?";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return whose + " is signed by an unknown authority (" + name_text(X509_get_issuer_name(certificate)) +
             "); trusted is " + verifier.authority;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return whose + " is for " + alternative_names(certificate) + ", not for " + verifier.host +
             "; use one of these names in the server's address, or as tls-server-name";
    default:
      return whose + ": " + X509_verify_cert_error_string(error);
  }
}

int verifier_index();

// In place of X509_verify_cert. The verify callbacks that libraries above set are not called.
int verify_chain(X509_STORE_CTX* chain, void* argument) {
  const auto& verifier = *static_cast<const Verifier*>(argument);
  if (verifier.skip_verify) {
    X509_STORE_CTX_set_error(chain, X509_V_OK);
    return 1;
  }
  X509_STORE_CTX_set_verify_cb(chain, [](int preverified, X509_STORE_CTX*) { return preverified; });
  X509_VERIFY_PARAM* wanted = X509_STORE_CTX_get0_param(chain);
  if (verifier.host_is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(wanted, verifier.host.c_str());
  } else {
    X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    X509_VERIFY_PARAM_set1_host(wanted, verifier.host.data(), verifier.host.size());
  }
  if (X509_verify_cert(chain) == 1) return 1;
  verifier.refuse(refusal_text(verifier, chain));
  return 0;
}

// Names the server (SNI) before the handshake, and listens for the server's refusal.
void watch_handshake(const SSL* connection, int where, int value) {
  const auto* const known =
      static_cast<const Verifier*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), verifier_index()));
  if (known == nullptr) return;
  const Verifier& verifier = *known;
  if ((where & SSL_CB_HANDSHAKE_START) != 0 && !verifier.host_is_address) {
    // OpenSSL hands the connection out as const to a callback that is allowed to set it up.
    SSL_set_tlsext_host_name(const_cast<SSL*>(connection), verifier.host.c_str());
  }
  if (where != SSL_CB_READ_ALERT || (value & 0xFF) == SSL_AD_CLOSE_NOTIFY) return;
  const std::string alert = SSL_alert_desc_string_long(value);
  switch (value & 0xFF) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
      return verifier.refuse("the server refuses our client certificate: " + alert);
    case SSL_AD_CERTIFICATE_REQUIRED:
      return verifier.refuse("the server wants a client certificate, and we have none");
    default:
      return verifier.refuse("the server ended the handshake: " + alert);
  }
}

// The place in an SSL_CTX where its Verifier stands.
int verifier_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Never frees a Verifier (there is one for each TlsSetup): connections may outlive their TlsSetup, and some even
// OpenSSL's clean-up at the end of the process.
const Verifier& keep(std::unique_ptr<const Verifier> verifier) {
  struct Kept {
    Mutex mutex;
    std::vector<std::unique_ptr<const Verifier>> verifiers GUARDED_BY(mutex);
  };
  static auto& kept = *new Kept;
  const MutexLock lock(kept.mutex);
  return *kept.verifiers.emplace_back(std::move(verifier));
}

}  // namespace

struct TlsSetup::Impl {
  TlsOptions options;
  const Verifier* verifier = nullptr;
  Mutex mutex;
  std::shared_ptr<const Material> material GUARDED_BY(mutex);
  std::string signature GUARDED_BY(mutex);  // of the files, when they were read
};

TlsSetup::TlsSetup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsSetup::~TlsSetup() = default;

Result<std::unique_ptr<TlsSetup>> TlsSetup::make(const TlsOptions& options, const ServerUrl& url) {
  auto verifier = std::make_unique<Verifier>();
  verifier->host = options.server_name.empty() ? url.host : options.server_name;
  verifier->host_is_address = is_address(verifier->host);
  verifier->skip_verify = options.skip_verify;
  verifier->authority = options.authority.empty()        ? "what this system trusts"
                        : options.authority.file.empty() ? "certificate-authority-data"
                                                         : options.authority.file;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  {
    const MutexLock lock(impl->mutex);
    impl->signature = signature_of(options);
    TRY_ASSIGN(impl->material, load(options));
  }
  impl->verifier = &keep(std::move(verifier));
  return std::unique_ptr<TlsSetup>(new TlsSetup(std::move(impl)));
}

Status TlsSetup::configure(SSL_CTX* context) const {
  std::shared_ptr<const Material> material;
  {
    const MutexLock lock(impl_->mutex);
    material = impl_->material;
  }
  ERR_clear_error();
  bool ok = SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1;
  if (material->roots) {
    SSL_CTX_set1_cert_store(context, material->roots.get());
  } else {
    ok = ok && SSL_CTX_set_default_verify_paths(context) == 1;
  }
  if (!material->client_chain.empty()) {
    ok = ok && SSL_CTX_use_certificate(context, material->client_chain.front().get()) == 1;
    for (size_t i = 1; i < material->client_chain.size(); ++i) {
      ok = ok && SSL_CTX_add1_chain_cert(context, material->client_chain[i].get()) == 1;
    }
    ok = ok && SSL_CTX_use_PrivateKey(context, material->client_key.get()) == 1;
  }
  auto* const verifier = const_cast<Verifier*>(impl_->verifier);  // OpenSSL's callbacks take what is not const
  ok = ok && SSL_CTX_set_ex_data(context, verifier_index(), verifier) == 1;
  if (!ok) return invalid("TLS cannot be set up", openssl_reason());
  SSL_CTX_set_cert_verify_callback(context, &verify_chain, verifier);
  SSL_CTX_set_info_callback(context, &watch_handshake);
  return {};
}

bool TlsSetup::refresh() {
  const std::string signature = signature_of(impl_->options);
  const MutexLock lock(impl_->mutex);
  if (signature == impl_->signature) return false;
  Result<std::shared_ptr<const Material>> fresh = load(impl_->options);
  // Unreadable, or changed again while it was read: the next call tries again.
  if (!fresh.ok() || signature_of(impl_->options) != signature) return false;
  impl_->material = *fresh;
  impl_->signature = signature;
  return true;
}

std::string TlsSetup::last_refusal() const {
  const MutexLock lock(impl_->verifier->mutex);
  return impl_->verifier->refusal;
}

}  // namespace lockstep::kube
