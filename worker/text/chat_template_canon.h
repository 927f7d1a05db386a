/* chat_template_canon.h - a Jinja template's text in a canonical form, to compare two templates by what
 * they print and not by how they are typed. Internal to worker/text.
 *
 * One line an item: `out "text"`, `out operand`, or a statement's tokens. Gone are: comments, white space
 * inside tags, white space that Jinja itself drops (with trim_blocks and lstrip_blocks, as model files
 * assume), the kind of quotes, a.b against a['b'], and how neighbouring texts are cut
 * ('a' + 'b', {{ 'a' }}{{ 'b' }}, or text outside tags). Everything else stays, so whatever we do not
 * understand makes two templates differ.
 *
 * Thread: any; pure. */
#pragma once

#include "worker/text/tokenizer.h"

/* Appends the canonical form. ERR_INVALID: not even lexically a template. */
int chat_template_canon(const char *text, size_t len, struct tok_text *ret, struct errbuf *eb);
