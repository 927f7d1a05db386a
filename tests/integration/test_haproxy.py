#!/usr/bin/env python3
"""The balancer's configuration as it ships, in a real HAProxy, before workers that are scripted here.

    test_haproxy.py SOURCE_ROOT

Skipped (77) where HAProxy is not installed. Nothing asserts a time: waits end on a condition.
"""
import http.client
import json
import pathlib
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(sys.argv[1])
EXE = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin")
LIMIT_S = 60


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.02)


def free_ports(n):
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in socks]
    for s in socks:
        s.close()
    return ports


class Worker:
    """mode: 'ready', 'draining' (503 on /readyz), 'dies' (closes on a request's last byte), 'hangs' (answers
    nothing at all), 'loads' (503 to a request, not yet noticed by a probe), 'streams' (the first token, then nothing until told to go on)."""

    def __init__(self, name, port):
        self.name, self.port, self.mode = name, port, "ready"
        self.requests, self.lengths = 0, []
        self.go_on = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                try:
                    while outer.one(self):
                        pass
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 64
        self.server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def one(self, h):
        line = h.rfile.readline().decode()
        headers = {}
        while (field := h.rfile.readline().decode().strip()):
            key, value = field.split(":", 1)
            headers[key.lower()] = value.strip()
        if not line:
            return False
        if self.mode == "hangs":
            self.go_on.wait(LIMIT_S)
            return False
        if "/readyz" in line:
            ok = self.mode != "draining"
            h.wfile.write(f"HTTP/1.1 {'200 OK' if ok else '503 No'}\r\nContent-Length: 0\r\n\r\n".encode())
            return True
        body = h.rfile.read(int(headers.get("content-length", 0)))
        self.requests += 1
        self.lengths.append(len(body))
        if self.mode == "dies":
            return False
        if self.mode == "loads":
            h.wfile.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            return True
        answer = self.name.encode()
        h.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer) + 5}\r\n\r\n".encode() + b"first")
        h.wfile.flush()
        if self.mode == "streams":
            self.go_on.wait(LIMIT_S)
        h.wfile.write(answer)
        return True

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


