// SPDX-License-Identifier: Apache-2.0
#include "common/job/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <stdexcept>

namespace workshop {

Proof hmac_sha256(std::string_view key, std::string_view message) {
  Proof proof;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(message.data()), message.size(), proof.data(), nullptr)) {
    throw std::runtime_error("OpenSSL cannot compute HMAC-SHA256 here");
  }
  return proof;
}

bool equal_in_constant_time(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace workshop
