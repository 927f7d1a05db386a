#!/usr/bin/env python3
"""Checks deploy/ against the programs themselves.

    test_deploy.py SOURCE_ROOT CACHESVC WORKER INCIPITCTL METRIC_NAMES

- every argument of a cachesvc or worker container, unit or example is one that the program accepts, value
  and all;
- every metric in rules, dashboard and runbook exists, histograms with their suffixes;
- deploy/config is what --dump-config prints;
- every option in the runbook exists in some program of ours, every alert has its section;
- probes and health checks ask ports that the same manifest configures;
- HAProxy's own parser takes the configuration, kubectl the kustomization, where these are installed.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

ROOT, CACHESVC, WORKER, CTL, NAMES = (pathlib.Path(a) for a in sys.argv[1:6])
DEPLOY = ROOT / "deploy"
PROGRAMS = {"cachesvc": CACHESVC, "worker": WORKER}
# Last values win: with these no program gets far, so its exit status tells bad options (2) from a failed
# start (3).
NO_START = {"worker": ["--model=/nonexistent/model.gguf"],
            "cachesvc": ["--token-file=/nonexistent/tokens", "--disk-dir=/nonexistent/disk"]}
BAD_OPTIONS, FAILED_START = 2, 3


def run(*argv):
    return subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=10)


def expand(text):
    """Shell-like defaults as compose resolves them, Kubernetes' $(VAR) as some text."""
    text = re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)
    text = re.sub(r"\$\{\w+:?\?[^}]*\}", "set", text)
    return re.sub(r"\$\(\w+\)|\$\{\w+\}", "127.0.0.1:8001", text)


def container_args(text):
    """[(program, [argument, ...]), ...]: the `- --x=y` lists that follow an image of ours."""
    found, current = [], None
    for line in text.splitlines():
        m = re.match(r"\s*image:\s*(\S+)", line)
        if m:
            name = re.search(r"incipit-(cachesvc|worker)", m.group(1))
            current = (name.group(1), []) if name else None
            if current:
                found.append(current)
        m = re.match(r"\s*- (--\S+)\s*$", line)
        if m and current:
            current[1].append(expand(m.group(1)))
    return found