class Balancer(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="incipit-haproxy-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.port, self.stats, *ports = free_ports(5)
        self.workers = [Worker(f"w{i}", p) for i, p in enumerate(ports)]
        for w in self.workers:
            self.addCleanup(w.close)
        self.start([f"server w{i} 127.0.0.1:{p}" for i, p in enumerate(ports)])

    def start(self, servers):
        text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
        text = re.sub(r"(?m)^\s*(server-template .*|parse-resolv-conf)$", "", text)
        text = text.replace("# @servers@", "\n    ".join(servers)).replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        # A hang is told from slowness sooner than in a pool under load.
        text = text.replace("timeout check 3s", "timeout check 300ms").replace("inter 1s", "inter 250ms")
        stats = (ROOT / "deploy/haproxy/stats.cfg").read_text().replace("bind :8404", f"bind 127.0.0.1:{self.stats}")
        (self.dir / "a.cfg").write_text(text)
        (self.dir / "b.cfg").write_text(stats)
        log = open(self.dir / "log", "wb")
        p = subprocess.Popen([EXE, "-db", "-f", self.dir / "a.cfg", "-f", self.dir / "b.cfg"], stdout=log, stderr=log)
        log.close()
        self.addCleanup(p.wait)
        self.addCleanup(p.terminate)
        until(lambda: self.try_ready() is not None, "HAProxy listens")

    def try_ready(self):
        try:
            return self.get(self.stats, "/readyz")[0]
        except OSError:
            return None

    def get(self, port, path):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        c.request("GET", path)
        r = c.getresponse()
        out = r.status, dict(r.getheaders()), r.read()
        c.close()
        return out

    def post(self, size=100):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            c.request("POST", "/v1/completions", b"x" * size, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def is_error(self, answer, status):
        self.assertEqual(answer[0], status, answer)
        error = json.loads(answer[2])["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(answer[1]["content-type" if "content-type" in answer[1] else "Content-Type"]
                        .startswith("application/json"))

    def states(self):
        out = {}
        for line in self.get(self.stats, "/;csv")[2].decode().splitlines():
            cells = line.split(",")
            if cells[0] == "workers" and cells[1] != "BACKEND":
                out[cells[1]] = cells[17]
        return out

    def test_a_worker_that_dies_with_a_request_costs_nobody_an_answer(self):
        """E1: kill -9 of a worker gave 502 to whoever waited for a first byte; a long prompt's body is kept too."""
        self.workers[0].mode = "dies"
        for size in (10, 20_000, 450_000):
            for _ in range(3):
                self.assertEqual(self.post(size)[0], 200)
        self.assertGreater(self.workers[0].requests, 0)
        self.assertEqual({n for w in self.workers for n in w.lengths}, {10, 20_000, 450_000})

    def test_a_worker_that_loads_its_model_again_costs_nobody_an_answer(self):
        """E1, E4: a killed worker's port is open again before a probe has seen it closed."""
        self.workers[0].mode = "loads"
        for _ in range(6):
            self.assertEqual(self.post(100)[0], 200)
        self.assertGreater(self.workers[0].requests, 0)

    def test_a_request_that_kills_its_worker_meets_three_at_most(self):
        for w in self.workers:
            w.mode = "dies"
        self.is_error(self.post(), 502)
        self.assertEqual(sum(w.requests for w in self.workers), 3)

    def test_a_body_longer_than_a_buffer_passes_once(self):
        self.assertEqual(self.post(5_000_000)[0], 200)
        for w in self.workers:
            w.mode = "dies"
        self.is_error(self.post(5_000_000), 502)
        self.assertEqual(sum(w.requests for w in self.workers), 2)

    def test_readiness_follows_the_workers(self):
        """E2: with every worker gone the balancer stayed ready; clients got a page of HTML (E18)."""
        until(lambda: self.try_ready() == 200, "ready")
        for w in self.workers:
            w.close()
        until(lambda: self.try_ready() == 503, "not ready")
        self.assertEqual(self.get(self.stats, "/healthz")[0], 200)
        answer = self.post()
        self.is_error(answer, 503)
        self.assertIn("1", (answer[1].get("retry-after"), answer[1].get("Retry-After")))

    def test_a_hung_worker_lets_go_of_its_sessions(self):
        """E18: seven requests waited up to 31 s at a worker that did not answer its checks either."""
        answers = []
        self.workers[1].mode = "hangs"
        clients = [threading.Thread(target=lambda: answers.append(self.post())) for _ in range(6)]
        for c in clients:
            c.start()
        until(lambda: self.states()["w1"].startswith("DOWN"), "the hung worker is down")
        until(lambda: len(answers) == 6, "all have an answer")
        for a in answers:
            if a[0] != 200:
                self.is_error(a, a[0])
        for c in clients:
            c.join()

    def test_a_draining_worker_ends_what_it_has(self):
        """E18, its other side: a worker that says 503 is not down, or its streams would be cut."""
        w = self.workers[2]
        w.mode = "streams"
        got = []

        def client():
            for _ in range(3):
                got.append(self.post())
        t = threading.Thread(target=client)
        t.start()
        until(lambda: w.requests == 1, "the stream began")
        w.mode = "draining"
        until(lambda: self.states()["w2"] == "NOLB", "nothing new goes there")
        for _ in range(4):
            self.assertEqual(self.post()[0], 200)
        self.assertEqual(w.requests, 1)
        w.go_on.set()
        t.join()
        self.assertEqual([g[0] for g in got], [200] * 3)
        self.assertIn(b"firstw2", [g[2] for g in got])


if __name__ == "__main__":
    if not EXE:
        print("HAProxy is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
