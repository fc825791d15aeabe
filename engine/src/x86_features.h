// What an x86-64 processor and its operating system support.
#pragma once

namespace burn {

struct X86Features {
    bool avx2 = false;    // with FMA
    bool avx512 = false;  // F, BW, DQ and VL, and FMA
    bool vpopcntdq = false;
};

X86Features x86_features();

}  // namespace burn
