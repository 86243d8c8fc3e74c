// The handshake, once, for every engine: which word says what, and how a waiter reads it. The whole protocol, with who
// may still read what and why one handshake is enough, is docs/protocol.md.
//
// A flag is 64 bits, epoch << 32 | signature. Rank s owns, in the memory of every peer d, two flags: [parity of epoch].
//   signal(e): s, after its transfers of the call and in stream order, stores its flag of parity e & 1 at every d.
//   wait(e):   d reads its flags of parity e & 1 until each holds epoch e.
// Two parities suffice: s can signal e + 1 only after it has seen d's signal of e, and d signals e only after it has
// read all flags of e - 1; so nothing unread is overwritten, and a flag is never more than one epoch ahead.
// The signature says which call it is; equal epochs with different signatures are two different calls.
#pragma once

#include <cstdint>

namespace fast_ulysses::protocol {

// Signatures of calls start above these.
inline constexpr std::uint32_t kSignatureError = 1;    // "I am in error: look at the error word"
inline constexpr std::uint32_t kSignatureDestroy = 2;  // destroy() is a call like another: a skipped call is seen there
inline constexpr std::uint32_t kFirstSignature = 16;

enum class Arrival { kAbsent, kHere, kMismatch, kPeerInError };

constexpr std::uint64_t make_flag(std::uint32_t epoch, std::uint32_t signature) {
  return std::uint64_t{epoch} << 32 | signature;
}
constexpr std::uint32_t flag_signature(std::uint64_t flag) { return static_cast<std::uint32_t>(flag); }

constexpr Arrival classify(std::uint64_t flag, std::uint32_t epoch, std::uint32_t signature) {
  if (flag == 0) return Arrival::kAbsent;  // cleared memory, whatever the epoch: no signature is 0
  if (flag == make_flag(epoch, signature)) return Arrival::kHere;
  if (flag_signature(flag) == kSignatureError) return Arrival::kPeerInError;
  // Epochs wrap: "before" is a negative distance. A flag of an earlier epoch is old.
  const auto ahead = static_cast<std::int32_t>(static_cast<std::uint32_t>(flag >> 32) - epoch);
  return ahead < 0 ? Arrival::kAbsent : Arrival::kMismatch;
}

// `Memory` is how an engine touches words:
//   void store(int peer, unsigned parity, std::uint64_t flag)  release (or stronger), visible to `peer`; wakes it
//   std::uint64_t load(int peer, unsigned parity)              acquire (or stronger), from the own memory
template <class Memory>
void signal(Memory& memory, int rank, int size, std::uint32_t epoch, std::uint32_t signature) {
  for (int step = 1; step < size; ++step) {
    memory.store((rank + step) % size, epoch & 1, make_flag(epoch, signature));
  }
}

template <class Memory>
Arrival look(Memory& memory, int peer, std::uint32_t epoch, std::uint32_t signature) {
  return classify(memory.load(peer, epoch & 1), epoch, signature);
}

// FNV-1a over what the ranks must agree on, folded to 32 bits and kept off the reserved values. Two different calls get
// equal signatures with a chance of 2^-32.
inline std::uint32_t signature_of(const char* text, std::size_t length) {
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t i = 0; i < length; ++i) {
    hash ^= static_cast<unsigned char>(text[i]);
    hash *= 1099511628211u;
  }
  const auto folded = static_cast<std::uint32_t>(hash ^ hash >> 32);
  return folded < kFirstSignature ? folded + kFirstSignature : folded;
}

}  // namespace fast_ulysses::protocol
