# Weight types: what a block means, how a panel keeps it, what each instruction set computes.
GOLDEN = "unit/worker/kernels/quant_golden"
SCALAR = "unit/worker/kernels/matmul_scalar"
AVX2 = "unit/worker/kernels/matmul_avx2 unit/worker/kernels/kern_selftest_avx2"
AVX512 = "unit/worker/kernels/matmul_avx512 unit/worker/kernels/kern_selftest_avx512"
ENCODE = "unit/tools/quant_encode"

mutant("q4_k-high-scale-bits-of-the-min", "worker/kernels/quant.c", "(unsigned)(s[i - 4] >> 6) << 4", "(unsigned)(s[i] >> 6) << 4",
       GOLDEN)
mutant("q6_k-halves-share-a-scale", "worker/kernels/quant.c", "(int8_t)p[192 + 2 * i + h]", "(int8_t)p[192 + 2 * i]", GOLDEN)
mutant("q3_k-third-bit-of-the-next-unit", "worker/kernels/quant.c", "add_bits(ret->u, p, 32, i, 1, 2);",
       "add_bits(ret->u, p, 32, i ^ 1, 1, 2);", GOLDEN)
mutant("mxfp4-any-exponent", "worker/kernels/quant.c", "return p[0] > QUANT_MXFP4_MAX_E;", "return p[0] == 255;",
       SCALAR + " unit/worker/model/weights")
mutant("min-of-a-k-quant-not-looked-at", "worker/kernels/quant.c",
       "return is_bad_half(p) || (t->has_min && is_bad_half(p + 2));", "return is_bad_half(p);", "unit/worker/model/weights")
mutant("q5_k-bit-lost-in-the-panel", "worker/kernels/packed_mat.c", " | (w[7] & IN_EACH(16)) << 1;", ";", SCALAR)
mutant("min-kept-with-its-sign", "worker/kernels/packed_mat.c", "load_u16(src + t->d_at + 2) ^ 0x8000u", "load_u16(src + t->d_at + 2)",
       SCALAR)
mutant("classes-by-offset-alone", "worker/kernels/kern_impl.h", "return a.offset == b.offset && a.halves == b.halves;",
       "return a.offset == b.offset;", AVX512 + " " + AVX2)
mutant("second-half-corrected-by-the-first", "worker/kernels/kern_impl.h", "KERN_MAGIC_BITS - c.offset * sum[1]}",
       "KERN_MAGIC_BITS - c.offset * sum[0]}", "unit/worker/kernels/quant_scalar")
mutant("avx2-q6_k-offset-forgotten", "worker/kernels/matmul_avx2.c", "(int16_t)-t->offset)", "(int16_t)(t->offset == 32 ? -31 : -t->offset))",
       AVX2)
mutant("avx2-q2_k-second-half-scaled-by-the-first", "worker/kernels/matmul_avx2.c", "g < 4 ? s.sc0 : s.sc1);", "g < 9 ? s.sc0 : s.sc1);",
       AVX2)
mutant("avx512-q6_k-sum-of-one-half", "worker/kernels/matmul_avx512_tile.c", "_mm512_fmadd_ps(f1, sc1, f0), dw)", "_mm512_fmadd_ps(f1, sc0, f0), dw)",
       AVX512)
mutant("avx512-q2_k-min-without-its-scale", "worker/kernels/matmul_avx512_tile.c", "minus = _mm512_mul_ps(dmin, minus_magic);",
       "minus = minus_magic;", AVX512)
mutant("avx512-next-record-by-quants-alone", "worker/kernels/packed_mat.c", "m->rec_bytes = round_up(m->sub_off + m->rec_blocks * packed_sub_bytes(t->form));",
       "m->rec_bytes = round_up(m->sub_off);", SCALAR + " " + AVX2)
mutant("q3_k-encoder-misplaces-high-bits", "tools/dev/quant_encode.c", "sc >> 4 << (2 * (j / 4))", "sc >> 4 << (2 * (j % 4))", ENCODE)
