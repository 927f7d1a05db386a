/* secret.h - memory that no core dump shows, and the one reader of token, key, password and
 * configuration files.
 *
 *     struct secret_file f;
 *     struct str line, word;
 *     int rv = secret_file_open(&f, "token file", path, &warn, eb);
 *     while (rv == 0 && secret_file_next(&f, &line))
 *         if (!secret_word(&line, &word) || ...)
 *             rv = secret_file_error(&f, eb, "no token behind the role");
 *     secret_file_close(&f);
 *
 * A file is UTF-8 text, with or without a byte order mark, at most 16 MiB, lines of any length ended
 * by LF, CR LF or the end of the file. Words lie between blanks (space, tab, CR, VT, FF). Empty lines
 * and lines whose first word begins with '#' are passed over, whole. NUL bytes and other control
 * characters, UTF-16 and invalid UTF-8 are errors.
 * Thread: one owner. */
#pragma once

#include "common/err.h"
#include "common/str.h"

/* Memory of its own mapping, zeroed, left out of core dumps; NULL when out of memory. Growing moves
 * the pages, so no copy of a secret is left behind. p = NULL, was = 0 to begin. */
void *secret_resize(void *p, size_t was, size_t bytes);
/* Cleared, then returned to the system; NULL is a no-op. bytes: as last given. */
void secret_free(void *p, size_t bytes);
/* n bytes and a NUL in such memory: free with secret_free(.., n + 1). NULL when out of memory. */
char *secret_dup(const void *p, size_t n);

struct secret_file {
    const char *what, *path; /* for messages; borrowed */
    char *text;              /* secret_resize()'s, cap bytes */
    size_t n, cap, at;       /* bytes read; where the next line begins */
    unsigned line;           /* number of the line that was given last, from 1 */
};

/* Reads the whole file. *warn (may be NULL) gets a text when group or others may read it, else "".
 * On error eb names file and line and nothing is left to close. */
int secret_file_open(struct secret_file *f, const char *what, const char *path, struct errbuf *warn,
                     struct errbuf *eb);
/* The next line that says something, without blanks around it; valid until the close. */
bool secret_file_next(struct secret_file *f, struct str *ret_line);
/* Takes the first word off the front of *rest; false when there is none. */
bool secret_word(struct str *rest, struct str *ret);
/* "what 'path', line N: text" into eb; returns ERR_INVALID. */
int secret_file_error(const struct secret_file *f, struct errbuf *eb, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void secret_file_close(struct secret_file *f); /* clears the text; may be called again */
