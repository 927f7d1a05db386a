# Options, logs, secrets, the machine, the skeleton of a daemon.
mutant("reload-swaps-all-rows", "common/config.c", "if (o->live) { /* swapped",
       "if (1) { /* swapped", "unit/common/config")
mutant("failed-set-empties-list", "common/config.c", "        if (rv < 0)\n            *list = was;\n",
       "", "unit/common/config")
mutant("upper-bound-not-checked", "common/config.c", "v > o->max_u ||",
       "", "unit/common/config")
mutant("set-of-rows-not-live", "common/config.c", "    if (!o->live)\n",
       "    if (0)\n", "unit/common/config")
mutant("file-stronger-than-environment", "common/config.c", "        *wrote = (uint8_t)l->source;\n",
       "", "unit/common/config")
mutant('equals-sign-needs-no-quotes', 'common/log_format.c', "s.p[i] == '=' || ",
       '', 'unit/common/log_format')
mutant("c1-passes", "common/log_format.c", "c[0] == 0xc2 && c[1] < 0xa0",
       "0", "unit/common/log_format")
mutant("json-strings-as-numbers", "common/log_format.c", "v.is_numeric && v.parts == 1 &&",
       "v.parts == 1 &&", "unit/common/log_format")
mutant("suppression-not-counted", "common/log.c", "        s->suppressed++;\n",
       "", "unit/common/log")
mutant("end-waits-for-ever", "common/log.c", "if (pthread_cond_timedwait(&l->idle, &l->lock, &until) == ETIMEDOUT)",
       "if (pthread_cond_wait(&l->idle, &l->lock) != 0)", "unit/common/log")
mutant('comment-cut-at-a-buffer', 'common/secret.c', "secret_word(&rest, &word) || word.p[0] == '#'",
       "secret_word(&rest, &word) || (word.p[0] == '#' && line.n < 4096)", 'unit/common/secret')
mutant('bom-kept', 'common/secret.c', 'STR("\\xef\\xbb\\xbf")) ? 3 : 0',
       'STR("\\xef\\xbb\\xbf")) ? 0 : 0', 'unit/common/secret')
mutant("dumpable-secrets", "common/secret.c", "(void)madvise(q, to, MADV_DONTDUMP);",
       "(void)to;", "unit/common/secret")
mutant("group-readable-not-said", "common/secret.c", "(S_IRGRP | S_IROTH)",
       "S_IROTH", "unit/common/secret")
mutant("own-group-only", "common/machine.c", "        if (!slash || slash - dir < top)\n            return;\n",
       "        return;\n", "unit/common/machine")
mutant("quota-rounded-up", "common/machine.c", "MAX(quota / period, 1ull)",
       "MAX((quota + period - 1) / period, 1ull)", "unit/common/machine")
mutant("no-lame-duck", "common/svc_main.c", "} else if (lame_duck_ms) {",
       "} else if (0) {", "unit/common/svc_main")
mutant("sighup-default-while-closing", "common/svc_main.c", "    uv_unref((uv_handle_t *)&p->hup);",
       "    uv_signal_stop(&p->hup); uv_unref((uv_handle_t *)&p->hup);", "unit/common/svc_main")
mutant("closed-streams-stay-closed", "common/svc_main.c", "    process_stdio();\n",
       "", "unit/common/svc_main")
mutant("reload-without-daemon-files", "common/svc_main.c", "if (rv == 0 && p->ops->reload)",
       "if (0)", "unit/common/svc_main")
