#!/usr/bin/env python3
"""pool.py - start a whole Incipit pool on loopback, run the demonstration, stop it.

Used by tools/quickstart and by tests/e2e. Standard library only. One state directory a user holds the
sockets, logs, the disk tier and `pool.json` (process ids), so that --stop finds what --keep left.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = ".incipit-pool"  # a state directory that may be removed


class PoolError(Exception):
    """Something a person can mend; its text is printed without a traceback."""


def state_dir():
    base = os.environ.get("INCIPIT_STATE_DIR")
    if base:
        return pathlib.Path(base)
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    return pathlib.Path(base) / f"incipit-quickstart-{os.getuid()}"


def clear_state(path):
    """Remove what an earlier pool left, and nothing else: the name may come from the environment."""
    ours = (path / MARK).exists() or path.name.startswith("incipit-quickstart-")
    if path.is_dir() and any(path.iterdir()) and not ours:
        raise PoolError(f"{path} holds files that are not a pool's; name another directory in INCIPIT_STATE_DIR")
    shutil.rmtree(path, ignore_errors=True)


class NoChat(PoolError):
    """The model has no chat template that the worker knows."""


class StreamCut(PoolError):
    """An answer that had begun and did not come to its end."""


def say(text):
    print(text, flush=True)


def check_port(port, what):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError as e:
            raise PoolError(f"port {port}, meant for {what}, is in use ({e.strerror}); "
                            "pass another base with --port, or end an older pool with --stop") from e


def free_base(n):
    """The first of n ports in a row that nobody uses, below those that the kernel gives out by itself."""
    for _ in range(200):
        base = random.randrange(10000, 32000 - n)
        try:
            for port in range(base, base + n):
                check_port(port, "tests")
            return base
        except PoolError:
            continue
    raise PoolError(f"no {n} free ports in a row")


def http_get(port, path, timeout=5.0):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def metric(port, name):
    """Sum of all samples of a metric, None when the page does not have it."""
    status, body = http_get(port, "/metrics")
    total = None
    for line in body.decode().splitlines():
        m = re.match(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)", line)
        if m and m.group(1) == name:
            total = (total or 0.0) + float(m.group(3))
    return total


class Pool:
    """The processes of one pool. start() raises PoolError and leaves nothing running."""

    def __init__(self, build, model, port=8080, workers=2, directory=None, fetch="always", threads=1,
                 ram="1g", disk="4g", redis=True, cache=True, unix=True, worker_args=(), cache_args=()):
        self.build = pathlib.Path(build).resolve()
        self.model = pathlib.Path(model).resolve()
        self.port = port
        self.n_workers = workers
        self.dir = pathlib.Path(directory or state_dir())
        self.fetch, self.threads, self.ram, self.disk = fetch, threads, ram, disk
        self.redis, self.cache, self.unix = redis, cache, unix
        self.worker_args, self.cache_args = list(worker_args), list(cache_args)
        self.procs = {}
        self.cache_port, self.cache_http, self.redis_port = port + 1, port + 2, port + 3
        self.worker_ports = [port + 4 + i for i in range(workers)]
        self.balancer_stats = port + 9
        self.cache_sock = self.dir / "cachesvc.sock"

    # -- programs ---------------------------------------------------------------------------------

    def program(self, folder, name):
        path = self.build / folder / name
        if not path.exists():
            raise PoolError(f"{path} is missing: build first (ninja -C {self.build})")
        return str(path)

    def spawn(self, name, argv):
        log = open(self.dir / f"{name}.log", "ab")
        self.procs[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            cwd=self.dir, start_new_session=True)
        log.close()

    def tail(self, name):
        try:
            lines = (self.dir / f"{name}.log").read_text(errors="replace").splitlines()[-8:]
        except OSError:
            lines = []
        return "\n  ".join(lines)

    def wait(self, name, ready, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.procs[name].poll() is not None:
                raise PoolError(f"{name} ended at start (exit status {self.procs[name].returncode}):\n"
                                f"  {self.tail(name)}")
            try:
                if ready():
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        raise PoolError(f"{name} was not ready within {seconds} s:\n  {self.tail(name)}")

    def start_redis(self):
        exe = shutil.which("redis-server")
        if not exe:
            raise PoolError("redis-server is not installed (tools/dev/packages run)")
        self.spawn("redis", [exe, "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "",
                             "--appendonly", "no", "--dir", str(self.dir)])

        def ready():
            with socket.create_connection(("127.0.0.1", self.redis_port), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(16).startswith(b"+PONG")
        self.wait("redis", ready, 10)

    def start_cachesvc(self):
        argv = [self.program("cachesvc", "incipit-cachesvc"),
                "--listen", f"127.0.0.1:{self.cache_port}", "--http-listen", f"127.0.0.1:{self.cache_http}",
                "--ram-bytes", self.ram, "--disk-dir", str(self.dir / "disk"), "--disk-bytes", self.disk]
        if self.unix:
            argv += ["--unix-listen", str(self.cache_sock)]
        if self.redis:
            argv += ["--redis", f"127.0.0.1:{self.redis_port}"]
        (self.dir / "disk").mkdir(exist_ok=True)
        self.spawn("cachesvc", argv + self.cache_args)
        self.wait("cachesvc", lambda: http_get(self.cache_http, "/readyz")[0] == 200, 60)

    def start_worker(self, i, wait=True):
        name = f"worker-{i + 1}"
        argv = [self.program("worker", "incipit-worker"), "--model", str(self.model), "--name", name,
                "--listen", f"127.0.0.1:{self.worker_ports[i]}", "--threads", str(self.threads), "--debug-logits",
                "--lame-duck-ms", "0"]  # nobody is served while a pool stops
        if self.cache:
            argv += ["--cache", f"unix:{self.cache_sock}" if self.unix else f"127.0.0.1:{self.cache_port}",
                     "--fetch", self.fetch]
        self.spawn(name, argv + self.worker_args)
        if wait:
            self.wait_worker(i)

    def wait_worker(self, i):
        self.wait(f"worker-{i + 1}", lambda: http_get(self.worker_ports[i], "/readyz")[0] == 200, 120)

    def start_haproxy(self):
        exe = shutil.which("haproxy") or "/usr/sbin/haproxy"
        if not os.path.exists(exe):
            raise PoolError("haproxy is not installed (tools/dev/packages run)")
        servers = "\n".join(f"    server w{i + 1} 127.0.0.1:{p}" for i, p in enumerate(self.worker_ports))
        # The same file that deploy/ ships, with this pool's addresses in place of the variables.
        text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
        text = re.sub(r"(?m)^\s*server-template .*$|^\s*parse-resolv-conf$", "", text)
        text = text.replace("# @servers@", servers)
        text = re.sub(r"(?m)^(\s*)bind .*# frontend$", rf"\g<1>bind 127.0.0.1:{self.port}", text)
        stats = re.sub(r"(?m)^(\s*)bind .*$", rf"\g<1>bind 127.0.0.1:{self.balancer_stats}",
                       (ROOT / "deploy/haproxy/stats.cfg").read_text())
        argv = [exe, "-db"]
        for name, content in (("haproxy.cfg", text), ("stats.cfg", stats)):
            (self.dir / name).write_text(content)
            argv += ["-f", str(self.dir / name)]
        self.spawn("haproxy", argv)
        self.wait("haproxy", lambda: http_get(self.port, "/v1/models")[0] == 200, 20)

    def start(self, progress=lambda text: None):
        for offset, what in enumerate(["HAProxy", "the cache node's RPC", "the cache node's metrics", "Redis"] +
                                      [f"worker {i + 1}" for i in range(self.n_workers)]):
            check_port(self.port + offset, what)
        check_port(self.balancer_stats, "HAProxy's statistics")
        clear_state(self.dir)
        self.dir.mkdir(parents=True, mode=0o700)
        (self.dir / MARK).touch()
        try:
            if self.redis:
                progress("Redis")
                self.start_redis()
            progress("cache node")
            self.start_cachesvc()
            progress(f"{self.n_workers} workers")
            for i in range(self.n_workers):
                self.start_worker(i, wait=False)
            for i in range(self.n_workers):
                self.wait_worker(i)
            progress("HAProxy")
            self.start_haproxy()
        except BaseException:
            self.stop()
            raise

    def kill(self, name, sig=signal.SIGKILL):
        self.procs[name].send_signal(sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            self.procs[name].wait(30)

    def stop(self):
        for name in reversed(list(self.procs)):
            p = self.procs[name]
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for name, p in self.procs.items():
            try:
                p.wait(15)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        self.procs.clear()

    def save(self):
        (self.dir / "pool.json").write_text(json.dumps(
            {"port": self.port, "pids": {n: p.pid for n, p in self.procs.items()}}))

    # -- requests ---------------------------------------------------------------------------------

    def pending_puts(self):
        return sum(metric(p, "incipit_worker_pending_puts") or 0 for p in self.worker_ports)

    def wait_puts(self, seconds=2.0):
        end = time.monotonic() + seconds
        while self.pending_puts() > 0 and time.monotonic() < end:
            time.sleep(0.02)


def chat(port, messages, max_tokens=48, timeout=120.0, **more):
    """One streamed chat request; the answer with its time to first token as the client saw it."""
    return stream(port, "/v1/chat/completions", timeout, {"messages": messages, "max_tokens": max_tokens, **more})


def complete(port, prompt, max_tokens=48, timeout=120.0, **more):
    """The same of a text, for models without a chat template."""
    return stream(port, "/v1/completions", timeout, {"prompt": prompt, "max_tokens": max_tokens, **more})


def stream(port, path, timeout, request):
    body = json.dumps({"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **request})
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    t0 = time.monotonic()
    c.request("POST", path, body, {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        text = r.read().decode(errors="replace")
        kind = NoChat if "no usable chat template" in text else PoolError
        raise kind(f"HTTP {r.status}: {text[:400]}")
    out = {"text": "", "ttft_ms": None, "usage": {}, "incipit": {}, "finish_reason": None}
    try:
        for event in stream_events(r):
            read_event(out, event, t0)
    except (OSError, http.client.HTTPException) as e:
        raise StreamCut(f"the stream broke off after {len(out['text'])} characters: {e!r}") from e
    finally:
        c.close()
    return out


def stream_events(r):
    for raw in r:
        line = raw.decode().strip()
        if line == "data: [DONE]":
            return
        if line.startswith("data: ") and raw.endswith(b"\n"):
            yield json.loads(line[6:])
    raise StreamCut("the stream ended without [DONE]")


def read_event(out, event, t0):
    if "error" in event:
        raise PoolError(f"error in the stream: {event['error']}")
    out["incipit"].update(event.get("incipit") or {})
    out["usage"] = event.get("usage") or out["usage"]
    for choice in event.get("choices", []):
        out["finish_reason"] = choice.get("finish_reason") or out["finish_reason"]
        piece = choice.get("text") or choice.get("delta", {}).get("content")
        if piece:
            if out["ttft_ms"] is None:
                out["ttft_ms"] = (time.monotonic() - t0) * 1e3
            out["text"] += piece


QUESTION = "How much is a new inner tube, and when do you open on Sundays?"


def handbook():
    return (ROOT / "tools/dev/demo_prompt.txt").read_text().strip()


def demo_messages():
    return [{"role": "system", "content": handbook()}, {"role": "user", "content": QUESTION}]


def first_answer(port):
    """The first request's answer, and how the next ones are asked: chat, or completions where there is no chat."""
    def as_text(p):
        return complete(p, f"{handbook()}\n\nQuestion: {QUESTION}\nAnswer:")

    def as_chat(p):
        return chat(p, demo_messages())
    try:
        return as_chat(port), as_chat, "chat"
    except NoChat:
        say("      the model has no chat template (a base model): the demonstration uses /v1/completions")
        return as_text(port), as_text, "completions"


