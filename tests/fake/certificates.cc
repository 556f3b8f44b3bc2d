#include "tests/fake/certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "runner/base/check.h"

namespace lockstep::fake {
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
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;

std::string text_of(const Bio& bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(length)};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  LOCKSTEP_CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1, "a certificate becomes PEM");
  return text_of(bio);
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  LOCKSTEP_CHECK(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
                 "a key becomes PEM");
  return text_of(bio);
}

Key new_key() {
  Key key(EVP_EC_gen("P-256"));
  LOCKSTEP_CHECK(key != nullptr, "OpenSSL makes a key");
  return key;
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  LOCKSTEP_CHECK(extension != nullptr, value.c_str());
  X509_add_ext(certificate, extension.get(), -1);
}

// Everything but the extensions and the signature.
Certificate blank_certificate(const CertificateSpec& spec, EVP_PKEY* key, const X509_NAME* issuer) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  using std::chrono::seconds;
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), seconds(spec.valid_from).count());
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds(spec.valid_until).count());
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(spec.common_name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), issuer != nullptr ? issuer : name);
  return certificate;
}

void sign(X509* certificate, EVP_PKEY* key) {
  LOCKSTEP_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0, "OpenSSL signs");
}

}  // namespace

struct CertificateAuthority::Impl {
  Key key;
  Certificate certificate;
  std::string pem;
  bool is_root = true;
};

CertificateAuthority::CertificateAuthority(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CertificateAuthority::CertificateAuthority(CertificateAuthority&&) noexcept = default;
CertificateAuthority::~CertificateAuthority() = default;

CertificateAuthority::CertificateAuthority(const std::string& common_name) : impl_(std::make_unique<Impl>()) {
  impl_->key = new_key();
  impl_->certificate = blank_certificate({.common_name = common_name}, impl_->key.get(), nullptr);
  X509* certificate = impl_->certificate.get();
  add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate, certificate, NID_subject_key_identifier, "hash");
  sign(certificate, impl_->key.get());
  impl_->pem = pem_of(certificate);
}

CertificateAuthority CertificateAuthority::issue_authority(const std::string& common_name) const {
  auto below = std::make_unique<Impl>();
  below->is_root = false;
  below->key = new_key();
  below->certificate = blank_certificate({.common_name = common_name}, below->key.get(),
                                         X509_get_subject_name(impl_->certificate.get()));
  X509* certificate = below->certificate.get();
  add_extension(certificate, impl_->certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate, impl_->certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate, impl_->certificate.get(), NID_subject_key_identifier, "hash");
  sign(certificate, impl_->key.get());
  below->pem = pem_of(certificate);
  return CertificateAuthority(std::move(below));
}

const std::string& CertificateAuthority::certificate_pem() const { return impl_->pem; }

CertificateAndKey CertificateAuthority::issue(const CertificateSpec& spec) const {
  const Key key = new_key();
  const Certificate certificate = blank_certificate(spec, key.get(), X509_get_subject_name(impl_->certificate.get()));
  add_extension(certificate.get(), impl_->certificate.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  std::string names;
  for (const std::string& name : spec.dns_names) names.append(names.empty() ? "" : ",").append("DNS:").append(name);
  for (const std::string& name : spec.addresses) names.append(names.empty() ? "" : ",").append("IP:").append(name);
  if (!names.empty()) add_extension(certificate.get(), impl_->certificate.get(), NID_subject_alt_name, names);
  sign(certificate.get(), impl_->key.get());
  CertificateAndKey issued{pem_of(certificate.get()), pem_of(key.get())};
  if (!impl_->is_root) issued.certificate_pem += impl_->pem;
  return issued;
}

}  // namespace lockstep::fake