class Deploy(unittest.TestCase):
    def accepts(self, program, args, where):
        r = run(PROGRAMS[program], *args, *NO_START[program])
        self.assertEqual(r.returncode, FAILED_START, f"{where}: {program} {' '.join(args)}\n{r.stdout}")

    def test_wrong_options_and_values_would_be_found(self):
        for args in (["--threads=abc"], ["--treads=1"], ["--fetch=perhaps"]):
            self.assertEqual(run(WORKER, *args, *NO_START["worker"]).returncode, BAD_OPTIONS, args)

    def test_container_arguments_are_accepted(self):
        seen = set()
        for path in sorted(DEPLOY.rglob("*.yaml")):
            for program, args in container_args(path.read_text()):
                if args:
                    seen.add((path.name, program))
                    self.accepts(program, args, path)
        self.assertEqual(seen, {("compose.yaml", "cachesvc"), ("compose.yaml", "worker"),
                                ("cachesvc.yaml", "cachesvc"), ("worker.yaml", "worker")})

    def test_systemd_arguments_are_accepted(self):
        units = sorted((DEPLOY / "systemd").glob("*.service"))
        self.assertEqual(len(units), 2)
        for path in units:
            line = re.search(r"^ExecStart=\S+/incipit-(\w+) (.*)$", path.read_text(), re.M)
            args = [a for a in expand(line.group(2)).split() if not a.startswith("--config=")]
            self.assertIn("--config=", line.group(2))
            self.accepts(line.group(1), args, path)

    def test_runbook_options_exist(self):
        known = {"--help"}
        helps = [run(program, "--help").stdout for program in (CACHESVC, WORKER, CTL)]
        commands = re.findall(r"^  (\w+)  +", helps[-1].split("\ncommands\n")[1].split("\n\n")[0], re.M)
        self.assertGreater(len(commands), 6)
        for text in helps + [run(CTL, c, "--help").stdout for c in commands]:
            known |= set(re.findall(r"--[a-z][a-z0-9-]+", text))
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", (DEPLOY / "RUNBOOK.md").read_text()))
        self.assertEqual(used - known - {"--isa"}, set())
        self.assertIn("--isa", known)

    def test_example_configurations_are_what_the_programs_print(self):
        for name, program in PROGRAMS.items():
            want = run(program, "--dump-config").stdout
            have = (DEPLOY / "config" / f"incipit-{name}.ini").read_text()
            self.assertEqual(have, want, f"write it again: incipit-{name} --dump-config "
                                         f"> deploy/config/incipit-{name}.ini")

    def metric_names(self):
        names = set()
        for line in run(NAMES).stdout.splitlines():
            name, kind = line.split()
            names |= {name + s for s in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
            if kind == "histogram":
                names.add(name)
        return names

    def test_metrics_exist(self):
        rules = (DEPLOY / "monitoring" / "rules.yaml").read_text()
        names = self.metric_names() | set(re.findall(r"record: (\S+)", rules))
        self.assertGreater(len(names), 100)
        files = [*sorted((DEPLOY / "monitoring").glob("*.*")), DEPLOY / "RUNBOOK.md"]
        n = 0
        for path in files:
            text = path.read_text()
            pattern = (r"\b(?:incipit_(?:worker|cachesvc|store|build)_[a-z0-9_]+|process_[a-z_]+|vllm:[a-z0-9_]+"
                       r"|incipit:[a-z0-9_:]+)")
            for name in sorted(set(re.findall(pattern, text))):
                self.assertTrue(name in names, f"{path}: {name}")
                n += 1
            # A quantile needs the buckets, anything else must not ask for a bare histogram.
            for name in re.findall(r"rate\(([a-z_:0-9]+)[\[{]", text):
                self.assertTrue(name.endswith(("_total", "_bucket", "_sum", "_count")), f"{path}: {name}")
        self.assertGreater(n, 60)

    def test_log_lines_of_the_runbook_exist(self):
        """E8: the runbook sent people to a line that nothing wrote."""
        text = re.sub(r"\s+", " ", (DEPLOY / "RUNBOOK.md").read_text())
        lines = set(re.findall(r"[Ll]og `([^`]+)`", text))
        self.assertGreater(len(lines), 6)
        sources = "".join(f.read_text() for d in ("cachesvc", "worker", "common", "proto")
                          for f in sorted((ROOT / d).rglob("*.c")))
        for line in lines:
            self.assertIn(f'"{line}"', sources, line)

    def test_alerts_have_a_section_in_the_runbook(self):
        headings = {h.lower() for h in re.findall(r"^### (\w+)$", (DEPLOY / "RUNBOOK.md").read_text(), re.M)}
        rules = (DEPLOY / "monitoring" / "rules.yaml").read_text()
        alerts = re.findall(r"alert: (\w+)", rules)
        self.assertEqual({a.lower() for a in alerts}, headings)
        self.assertEqual([a.lower() for a in alerts], re.findall(r"RUNBOOK\.md#(\w+)", rules))

    def test_dashboard_is_json_with_unique_panels(self):
        panels = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        self.assertTrue(all(p["targets"] for p in panels))

    def test_health_checks_ask_the_configured_ports(self):
        text = (DEPLOY / "container" / "Containerfile").read_text()
        for target, port in (("cachesvc", "7071"), ("worker", "8000"), ("haproxy", "8404")):
            stage = text.split(f" AS {target}\n")[1].split("\nFROM ")[0]
            self.assertRegex(stage, rf"EXPOSE .*{port}")
            self.assertIn(f'CMD ["healthcheck", "{port}", "/healthz"]', stage)

    def test_programs_in_the_containerfile_are_the_built_ones(self):
        text = (DEPLOY / "container" / "Containerfile").read_text()
        for path in re.findall(r"/build/(\S+)", text):
            self.assertTrue((CACHESVC.parent.parent / path).exists(), path)

    @unittest.skipUnless(shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin"), "no haproxy")
    def test_haproxy_takes_the_configuration(self):
        exe = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin")
        r = run(exe, "-c", "-f", DEPLOY / "haproxy" / "haproxy.cfg", "-f", DEPLOY / "haproxy" / "stats.cfg")
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertNotIn("WARNING", r.stdout)

    @unittest.skipUnless(yaml, "no PyYAML")
    def test_compose_services_are_boxed_in_and_watched(self):
        """E20: no health checks for the public images, no limits, all capabilities, logs without an end."""
        services = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
        watched = {"redis", "haproxy", "prometheus", "grafana"}  # ours have HEALTHCHECK in their images
        self.assertEqual({n for n, s in services.items() if "healthcheck" in s}, watched)
        for name, s in services.items():
            for key, want in (("cap_drop", ["ALL"]), ("read_only", True),
                              ("security_opt", ["no-new-privileges:true"])):
                self.assertEqual(s.get(key), want, (name, key))
            self.assertTrue(s["mem_limit"] and s["pids_limit"] and s["logging"]["options"]["max-size"], name)
        self.assertEqual({n for n, s in services.items() if "monitoring" in s.get("profiles", [])},
                         {"prometheus", "grafana"})
        for path in ("monitoring/prometheus.yaml", "compose/grafana/datasources/prometheus.yaml",
                     "compose/grafana/dashboards/incipit.yaml"):
            self.assertTrue(yaml.safe_load((DEPLOY / path).read_text()), path)

    def test_make_tokens_makes_what_is_lost_or_says_why_not(self):
        """E20: with one of its files lost it made nothing, in silence."""
        def make(d):
            return subprocess.run(["sh", DEPLOY / "compose/make-tokens", d], capture_output=True, text=True, timeout=10)
        names = ("node_tokens", "worker_token", "admin_token")
        for lost in ((), *[(n,) for n in names], names[1:]):
            with tempfile.TemporaryDirectory() as tmp:
                d = pathlib.Path(tmp)
                self.assertEqual(make(d).returncode, 0)
                texts = {n: (d / n).read_text() for n in names}
                for n in lost:
                    (d / n).unlink()
                r = make(d)
                self.assertEqual(r.returncode, 0, r)
                self.assertEqual({n: (d / n).read_text() for n in names}, texts, lost)
                self.assertEqual(r.stdout, "".join(f"{'written' if n in lost else 'kept   '} {d / n}\n" for n in names))
        with tempfile.TemporaryDirectory() as tmp:
            d = pathlib.Path(tmp)
            make(d)
            (d / "worker_token").write_text("another\n")
            r = make(d)
            self.assertEqual(r.returncode, 1)
            self.assertIn("worker_token", r.stderr)

    def test_manifests_know_no_cluster_and_no_namespace_by_name(self):
        """E13: HAProxy had no servers in another namespace or with another cluster DNS; `latest` was pulled or not."""
        version = re.search(r"version: '([0-9.]+)'", (ROOT / "meson.build").read_text()).group(1)
        for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
            text = re.sub(r"(?m)#.*$", "", path.read_text())
            self.assertNotRegex(text, r"\.svc\.|cluster\.local|\b10\.96\.|:latest|newTag: latest", path)
            for part in text.split("image: ")[1:]:
                self.assertRegex(part, r"\A\S+\n\s+imagePullPolicy: ", path)
            if path.name == "kustomization.yaml":
                for name, tag in re.findall(r"name: (incipit-\w+)\s+newTag: (\S+)", text):
                    self.assertEqual(tag, version, f"{path}: {name}")

    def test_haproxys_container_finds_the_whole_name(self):
        """E13: the shell of haproxy.yaml, with a pod's resolv.conf of some other cluster."""
        text = (DEPLOY / "kubernetes/base/haproxy.yaml").read_text()
        script = re.search(r"            - \|\n((?: {14}.*\n)+)", text).group(1)
        with tempfile.TemporaryDirectory() as tmp:
            conf = pathlib.Path(tmp) / "resolv.conf"
            conf.write_text("nameserver 10.3.0.10\nsearch llm.svc.k8s.example svc.k8s.example k8s.example\noptions ndots:5\n")
            script = script.replace("/etc/resolv.conf", str(conf)).replace("exec haproxy", 'echo "$INCIPIT_WORKERS"')
            out = subprocess.run(["/bin/sh", "-eu", "-c", script], capture_output=True, text=True, timeout=10)
        self.assertTrue(out.stdout.startswith("worker.llm.svc.k8s.example -db"), out)
        self.assertNotIn("INCIPIT_RESOLVER", text + (DEPLOY / "haproxy/haproxy.cfg").read_text())

    @unittest.skipUnless(shutil.which("kubectl"), "no kubectl")
    def test_kubectl_takes_the_kustomizations(self):
        r = run("kubectl", "kustomize", DEPLOY / "kubernetes" / "base")
        self.assertEqual(r.returncode, 0, r.stdout)
        for kind in ("StatefulSet", "Deployment", "Service", "ConfigMap", "NetworkPolicy"):
            self.assertIn(f"kind: {kind}", r.stdout)
        for name in ("worker", "haproxy"):
            self.assertRegex(r.stdout, rf"kind: PodDisruptionBudget\nmetadata:(?:\n  .*)*\n  name: {name}\n")
        self.assertEqual(r.stdout.count("topologySpreadConstraints:"), 2)
        r = run("kubectl", "kustomize", DEPLOY / "kubernetes" / "overlays" / "example")
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertEqual(set(re.findall(r"(?m)^  namespace: (\S+)$", r.stdout)), {"llm"})
        self.assertIn("kind: HorizontalPodAutoscaler", r.stdout)
        programs = container_args(r.stdout.replace("registry.example/", ""))
        self.assertEqual({p for p, _ in programs}, {"worker", "cachesvc"})

    @unittest.skipUnless(shutil.which("kubectl"), "no kubectl")
    def test_kubectl_takes_the_model_from_a_claim(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as tmp:
            at = pathlib.Path(tmp) / "kustomization.yaml"
            up = "../" * (len(at.parent.resolve().parts) - 1)
            k8s = (DEPLOY / "kubernetes").resolve().relative_to("/")
            at.write_text(f"resources: [{up}{k8s}/base]\ncomponents: [{up}{k8s}/components/model-volume]\n")
            r = run("kubectl", "kustomize", tmp)
        self.assertEqual(r.returncode, 0, r.stdout)
        self.assertIn("claimName: incipit-model", r.stdout)
        self.assertNotIn("initContainers", r.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
