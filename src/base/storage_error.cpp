#include "sluice/base/storage_error.h"

#include <cerrno>

namespace sluice {

bool is_transient(int error) {
  switch (error) {
    case EIO:
    case EAGAIN:
    case ENOMEM:
    case ENFILE:
    case ESTALE:
    case ETIMEDOUT:
    case EREMOTEIO:
    // A file server that is restarted or out of reach.
    case ENOTCONN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH: return true;
    default: return false;
  }
}

}  // namespace sluice
