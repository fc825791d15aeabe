// WebAssembly with 128-bit vectors: tables of counts by byte swizzles, 16 output channels × 4 input
// channels × 2 pixels per instruction. A population count of bytes, which WebAssembly has too, is
// about ten instructions on x86.
#include <wasm_simd128.h>

#include "pair_kernel.h"

namespace burn {
namespace {

struct Wasm {
    using Vector = v128_t;
    static constexpr int group = 16;
    static constexpr int groups = 1;
    static constexpr int tile = 4;
    static constexpr int batch = 16;
    static constexpr int stem_tile = 4;
    static constexpr int groups_of_two_pairs = 2;

    static void pair_word(uint32_t first, uint32_t second, uint8_t *to) {
        const v128_t low = wasm_i8x16_const_splat(0x0F);
        const v128_t a = wasm_i32x4_make(static_cast<int>(first), 0, 0, 0);
        const v128_t b = wasm_i32x4_make(static_cast<int>(second), 0, 0, 0);
        const v128_t firsts =
            interleave(wasm_i16x8_shl(wasm_v128_and(a, low), 4), wasm_v128_andnot(a, low));
        const v128_t seconds =
            interleave(wasm_v128_and(b, low), wasm_u16x8_shr(wasm_v128_andnot(b, low), 4));
        wasm_v128_store(to, interleave(firsts, seconds));
    }

    static Vector zero() { return wasm_i64x2_const_splat(0); }
    static Vector load(const void *from) { return wasm_v128_load(from); }
    static void store(void *to, Vector v) { wasm_v128_store(to, v); }
    static BURN_INLINE void keep(Vector &) {}
    static Vector table(const uint8_t *from) { return wasm_v128_load(from); }
    static Vector lookup(Vector table, Vector index) { return wasm_i8x16_swizzle(table, index); }
    static Vector add_bytes(Vector a, Vector b) { return wasm_i8x16_add(a, b); }
    static void add_in_place(Vector &sum, Vector v) { sum = wasm_i8x16_add(sum, v); }
    template <int n>
    static Vector right(Vector v) {
        return wasm_u16x8_shr(v, n);
    }
    template <int n>
    static Vector left(Vector v) {
        return wasm_i16x8_shl(v, n);
    }
    static Vector low_bytes(Vector v) { return wasm_v128_and(v, wasm_i16x8_const_splat(255)); }
    static Vector add_words(Vector a, Vector b) { return wasm_i16x8_add(a, b); }
    static Vector subtract_words(Vector a, Vector b) { return wasm_i16x8_sub(a, b); }

    struct Floats {
        v128_t v[4];
    };
    template <class Make>
    static BURN_INLINE Floats each(Make make) {
        return {{make(0), make(1), make(2), make(3)}};
    }
    static Floats load(const float *from) {
        return each([&](int i) { return wasm_v128_load(from + 4 * i); });
    }
    static Floats load(const int16_t *from) {
        return each(
            [&](int i) { return wasm_f32x4_convert_i32x4(wasm_i32x4_load16x4(from + 4 * i)); });
    }
    static void store(float *to, const Floats &x) {
        for (int i = 0; i < 4; ++i) wasm_v128_store(to + 4 * i, x.v[i]);
    }
    static Floats all(float value) {
        return each([&](int) { return wasm_f32x4_splat(value); });
    }
    static Floats add(const Floats &a, const Floats &b) {
        return each([&](int i) { return wasm_f32x4_add(a.v[i], b.v[i]); });
    }
    static Floats multiply_add(const Floats &a, const Floats &b, const Floats &c) {
        return each([&](int i) { return wasm_f32x4_add(wasm_f32x4_mul(a.v[i], b.v[i]), c.v[i]); });
    }
    static Floats leaky(const Floats &y, const Floats &slope) {
        return each([&](int i) {
            const v128_t positive = wasm_f32x4_ge(y.v[i], wasm_f32x4_const_splat(0));
            return wasm_v128_bitselect(y.v[i], wasm_f32x4_mul(y.v[i], slope.v[i]), positive);
        });
    }
    static uint16_t at_least(const Floats &x, const Floats &threshold) {
        uint32_t mask = 0;
        for (int i = 0; i < 4; ++i) {
            mask |= wasm_i32x4_bitmask(wasm_f32x4_ge(x.v[i], threshold.v[i])) << 4 * i;
        }
        return static_cast<uint16_t>(mask);
    }
    static Floats widen(const uint16_t *counts) {
        return each(
            [&](int i) { return wasm_f32x4_convert_i32x4(wasm_u32x4_load16x4(counts + 4 * i)); });
    }

  private:
    static v128_t interleave(v128_t a, v128_t b) {
        return wasm_i8x16_shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    }
};

using Kernel = PairKernel<Wasm>;

bool supported() { return true; }  // a module with other instructions is not compiled at all

}  // namespace

extern const Tier tier_wasm;
constexpr Tier tier_wasm = tier_of<Kernel>(
    "wasm-simd128", supported,
    {Kernel::weight_bytes, Kernel::lay_out, pair_operand_pixel, pair_operand_row, Kernel::expand});

}  // namespace burn
