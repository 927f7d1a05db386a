/* log_format.h - key=value pairs of one line, so quoted that no value can forge a field or a line.
 *
 * logfmt, as its parsers read it: a value with a blank, '=', '"' or a byte that is no plain text, and
 * an empty one, stands in double quotes with JSON's escapes. JSON: one object; values that one numeric
 * conversion gave are numbers. Control characters (C1 and those that turn the writing direction, too)
 * are escaped, bytes that are not UTF-8 become U+FFFD. A line that is full is cut inside a value,
 * whose quote is closed, or before a pair.
 * Thread: one owner. */
#pragma once

#include <stdarg.h>

#include "common/compiler.h"

struct log_line {
    char *p; /* [cap], not NUL-terminated */
    size_t n, cap;
    bool json, is_full;
};

/* cap at least 64. */
void log_line_begin(struct log_line *l, char *p, size_t cap, bool json);
void log_line_text(struct log_line *l, const char *key, const char *value);
void log_line_u64(struct log_line *l, const char *key, uint64_t value);
/* "key=FORMAT key=FORMAT ...": the blanks of fmt alone part the pairs, never those of an argument.
 * Conversions: d i u x X o c s p e f g and %, with flags, width, precision and length. */
void log_line_vpairs(struct log_line *l, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);
void log_line_end(struct log_line *l); /* the closing brace and the newline */
