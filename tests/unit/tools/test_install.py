#!/usr/bin/env python3
"""E15: `meson install` laid out binaries and manual pages only. What it lays out now, name by name.

    test_install.py BUILD
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv[1]

WANT = """
bin/ggufinfo bin/incipit-bench bin/incipit-cachesvc bin/incipit-worker bin/incipitctl bin/tokdump
lib/systemd/system/incipit-cachesvc.service lib/systemd/system/incipit-worker@.service lib/sysusers.d/incipit.conf
share/bash-completion/completions/incipit-bench share/bash-completion/completions/incipit-cachesvc
share/bash-completion/completions/incipit-worker share/bash-completion/completions/incipitctl
share/doc/incipit/LICENSE share/doc/incipit/RUNBOOK.md share/doc/incipit/WIRE.md share/doc/incipit/metrics.md
share/doc/incipit/options.md
share/incipit/compose/.env.example share/incipit/compose/compose.yaml share/incipit/compose/make-tokens
share/incipit/compose/grafana/dashboards/incipit.yaml share/incipit/compose/grafana/datasources/prometheus.yaml
share/incipit/config/incipit-cachesvc.ini share/incipit/config/incipit-worker.ini
share/incipit/haproxy/haproxy.cfg share/incipit/haproxy/kustomization.yaml share/incipit/haproxy/stats.cfg
share/incipit/kubernetes/base/cachesvc.yaml share/incipit/kubernetes/base/haproxy.yaml
share/incipit/kubernetes/base/incipitctl.yaml share/incipit/kubernetes/base/kustomization.yaml
share/incipit/kubernetes/base/namespace.yaml share/incipit/kubernetes/base/network-policy.yaml
share/incipit/kubernetes/base/redis.yaml share/incipit/kubernetes/base/secret.example.yaml
share/incipit/kubernetes/base/worker.yaml
share/incipit/kubernetes/components/autoscale/hpa.yaml
share/incipit/kubernetes/components/autoscale/kustomization.yaml
share/incipit/kubernetes/components/model-volume/kustomization.yaml
share/incipit/kubernetes/overlays/example/kustomization.yaml
share/incipit/monitoring/dashboard.json share/incipit/monitoring/prometheus.yaml
share/incipit/monitoring/rules.yaml
share/man/man1/incipit-bench.1 share/man/man1/incipitctl.1
share/man/man8/incipit-cachesvc.8 share/man/man8/incipit-worker.8
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="incipit-install-")
        p = subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.tmp.name],
                           capture_output=True, text=True, timeout=100)
        if p.returncode != 0:
            raise AssertionError(p.stdout + p.stderr)
        files = [f for f in pathlib.Path(cls.tmp.name).rglob("*") if f.is_file()]
        cls.prefix = pathlib.Path(os.path.commonpath([f.parent for f in files]))
        cls.have = {str(f.relative_to(cls.prefix)) for f in files}

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def test_everything_is_laid_out_and_nothing_else(self):
        want = set(WANT.split())
        self.assertEqual((sorted(want - self.have), sorted(self.have - want)), ([], []))

    def test_units_name_the_installed_programs(self):
        place = "/" + str(self.prefix.relative_to(self.tmp.name))
        for name in ("incipit-cachesvc", "incipit-worker"):
            unit = next((self.prefix / "lib/systemd/system").glob(name + "*")).read_text()
            self.assertIn(f"ExecStart={place}/bin/{name} --config=", unit)

    def test_programs_run_and_complete(self):
        exe = self.prefix / "bin/incipitctl"
        self.assertIn("incipitctl", subprocess.run([exe, "--version"], capture_output=True, text=True).stdout)
        script = f"""
source {self.prefix}/share/bash-completion/completions/incipitctl
try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _incipit "$1"; echo "${{COMPREPLY[*]}}"; }}
try {exe} ins
try {exe} evict --dr
try {exe} --no
try {self.prefix}/bin/incipit-cachesvc --ram-
"""
        out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(out.stdout.split("\n")[:4], ["inspect", "--dry-run", "--node", "--ram-bytes"], out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
