/* ctl_tokens.h - the tokens of a prompt: from the command line, or made by a worker, since only workers have a
 * tokenizer.
 *
 * Thread: any; a worker is asked with blocking calls. */
#pragma once

#include "tools/incipitctl/ctl.h"

/* Of --text, --chat, --request or --tokens, whichever is given. CTL_OK: free(*ret_tok). Else it was said why. */
int ctl_tokens(struct ctl *c, int32_t **ret_tok, size_t *ret_n);
