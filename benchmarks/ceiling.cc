// Measures how many binary multiply-adds per second this processor can do at most: xor, population
// count and addition on registers and the first cache, without the epilogue, the border or the
// memory of a network. benchmarks/engine.py compiles it with -march=native and calls it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#if defined(__AVX512VPOPCNTDQ__)
#include <immintrin.h>
#define METHOD "AVX-512 VPOPCNTDQ"
struct Vector {
    __m512i v;
    static Vector zero() { return {_mm512_setzero_si512()}; }
    static Vector load(const uint32_t *from) { return {_mm512_loadu_si512(from)}; }
    Vector plus_difference(Vector w, uint32_t a) const {
        const __m512i x = _mm512_xor_si512(w.v, _mm512_set1_epi32(static_cast<int>(a)));
        return {_mm512_add_epi32(v, _mm512_popcnt_epi32(x))};
    }
    void store(uint32_t *to) const { _mm512_storeu_si512(to, v); }
};
constexpr int kWords = 16;
#elif defined(__aarch64__)
#include <arm_neon.h>
#define METHOD "NEON cnt"
struct Vector {
    uint8x16_t v;
    static Vector zero() { return {vdupq_n_u8(0)}; }
    static Vector load(const uint32_t *from) {
        return {vld1q_u8(reinterpret_cast<const uint8_t *>(from))};
    }
    Vector plus_difference(Vector w, uint32_t a) const {
        return {vaddq_u8(v, vcntq_u8(veorq_u8(w.v, vdupq_n_u8(static_cast<uint8_t>(a)))))};
    }
    void store(uint32_t *to) const { vst1q_u8(reinterpret_cast<uint8_t *>(to), v); }
};
constexpr int kWords = 4;
#else
#error "no ceiling is known for this processor"
#endif

namespace {

constexpr int kDepth = 72;  // vectors of weights: a 3 × 3 kernel over 256 channels
alignas(64) uint32_t weights[kDepth * kWords];
alignas(64) uint32_t activations[64 * 32];
alignas(64) volatile uint32_t sink;

template <int pixels>
__attribute__((noinline)) void tile() {
    Vector sums[pixels];
    for (Vector &sum : sums) sum = Vector::zero();
    for (int k = 0; k < kDepth; ++k) {
        const Vector w = Vector::load(weights + k * kWords);
#pragma GCC unroll 32
        for (int p = 0; p < pixels; ++p) {
            sums[p] = sums[p].plus_difference(w, activations[p * 32 + k % 32]);
        }
    }
    uint32_t out[kWords];
    for (const Vector &sum : sums) {
        sum.store(out);
        sink = sink + out[0];
    }
}

template <int pixels>
double rate(double seconds) {
    using clock = std::chrono::steady_clock;
    double best = 0;
    const auto end = clock::now() + std::chrono::duration<double>(seconds);
    do {
        const auto begin = clock::now();
        for (int i = 0; i < 500; ++i) tile<pixels>();
        const double took = std::chrono::duration<double>(clock::now() - begin).count();
        const double rate = 500.0 * kDepth * pixels * kWords * 32 / took;
        if (rate > best) best = rate;
    } while (clock::now() < end);
    return best;
}

}  // namespace

extern "C" const char *ceiling_method(void) { return METHOD; }

// Returns the best rate of several tile widths, in multiply-adds per second; each is measured for a
// share of `seconds`.
extern "C" double ceiling(double seconds) {
    for (uint32_t &w : weights) w = static_cast<uint32_t>(std::rand()) * 2654435761u;
    for (uint32_t &a : activations) a = static_cast<uint32_t>(std::rand()) * 2654435761u;
    double best = 0;
    for (const double found : {rate<7>(seconds / 4), rate<10>(seconds / 4), rate<14>(seconds / 4),
                               rate<20>(seconds / 4)}) {
        if (found > best) best = found;
    }
    return best;
}
