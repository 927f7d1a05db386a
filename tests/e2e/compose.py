#!/usr/bin/env python3
"""compose.py - the checks of tests/e2e/compose.sh on a compose stack that was just started.

The quickstart's demonstration through HAProxy with its figures asserted, every container healthy, the
administrator's view through the tools image, and requests while a worker drains and while the node is
killed. Standard library only.
"""
import argparse
import http.client
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev"))
import pool as quickstart  # noqa: E402

N_WORKERS, BLOCK = 3, 32


def docker(*args):
    r = subprocess.run(["docker", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if r.returncode:
        raise quickstart.PoolError(f"docker {' '.join(args)}: {r.stdout.strip()[-400:]}")
    return r.stdout.strip()


class Stack:
    """The running stack, with what pool.demo() asks of a pool."""

    n_workers = N_WORKERS

    def __init__(self, project, port, secrets):
        self.project, self.port, self.secrets = project, port, secrets

    def container(self, service):
        ids = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.project}",
                     "--filter", f"label=com.docker.compose.service={service}").split()
        return ids[0]

    def network(self):
        return f"{self.project}_pool"

    def address(self, service):
        """The container's own address: the workers publish no port."""
        return docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
                      self.container(service))

    def get(self, service, port, path):
        c = http.client.HTTPConnection(self.address(service), port, timeout=5)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def metric(self, service, port, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.get(service, port, "/metrics")[1].splitlines()
                   if line.startswith((name + " ", name + "{")))

    def wait_puts(self, seconds=2.0):
        end = time.monotonic() + seconds
        workers = [f"worker-{i + 1}" for i in range(N_WORKERS)]
        while time.monotonic() < end and any(self.metric(w, 8000, "incipit_worker_pending_puts") for w in workers):
            time.sleep(0.05)

    def wait(self, what, condition, seconds):
        end = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (OSError, http.client.HTTPException, quickstart.PoolError):
                pass
            if time.monotonic() > end:
                raise quickstart.PoolError(f"{what}: not within {seconds} s")
            time.sleep(0.25)

    def ctl(self, *args):
        return docker("run", "--rm", "--network", self.network(), "-v", f"{self.secrets}:/secrets:ro",
                      "--user", "0", "incipit-tools", "--node", "cachesvc:7070", "--token-file",
                      "/secrets/admin_token", *args)


def check(ok, what):
    quickstart.say(f"{'ok' if ok else 'FAILED'}   {what}")
    if not ok:
        raise quickstart.PoolError(what)


def wait_up(s):
    for i in range(N_WORKERS):
        s.wait(f"worker-{i + 1} ready", lambda i=i: s.get(f"worker-{i + 1}", 8000, "/readyz")[0] == 200, 120)
        s.wait(f"worker-{i + 1} connected to the cache node",
               lambda i=i: s.metric(f"worker-{i + 1}", 8000, "incipit_worker_cache_connected") == 1, 30)
    s.wait("HAProxy answers", lambda: quickstart.http_get(s.port, "/v1/models")[0] == 200, 30)
    s.wait("HAProxy sees three workers",
           lambda: s.get("haproxy", 8404, "/metrics")[1].count('haproxy_server_status{proxy="workers"') >= N_WORKERS
           and s.get("haproxy", 8404, "/metrics")[1].count('state="UP"} 1') >= N_WORKERS, 30)
    s.wait("the node uses Redis", lambda: s.metric("cachesvc", 7071, "incipit_cachesvc_index_state") == 1, 30)


def check_demo(s):
    f = quickstart.demo(s)
    n = f["prompt_tokens"]
    check(n >= 1500, f"prompt of {n} tokens")
    check(f["workers"] == N_WORKERS, f"{f['workers']} workers answered")
    check(f["cached_tokens"] == (n - 1) // BLOCK * BLOCK, f"{f['cached_tokens']} tokens fetched, every full block")
    check(f["identical_text"] and f["identical_logits"], "same text and, bit for bit, same logits")


def check_health(s):
    for service in ("redis", "cachesvc", "haproxy", *[f"worker-{i + 1}" for i in range(N_WORKERS)]):
        s.wait(f"{service} healthy", lambda service=service: docker(
            "inspect", "-f", "{{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}}",
            s.container(service)) in ("healthy", "none"), 60)
        user = docker("exec", s.container(service), "id", "-u")
        check(user != "0", f"{service} is healthy and runs as uid {user}")


def check_admin(s):
    check("cachesvc" in s.ctl("status"), "incipitctl status from the tools image")
    wrong = subprocess.run(["docker", "run", "--rm", "--network", s.network(), "incipit-tools", "--node",
                            "cachesvc:7070", "status"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(wrong.returncode != 0, "incipitctl without a token is refused")


def check_drain(s, text):
    docker("stop", "-t", "40", s.container("worker-2"))
    for _ in range(4):
        a = quickstart.chat(s.port, quickstart.demo_messages())
        check(a["text"] == text and a["incipit"]["worker"] != "worker-2", "a request while worker-2 is down")
    docker("start", s.container("worker-2"))
    s.wait("worker-2 back", lambda: s.get("worker-2", 8000, "/readyz")[0] == 200, 120)


def check_node_loss(s, text):
    docker("kill", s.container("cachesvc"))
    a = quickstart.chat(s.port, quickstart.demo_messages())
    check(a["text"] == text, "same text while the node is dead")
    docker("start", s.container("cachesvc"))
    s.wait("node back", lambda: s.get("cachesvc", 7071, "/readyz")[0] == 200, 60)
    check(s.metric("cachesvc", 7071, "incipit_store_recovered_total") > 0, "its blocks came back from the volume")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--project", required=True)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--secrets", required=True)
    a = p.parse_args()
    s = Stack(a.project, a.port, a.secrets)
    try:
        wait_up(s)
        check_demo(s)
        check_health(s)
        check_admin(s)
        text = quickstart.chat(s.port, quickstart.demo_messages())["text"]
        check_drain(s, text)
        check_node_loss(s, text)
    except quickstart.PoolError as e:
        print(f"compose.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