def demo(pool):
    """One long prompt to each worker through the balancer; returns the figures of --json."""
    rows, ask, api = [], None, None
    for i in range(pool.n_workers):
        if i:
            pool.wait_puts(2.0)
            a = ask(pool.port)
        else:
            a, ask, api = first_answer(pool.port)
        rows.append(a)
        who = a["incipit"].get("worker", "?")
        say(f"      request {i + 1}: {who} answered")
    first, last = rows[0], rows[1] if len(rows) > 1 else rows[0]
    cached = [r["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) for r in rows]
    hashes = [r["incipit"].get("first_logits_sha256") for r in rows]
    say("")
    say(f"      {'worker':<10} {'prompt':>7} {'computed':>9} {'fetched':>8} {'TTFT ms':>9}  text")
    for r, c in zip(rows, cached):
        n = r["usage"]["prompt_tokens"]
        say(f"      {r['incipit'].get('worker', '?'):<10} {n:>7} {n - c:>9} {c:>8} {r['ttft_ms']:>9.1f}  "
            f"{r['text'].strip()[:60]!r}")
    figures = {
        "api": api,
        "cold_ttft_ms": round(first["ttft_ms"], 3),
        "hit_ttft_ms": round(last["ttft_ms"], 3),
        "prompt_tokens": first["usage"]["prompt_tokens"],
        "cached_tokens": cached[1] if len(cached) > 1 else cached[0],
        "identical_text": all(r["text"] == first["text"] for r in rows),
        "identical_logits": hashes[0] is not None and all(h == hashes[0] for h in hashes),
        "workers": len({r["incipit"].get("worker") for r in rows}),
    }
    say("")
    say(f"      same text: {figures['identical_text']}, same logits (bit for bit): {figures['identical_logits']}, "
        f"first token after {figures['hit_ttft_ms']:.0f} ms instead of {figures['cold_ttft_ms']:.0f} ms "
        f"({figures['cold_ttft_ms'] / max(figures['hit_ttft_ms'], 0.001):.1f} times as fast)")
    return figures


EXAMPLES = """
The pool runs. Try:

  curl -s http://127.0.0.1:{port}/v1/{path} -H 'Content-Type: application/json' \\
    -d '{{{prompt},"max_tokens":60}}'
  curl -s http://127.0.0.1:{worker}/metrics | grep -v '^#' | head -40

  {build}/tools/incipitctl/incipitctl --node {node} status
  {build}/tools/incipitctl/incipitctl --node {node} list --limit 10

  tools/quickstart --stop
"""


EXAMPLE_OF = {
    "chat": {"path": "chat/completions",
             "prompt": '"messages":[{"role":"user","content":"Name three uses of a bicycle bell."}]'},
    "completions": {"path": "completions", "prompt": '"prompt":"Three uses of a bicycle bell are"'},
}


def stop_saved():
    path = state_dir() / "pool.json"
    if not path.exists():
        say("no pool is running")
        return 0
    pids = json.loads(path.read_text())["pids"]
    ended = []
    for name, pid in reversed(list(pids.items())):
        try:
            cmd = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        # The number may belong to somebody else by now.
        if not any(word in cmd for word in ("incipit", "redis-server", "haproxy")):
            continue
        os.kill(pid, signal.SIGTERM)
        ended.append((name, pid))
    end = time.monotonic() + 20
    while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for _, pid in ended):
        time.sleep(0.05)
    for name, pid in ended:
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)
    clear_state(path.parent)
    say("stopped: " + (", ".join(n for n, _ in ended) or "nothing was running any more"))
    return 0


