/* unicode.h - UTF-8 and the character classes of one fixed Unicode version.
 *
 * The version enters the tokenizer digest: a letter added by a newer one would split text differently.
 * Thread: any; pure. */
#pragma once

#include "common/compiler.h"

/* Class bits of one code point. A code point has at most one of letter, number, space. */
#define UNICODE_LETTER 1u /* \p{L} */
#define UNICODE_NUMBER 2u /* \p{N} */
#define UNICODE_SPACE 4u  /* \s */

/* Finer classes, of which a code point has at most one: the letters that have case, and two kinds of
 * what is neither letter, number nor space. */
#define UNICODE_UPPER 8u  /* \p{Lu}, \p{Lt} */
#define UNICODE_LOWER 16u /* \p{Ll} */
#define UNICODE_MARK 32u  /* \p{M} */
#define UNICODE_PUNCT 64u /* \p{P} */

const char *unicode_version(void);    /* "14.0.0" */
unsigned unicode_class(uint32_t cp);  /* 0 for everything else, also beyond U+10FFFF */
unsigned unicode_detail(uint32_t cp); /* likewise */

/* What a byte that is not UTF-8 decodes to: beyond every code point, of no class. */
#define UNICODE_BAD_BYTE 0x110000u

/* Decodes one code point of p[0..n), n > 0. Returns its length in bytes. A byte that starts no valid
 * sequence (stray continuation, overlong, surrogate, beyond U+10FFFF, cut off) has length 1 and gives
 * UNICODE_BAD_BYTE, so any byte string can be walked and none is lost. */
unsigned utf8_decode(const char *p, size_t n, uint32_t *ret_cp);
/* Writes cp (at most U+10FFFF) to p[4]; returns its length. */
unsigned utf8_encode(uint32_t cp, char *p);
/* True when p[0..n) is valid UTF-8 as a whole. */
bool utf8_is_valid(const char *p, size_t n);