def check_none_kept():
    saved = state_dir() / "pool.json"
    if saved.exists():
        alive = [p for p in json.loads(saved.read_text())["pids"].values() if os.path.exists(f"/proc/{p}")]
        if alive:
            raise PoolError("a pool that --keep left is still running; end it with tools/quickstart --stop")
    return 0


def run(args):
    check_none_kept()
    pool = Pool(args.build, args.model, port=args.port, workers=args.workers)
    done = False
    try:
        pool.start(progress=lambda text: say(f"      starting {text}"))
        figures = demo(pool)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
        done = True
    finally:
        if not (done and args.keep):
            pool.stop()
            if done:
                clear_state(pool.dir)
    if args.keep:
        pool.save()
        say(EXAMPLES.format(**EXAMPLE_OF[figures["api"]], port=pool.port, worker=pool.worker_ports[0], build=args.build,
                            node=f"unix:{pool.cache_sock}"))
    ok = figures["identical_text"] and figures["identical_logits"]
    return 0 if ok else 1


def main():
    p = argparse.ArgumentParser(prog="pool.py", description=__doc__.splitlines()[0])
    sub = p.add_subparsers(dest="action", required=True)
    r = sub.add_parser("run")
    r.add_argument("--build", default="build")
    r.add_argument("--model", required=True)
    r.add_argument("--port", type=int, default=8080)
    r.add_argument("--workers", type=int, default=2)
    r.add_argument("--json")
    r.add_argument("--keep", action="store_true")
    sub.add_parser("stop")
    sub.add_parser("check")
    args = p.parse_args()
    if args.action == "run" and not 1 <= args.workers <= 5:
        p.error("--workers: 1 to 5 (two cores serve no more)")
    # A terminal's Ctrl-C or a kill ends the pool too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if args.action == "run":
            return run(args)
        return stop_saved() if args.action == "stop" else check_none_kept()
    except PoolError as e:
        print(f"quickstart: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
